package shaper_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A request is sent as soon as the limiter admits it, and not before.
func TestTransportSendsAtTheRate(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a", "b", "c")
		u.at(10 * time.Second)
		u.saw("0s a sent", "0s a 200: body", "1s b sent", "1s b 200: body", "2s c sent", "2s c 200: body")
	})
}

// A Transport and a pointer to one can be what a client has.
func TestTransportWorksAsAValueAndAsAPointer(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		for _, transport := range []http.RoundTripper{u.Transport, &u.Transport} {
			client := &http.Client{Transport: transport}
			answer, err := client.Get("http://upstream/a")
			require.NoError(t, err)
			require.Equal(t, "200: body", inWords(answer))
		}
		u.saw("0s a sent", "1s a sent")
	})
}

// The cost is 1, or what Cost returns. For a cost of 0 the limiter is not asked.
func TestTransportAsksForTheCost(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a")
		u.Cost = costInQuery
		for _, path := range []string{"b?cost=3", "c", "free?cost=0", "wrong?cost=-1"} {
			u.callWith(u.request(context.Background(), path, nil), true)
		}
		u.at(time.Hour)
		u.saw("0s a sent", "0s a 200: body", "0s free sent", "0s free 200: body",
			"0s wrong shaper: cost is negative",
			"1s b sent", "1s b 200: body", "4s c sent", "4s c 200: body")
		require.Equal(t, uint64(3), u.Stats().Departed)
		u.Limiter = failing(errUpstream)
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.saw("1h0m0s free sent", "1h0m0s free 200: body")
	})
}

// Whatever keeps a request from being sent closes its body, as the contract of
// http.RoundTripper demands, and says why.
func TestTransportClosesTheBodyOfWhatIsNotSent(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	tests := []struct {
		name   string
		change func(u *upstream)
		ctx    context.Context
		want   error
	}{
		{"no limiter", func(u *upstream) { u.Limiter = nil }, nil, nil},
		{"negative hold", func(u *upstream) { u.MaxHold = -1 }, nil, nil},
		{"negative cost", func(u *upstream) { u.Cost = func(*http.Request) int { return -1 } }, nil, shaper.ErrNegativeCost},
		{"negative cost for another limiter", func(u *upstream) {
			u.Limiter, u.Cost = failing(nil), func(*http.Request) int { return -1 }
		}, nil, shaper.ErrNegativeCost},
		{"full", func(u *upstream) { u.arriveAll("a", "b") }, nil, shaper.ErrQueueFull},
		{"late", func(u *upstream) { u.set("1/h depth 1 wait 1s"); u.arriveAll("a") }, nil, shaper.ErrTooLate},
		{"costly", func(u *upstream) { u.Cost = func(*http.Request) int { return 1e9 } }, nil, shaper.ErrTooCostly},
		{"closed", func(u *upstream) { _ = u.Close() }, nil, shaper.ErrClosed},
		{"cancelled before", func(u *upstream) {}, cancelled, context.Canceled},
		{"another limiter's error", func(u *upstream) { u.Limiter = failing(errUpstream) }, nil, errUpstream},
		{"cancelled unseen by another limiter", func(u *upstream) { u.Limiter = failing(nil) }, cancelled, context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/h depth 1", func(u *upstream) {
				u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { panic("sent") })
				tt.change(u)
				ctx := tt.ctx
				if ctx == nil {
					ctx = context.Background()
				}
				body := &sentBody{Reader: strings.NewReader("x")}
				answer, err := u.RoundTrip(u.request(ctx, "a", body))
				require.Nil(t, answer)
				require.Error(t, err)
				if tt.want != nil {
					require.ErrorIs(t, err, tt.want)
				}
				require.Equal(t, 1, body.closed)

				_, err = u.RoundTrip(u.request(ctx, "a", nil)) // There need not be one.
				require.Error(t, err)
				_ = u.Close()
			})
		})
	}
}

// If a Transport is set up wrongly, the error names the field.
func TestTransportNamesTheFieldThatIsWrong(t *testing.T) {
	r, err := http.NewRequest("GET", "http://upstream/", nil)
	require.NoError(t, err)
	_, err = shaper.Transport{}.RoundTrip(r)
	require.ErrorContains(t, err, "shaper: Transport.Limiter is nil")
	_, err = shaper.Transport{Limiter: failing(nil), MaxHold: -time.Second}.RoundTrip(r)
	require.EqualError(t, err, "shaper: Transport.MaxHold is -1s, must not be negative")
	require.PanicsWithValue(t, "shaper: this Shaper is nil or zero and can't be used; make one with shaper.New", func() {
		_, _ = shaper.Transport{Limiter: new(shaper.Shaper)}.RoundTrip(r)
	})
}

