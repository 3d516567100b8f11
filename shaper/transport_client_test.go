package shaper_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

//lint:file-ignore SA1019 Request.Cancel is deprecated, but http.Transport heeds it.

// The tests of this file ask what callers of an http.Client and users of older
// parts of net/http see of a Transport.

// Programs tell a timeout by url.Error's Timeout, os.IsTimeout or net.Error, for
// example to decide whether to try again. That the Shaper foresees the timeout of
// the client and does not wait for it must not change the answer.
func TestAForeseenClientTimeoutIsATimeout(t *testing.T) {
	playTransport(t, "1/h depth 2", func(u *upstream) {
		client := &http.Client{Transport: u, Timeout: time.Minute}
		refused := func(wantTimeout bool, want error) {
			u.t.Helper()
			_, err := client.Get("http://upstream/a")
			require.ErrorIs(u.t, err, want)
			require.Equal(u.t, wantTimeout, errors.Is(err, context.DeadlineExceeded))
			require.Equal(u.t, wantTimeout, os.IsTimeout(err))
			netError, ok := errors.AsType[net.Error](err)
			require.True(u.t, ok)
			require.Equal(u.t, wantTimeout, netError.Timeout())
			refusal, ok := errors.AsType[*shaper.RejectError](err)
			require.True(u.t, ok)
			require.Equal(u.t, wantTimeout, refusal.Timeout())
		}
		u.arrive("a", 1)
		refused(true, shaper.ErrTooLate)
		u.set("1/h depth 2 wait 1s") // MaxWait is the limit's, not the client's.
		client.Timeout = 0
		refused(false, shaper.ErrTooLate)
		u.set("1/h")
		client.Timeout = time.Minute
		refused(false, shaper.ErrQueueFull)
		require.Equal(u.t, time.Duration(0), time.Since(u.start), "nobody has waited")
	})
	require.False(t, (&shaper.RejectError{Reason: shaper.ErrTooLate}).Timeout())
}

// canceling returns a request that ends when the function is called, by the
// deprecated field Cancel.
func (u *upstream) canceling(name string, body io.Reader) (r *http.Request, cancel func()) {
	r = u.request(context.Background(), name, body)
	c := make(chan struct{})
	r.Cancel = c
	return r, func() { close(c) }
}

const canceled = "shaper: request canceled while waiting for the Limiter"

// A caller that closes Cancel no longer wants the response. A request that went on
// waiting would keep its place in the line, and be sent although no caller waits.
func TestAClosedCancelEndsTheWait(t *testing.T) {
	for name, limiter := range map[string]func(u *upstream) shaper.Limiter{
		"Shaper": func(u *upstream) shaper.Limiter { return u.Shaper },
		"Chain":  func(u *upstream) shaper.Limiter { return shaper.Chain(u.Shaper) },
		"x/time": func(*upstream) shaper.Limiter { return rate.NewLimiter(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			playTransport(t, "1/s depth 5", func(u *upstream) {
				u.Limiter = limiter(u)
				body := &sentBody{Reader: strings.NewReader("x")}
				r, cancel := u.canceling("b", body)
				kept, _ := u.canceling("d", nil)
				u.call("a")
				u.callWith(r, true)
				u.call("c")
				u.callWith(kept, true)
				u.at(500 * ms)
				cancel()
				synctest.Wait()
				require.Equal(t, 1, body.closed)
				u.at(time.Minute)
				// x/time gives the slot back if no other request has come since.
				next := map[bool][]string{
					false: {"1s c sent", "1s c 200: body", "2s d sent", "2s d 200: body"},
					true:  {"2s c sent", "2s c 200: body", "3s d sent", "3s d 200: body"},
				}[name == "x/time"]
				u.saw(append([]string{"0s a sent", "0s a 200: body", "500ms b " + canceled}, next...)...)
			})
		})
	}
}

