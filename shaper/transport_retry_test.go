package shaper_test

import (
	"context"
	"errors"
	"fmt"
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

const refusedFor30 = "429 Too Many Requests\nRetry-After: 30"

// Requests that were refused keep the order of their refusals. If one of them gives up in
// the line, the others are not affected.
func TestRefusedRequestsKeepTheirOrder(t *testing.T) {
	playTransport(t, "1/s depth 9", func(u *upstream) {
		u.Retry = true
		u.took = 5 * time.Second
		for _, name := range []string{"a", "b", "c", "d"} {
			u.script[name] = []string{refusedFor30}
		}
		u.call("a", "b", "c", "d", "e", "f", "g")
		u.at(5 * time.Second)
		u.saw("0s a sent", "1s b sent", "2s c sent", "3s d sent", "4s e sent", "5s f sent")
		u.at(20 * time.Second)
		u.cancel("d")
		u.at(21 * time.Second)
		u.cancel("b")
		u.at(time.Minute)
		u.saw("9s e 200: body", "10s f 200: body", "20s d cancelled", "21s b cancelled",
			"38s a sent", "39s c sent", "40s g sent", "43s a 200: body", "44s c 200: body", "45s g 200: body")
	})
}

// The second answer is the last, whatever it says, and holds the line as the first did.
func TestRetryIsOnce(t *testing.T) {
	for _, second := range []string{refusedFor30, "503 -\nRetry-After: 30"} {
		t.Run(second, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry = true
				u.script["a"] = []string{refusedFor30, second}
				answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
				require.NoError(t, err)
				require.Equal(t, second[:3], fmt.Sprint(answer.StatusCode))
				require.Equal(t, u.start.Add(time.Minute), u.Stats().HeldUntil)
				u.saw("0s a sent", "30s a sent")
			})
		})
	}
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{refusedFor30, "error"}
		_, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.Equal(t, errUpstream, err)
	})
}

// A request is sent again only after a refusal, which says that it was not processed.
func TestOnlyARefusalIsSentAgain(t *testing.T) {
	for answer, want := range map[string]string{
		"429 -":                             "1s a sent", // Paced by the rate alone.
		refusedFor30:                        "30s a sent",
		"503 -\nRetry-After: 30":            "30s a sent",
		"503 -\nRateLimit: \"a\";r=0;t=30":  "30s a sent",
		"503 -":                             "",
		"503 -\nRetry-After: soon":          "",
		"200 OK\nRateLimit: \"a\";r=0;t=30": "",
		"500 -\nRetry-After: 30":            "",
		"429 -\nRetry-After: 3600":          "1m0s a sent", // MaxHold
		"429 -\nRetry-After: Sat, 01 Jan 2000 00:00 GMT": "1s a sent",
		"error": "",
	} {
		t.Run(answer, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry = true
				u.script["a"] = []string{answer}
				_, _ = u.RoundTrip(u.request(context.Background(), "a", nil))
				if want == "" {
					u.saw("0s a sent")
				} else {
					u.saw("0s a sent", want)
				}
			})
		})
	}
}

// A body is sent again if GetBody returns a second one, and each is closed.
func TestRetrySendsTheBodyAgain(t *testing.T) {
	tests := []struct {
		name    string
		body    io.Reader // nil, NoBody, or what a GetBody is made for
		getBody func() (io.ReadCloser, error)
		want    []string
	}{
		{"none", nil, nil, []string{"0s a sent", "30s a sent"}},
		{"NoBody", http.NoBody, nil, []string{"0s a sent with ", "30s a sent with "}},
		{"of a string", strings.NewReader("x"), nil, []string{"0s a sent with x", "30s a sent with x"}},
		{"without GetBody", io.LimitReader(strings.NewReader("x"), 1), nil, []string{"0s a sent with x"}},
		{"with a GetBody that fails", io.LimitReader(strings.NewReader("x"), 1),
			func() (io.ReadCloser, error) { return nil, errUpstream }, []string{"0s a sent with x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry = true
				u.script["a"] = []string{refusedFor30}
				r := u.request(context.Background(), "a", tt.body)
				if tt.getBody != nil {
					r.GetBody = tt.getBody
				}
				answer, err := u.RoundTrip(r)
				require.NoError(t, err)
				if len(tt.want) == 1 {
					require.Equal(t, "429, retry 30: body", inWords(answer))
				} else {
					require.Equal(t, "200: body", inWords(answer))
				}
				u.saw(tt.want...)
			})
		})
	}
}