// Our errors are found through the *url.Error of a client, and a context's own error is
// returned unchanged.
func TestTransportErrorsAreFoundThroughAClient(t *testing.T) {
	playTransport(t, "1/h depth 1", func(u *upstream) {
		u.arriveAll("a", "b")
		client := &http.Client{Transport: u}
		_, err := client.Get("http://upstream/c")
		_, ok := errors.AsType[*url.Error](err)
		require.True(t, ok)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		refusal, ok := errors.AsType[*shaper.RejectError](err)
		require.True(t, ok)
		require.Equal(t, time.Hour, refusal.RetryAfter)

		u.cancel("b")
		u.call("d")
		u.at(time.Second)
		u.cancel("d") // Its error is bare: outcome compares with ==.
		u.saw("0s a left", "0s b cancelled", "1s d cancelled")
		require.Equal(t, 0, u.Stats().Waiting)

		// The Timeout of a client is a deadline, and a Shaper foresees that it will pass.
		client.Timeout = time.Minute
		_, err = client.Get("http://upstream/e")
		require.ErrorIs(t, err, shaper.ErrTooLate)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A RoundTripper must not change the caller's request, except that it reads and closes the
// body.
func TestTransportLeavesTheRequestAsItIs(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{"429 Too Many Requests", "200 OK"}
		body := &sentBody{Reader: strings.NewReader("x")}
		r := u.request(context.Background(), "a", body)
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }
		r.Header.Set("A", "b")
		before, header := *r, r.Header.Clone()
		var sent []*http.Request
		u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r)
			return u.answer(r)
		})
		answer, err := u.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, "200: body", inWords(answer))
		require.Equal(t, 1, body.closed)
		require.Equal(t, header, r.Header)
		before.GetBody, r.GetBody = nil, nil // Functions can't be compared.
		require.Equal(t, before, *r)
		require.Len(t, sent, 2)
		require.Same(t, r, sent[0])
		require.NotSame(t, r, sent[1])
		require.Equal(t, header, sent[1].Header)
	})
}

// A context that ends in the line frees its place for the next at once.
func TestACallThatIsCancelledInTheLineIsNotSent(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a", "b", "c")
		u.at(500 * time.Millisecond)
		u.cancel("b")
		u.at(10 * time.Second)
		u.saw("0s a sent", "0s a 200: body", "500ms b cancelled", "1s c sent", "1s c 200: body")
	})
}

// A Shutdown lets the requests in line leave, and refuses newcomers. A Close refuses all.
// Answers to requests that have been sent are still returned.
func TestTransportWhenTheShaperEnds(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.took = 10 * time.Second
		u.call("a", "b", "c")
		go func() { u.note("shut down " + outcome(u.Shutdown(context.Background()))) }()
		synctest.Wait()
		u.call("d")
		u.at(time.Second)
		_ = u.Close()
		u.at(time.Minute)
		u.saw("0s a sent", "0s d closed, retry 2s", "1s b sent", "1s c closed, retry 0s", "1s shut down left",
			"10s a 200: body", "11s b 200: body")
	})
}

// Another Limiter than a Shaper paces as well.
func TestTransportWithTheLimiterOfXTime(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Limiter = rate.NewLimiter(rate.Every(2*time.Second), 1)
		u.script["a"] = []string{"429 Too Many Requests\nRetry-After: 50"} // It can't hold.
		u.call("a", "b")
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 429, retry 50: body", "2s b sent", "2s b 200: body")
	})
}

func TestTransportUsesTheDefaultBase(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = roundTripFunc(func(r *http.Request) (*http.Response, error) {
		return answerOfText("418 I'm a teapot", r)
	})
	r, err := http.NewRequest("GET", "http://upstream/", nil)
	require.NoError(t, err)
	answer, err := shaper.Transport{Limiter: failing(nil)}.RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, "418: body", inWords(answer))
}

// http.Client looks for the method by its name.
func TestTransportClosesIdleConnectionsOfItsBase(t *testing.T) {
	base := &idleBase{}
	(&http.Client{Transport: shaper.Transport{Base: base}}).CloseIdleConnections()
	require.Equal(t, 1, base.closed)
	(&http.Client{Transport: shaper.Transport{Base: roundTripFunc(nil)}}).CloseIdleConnections() // It has none.
}

type idleBase struct {
	http.RoundTripper
	closed int
}

func (b *idleBase) CloseIdleConnections() { b.closed++ }

// What Base returns against its contract is returned unchanged, and keeps no seat.
func TestTransportHandsOnWhatBaseReturns(t *testing.T) {
	playTransport(t, "1/s depth 5 inflight 1", func(u *upstream) {
		both := &http.Response{StatusCode: 429, Body: io.NopCloser(strings.NewReader("")), Header: http.Header{"Retry-After": {"5"}}}
		for _, c := range []struct {
			answer *http.Response
			err    error
		}{{nil, nil}, {both, errUpstream}, {nil, errUpstream}} {
			u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return c.answer, c.err })
			answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
			require.Same(t, c.answer, answer)
			require.Equal(t, c.err, err)
			require.Equal(t, 0, u.Stats().InFlight)
			require.Zero(t, u.Stats().HeldUntil)
		}
	})
}