// The error is of the kind that http.Transport returns: it is neither
// context.Canceled nor a timeout. A request that is canceled beforehand takes no slot.
func TestTheErrorOfAClosedCancelIsAsInNetHTTP(t *testing.T) {
	s := mustMake(t, limitsOf(t, "1/s depth 5"))
	defer s.Close()
	closed, over := make(chan struct{}), make(chan struct{})
	close(closed)
	defer close(over)
	for name, transport := range map[string]http.RoundTripper{
		"ours": shaper.Transport{Limiter: s, Base: roundTripFunc(func(*http.Request) (*http.Response, error) { panic("sent") })},
		"net/http": &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			<-over
			return nil, net.ErrClosed
		}},
	} {
		r, err := http.NewRequest("GET", "http://upstream/", nil)
		require.NoError(t, err)
		r.Cancel = closed
		_, err = (&http.Client{Transport: transport}).Do(r)
		require.ErrorContains(t, err, "request canceled", name)
		require.NotErrorIs(t, err, context.Canceled, name)
		require.False(t, os.IsTimeout(err), name)
	}
	require.Zero(t, s.Stats().Departed)
}

// If Cancel is closed at the moment of the slot, the request is not sent.
func TestAClosedCancelIsSeenAfterTheWait(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		r, cancel := u.canceling("a", nil)
		u.Limiter = limiterFunc(func(context.Context, int) error { cancel(); return nil })
		u.callWith(r, true)
		u.saw("0s a " + canceled)
	})
}

// A request that was refused waits once more, and Cancel ends that wait, too.
func TestAClosedCancelEndsTheWaitForARetry(t *testing.T) {
	for name, l := range map[string]shaper.Limiter{"Shaper": nil, "x/time": rate.NewLimiter(1, 1)} {
		t.Run(name, func(t *testing.T) {
			playTransport(t, "1/s depth 5", func(u *upstream) {
				u.Retry = true
				if l != nil {
					u.Limiter = l
				}
				for _, path := range []string{"a", "b"} {
					u.script[path] = []string{refusedFor30}
				}
				r, cancel := u.canceling("a", nil)
				u.callWith(r, true)
				u.at(10 * time.Second)
				cancel()
				u.saw("0s a sent", "10s a "+canceled)
				kept, _ := u.canceling("b", nil)
				u.at(time.Minute)
				u.callWith(kept, true)
				u.at(time.Hour)
				u.saw("1m0s b sent", "1m30s b sent", "1m30s b 200: body")
			})
		})
	}
}

// With its Timeout an http.Client sets both a deadline and Cancel, which end at one
// instant. It is a timeout, whichever is seen first.
func TestAClientTimeoutInTheLineIsATimeout(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Limiter = limiterFunc(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
		before := time.Now()
		_, err := (&http.Client{Transport: u, Timeout: time.Minute}).Get("http://upstream/a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, os.IsTimeout(err))
		require.NotContains(t, err.Error(), canceled)
		require.Equal(t, time.Minute, time.Since(before))
	})
}

// A RoundTripper must always close the body, or a goroutine that writes into the other
// end of it waits forever.
func TestAPanicBeforeARequestIsSentClosesItsBody(t *testing.T) {
	const unmade = "shaper: this Shaper is nil or zero and can't be used; make one with shaper.New"
	for _, tt := range []struct {
		name   string
		change func(u *upstream)
		want   any // nil: what the Go runtime says
	}{
		{"Cost", func(u *upstream) { u.Cost = func(*http.Request) int { panic("burst") } }, "burst"},
		{"Limiter", func(u *upstream) { u.Limiter = limiterFunc(func(context.Context, int) error { panic("burst") }) }, "burst"},
		{"nil *Shaper", func(u *upstream) { u.Limiter = (*shaper.Shaper)(nil) }, unmade},
		{"zero Shaper", func(u *upstream) { u.Limiter = new(shaper.Shaper) }, unmade},
		{"nil pointer of another", func(u *upstream) { u.Limiter = (*rate.Limiter)(nil) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/s", func(u *upstream) {
				tt.change(u)
				body := &sentBody{Reader: strings.NewReader("x")}
				r, _ := u.canceling("a", body) // So that a goroutine would be left behind.
				call := func() { _, _ = u.RoundTrip(r) }
				if tt.want == nil {
					require.Panics(t, call)
				} else {
					require.PanicsWithValue(t, tt.want, call)
				}
				require.Equal(t, 1, body.closed)
				u.saw()
			})
		})
	}
}