// A request that waits for its retry is not in flight: with a cap of 1 no request could
// ever leave otherwise.
func TestRetryGivesTheSeatBackFirst(t *testing.T) {
	playTransport(t, "1/s depth 5 inflight 1", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{refusedFor30}
		u.fetch("a")
		require.Equal(t, 0, u.Stats().InFlight)
		require.Equal(t, 1, u.Stats().Waiting)
		u.fetch("b")
		u.at(time.Minute)
		u.saw("0s a sent", "30s a sent", "30s a 200")
		closes(u.body("a"))
		u.saw("1m0s b sent", "1m0s b 200")
		closes(u.body("b"))
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// If the Limiter has no Hold, only this request waits for the time that the refusal asks
// for, and then for the limiter as any other.
func TestRetryWithALimiterThatCanNotHold(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.Limiter = rate.NewLimiter(rate.Every(20*time.Second), 1)
		u.script["a"] = []string{refusedFor30}
		u.call("a", "b", "c")
		u.at(time.Hour)
		u.saw("0s a sent", "20s b sent", "20s b 200: body", "40s c sent", "40s c 200: body",
			"1m0s a sent", "1m0s a 200: body")
	})
}

// A request of cost 0 does not wait in line, so its retry would be sent at once.
func TestARequestOfNoCostIsNotSentAgain(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.Cost = func(*http.Request) int { return 0 }
		u.script["a"] = []string{refusedFor30}
		u.call("a")
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 429, retry 30: body")
	})
}

// With a cap a request keeps its seat until its answer has ended, whatever the rate would
// allow.
func TestASeatIsFreeWhenTheBodyHasEnded(t *testing.T) {
	playTransport(t, "inf depth 9 inflight 1", func(u *upstream) {
		u.fetch("a", "b", "c", "d")
		u.at(time.Second)
		u.saw("0s a sent", "0s a 200")

		body := u.body("a")
		_, err := io.ReadFull(body, make([]byte, 4)) // This is the whole body, but its end has not been read.
		require.NoError(t, err)
		u.at(2 * time.Second)
		u.saw()
		_, err = body.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		u.saw("2s b sent", "2s b 200")
		require.NoError(t, body.Close()) // The seat is b's by now.
		_, err = body.Read(make([]byte, 1))
		require.Error(t, err)
		u.saw()
		require.Equal(t, 1, u.Stats().InFlight)

		u.at(3 * time.Second)
		require.NoError(t, u.body("b").Close()) // Unread.
		require.NoError(t, u.body("b").Close())
		u.saw("3s c sent", "3s c 200")
		require.Equal(t, 1, u.Stats().InFlight)

		closes(u.body("c"))
		u.saw("3s d sent", "3s d 200")
		closes(u.body("d"))
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// bodyEnds are the answers that a Base may give, how the caller treats them, and whether the seat
// is kept until then.
var bodyEnds = []struct {
	name   string
	method string
	base   func() (*http.Response, error)
	kept   bool
	then   func(body io.ReadCloser)
}{
	{"no answer", "GET", func() (*http.Response, error) { return nil, errUpstream }, false, nil},
	{"no body", "GET", func() (*http.Response, error) { return &http.Response{StatusCode: 200}, nil }, false, nil},
	{"NoBody", "GET", func() (*http.Response, error) { return &http.Response{StatusCode: 200, Body: http.NoBody}, nil }, false, nil},
	{"HEAD", "HEAD", func() (*http.Response, error) { return textAnswer(200), nil }, false, nil},
	{"204", "GET", func() (*http.Response, error) { return textAnswer(204), nil }, false, nil},
	{"304", "GET", func() (*http.Response, error) { return textAnswer(304), nil }, false, nil},
	{"a length that nobody has set", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, closes},
	{"read to its end", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, reads},
	{"an error is read to its end", "GET", func() (*http.Response, error) { return textAnswer(500), nil }, true, reads},
	{"reading fails", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(io.MultiReader(strings.NewReader("x"), errorReader{}))}, nil
	}, true, reads},
	{"closing fails", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: errorReader{}}, nil
	}, true, closes},
	{"closing panics", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: panicCloser{}}, nil
	}, true, func(body io.ReadCloser) {
		defer func() { _ = recover() }()
		closes(body)
	}},
	{"closed from all sides", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, func(body io.ReadCloser) {
		done := make(chan struct{})
		for range 4 {
			go func() { closes(body); done <- struct{}{} }()
		}
		for range 4 {
			<-done
		}
	}},
}

func textAnswer(status int) *http.Response {
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("body"))}
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errUpstream }
func (errorReader) Close() error             { return errUpstream }

type panicCloser struct{ errorReader }

func (panicCloser) Close() error { panic("closing") }

func closes(body io.ReadCloser) { _ = body.Close() }
func reads(body io.ReadCloser)  { _, _ = io.Copy(io.Discard, body) }

// The request ends with Close, so the seat is free only when Close has returned.
func TestASeatIsKeptWhileTheBodyIsBeingClosed(t *testing.T) {
	playTransport(t, "inf inflight 1", func(u *upstream) {
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: slowCloser{}}, nil
		})
		answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		go closes(answer.Body)
		u.at(time.Second - 1)
		require.Equal(t, 1, u.Stats().InFlight)
		u.at(time.Second)
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

type slowCloser struct{ errorReader }

func (slowCloser) Close() error { time.Sleep(time.Second); return nil }

// A panic of Base gives the seat back.
func TestASeatIsGivenBackIfBasePanics(t *testing.T) {
	playTransport(t, "inf inflight 1", func(u *upstream) {
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { panic("base") })
		require.PanicsWithValue(t, "base", func() { _, _ = u.RoundTrip(u.request(context.Background(), "a", nil)) })
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// Without a seat to give back, the body of an answer is as the Base made it.
func TestWithoutACapTheBodyIsLeftAlone(t *testing.T) {
	playTransport(t, "inf", func(u *upstream) {
		answer := &http.Response{StatusCode: 200, Body: panicCloser{}}
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return answer, nil })
		_, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		require.Equal(t, panicCloser{}, answer.Body)
	})
}

// When a request is refused and asked to hold back, its seat becomes free only after the
// line is held, even if the refusal has no body.
func TestTheHoldComesBeforeTheSeatIsFree(t *testing.T) {
	playTransport(t, "inf depth 5 inflight 1", func(u *upstream) {
		u.took = time.Second
		u.script["a"] = []string{"429 -\nRetry-After: 30\nContent-Length: 0"}
		u.call("a", "b")
		u.at(time.Minute)
		u.saw("0s a sent", "1s a 429, retry 30: ", "31s b sent", "32s b 200: body")
	})
}

// Shutting down does not wait for bodies, and closing them afterwards is fine.
func TestABodyMayOutliveItsShaper(t *testing.T) {
	playTransport(t, "inf depth 5 inflight 1", func(u *upstream) {
		u.fetch("a")
		u.call("b")
		u.at(time.Second)
		_ = u.Close()
		synctest.Wait()
		reads(u.body("a"))
		u.saw("0s a sent", "0s a 200", "1s b closed, retry 0s")
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

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
