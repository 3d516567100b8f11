package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// The tests of this file ask what net/http makes of a Transport, and the Transport
// of net/http's answers, over real connections.

// through puts a Transport in front of the client's own, with so many seats.
func through(t testing.TB, client *http.Client, inFlight int) *shaper.Shaper {
	t.Helper()
	s := must(shaper.New(shaper.Limits{Rate: rate.Inf, Depth: 10, InFlight: inFlight}))
	t.Cleanup(func() { _ = s.Close() })
	client.Transport = &shaper.Transport{Limiter: s, Base: client.Transport}
	return s
}

// sizes answers with as many bytes as the path says.
var sizes = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	size := map[string]int{"/none": 0, "/few": 100, "/many": 1 << 20}[r.URL.Path]
	_, _ = io.WriteString(w, strings.Repeat("x", size))
})

// If the header of an answer shows that there is no body, the request ends with the
// header, in each protocol of net/http. Otherwise it ends with the body.
func TestAnswersEndWithTheirBodies(t *testing.T) {
	for _, k := range connectionKinds {
		t.Run(k.name, func(t *testing.T) {
			client, address := k.open(t, sizes)
			s := through(t, client, 1)
			for _, path := range []string{"/none", "/few", "/many"} {
				answer, err := client.Head(address + path)
				require.NoError(t, err)
				require.Equal(t, 0, s.Stats().InFlight, "HEAD")
				closes(answer.Body)

				answer, err = client.Get(address + path)
				require.NoError(t, err)
				if path == "/none" {
					require.Equal(t, 0, s.Stats().InFlight)
				} else {
					require.Equal(t, 1, s.Stats().InFlight)
					_, err = io.Copy(io.Discard, answer.Body)
					require.NoError(t, err)
					require.Equal(t, 0, s.Stats().InFlight, "read to its end")
				}
				require.NoError(t, answer.Body.Close())

				answer, err = client.Get(address + path)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				require.Equal(t, 0, s.Stats().InFlight, "closed")
			}
		})
	}
}

// The client closes the body of each hop of a redirect, so the next hop finds the single
// seat free. Each hop is paced.
func TestRedirectsAreRequestsOfTheirOwn(t *testing.T) {
	site := http.NewServeMux()
	site.Handle("/a", http.RedirectHandler("/b", http.StatusFound))
	site.HandleFunc("/b", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/c")
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20)) // More than a client reads of it.
	})
	site.HandleFunc("/c", echo)
	client := newClient(t)
	s := through(t, client, 1)
	require.Equal(t, "200: ", postTo(client, "http://"+openServer(t, site)+"/a", strings.NewReader("hello")))
	require.Equal(t, uint64(3), s.Stats().Departed)
	require.Equal(t, 0, s.Stats().InFlight)
}

// An upgraded connection is the body of its answer: it can be written to, its halves can
// be closed, and it keeps a seat until it ends.
func TestAnUpgradedConnectionKeepsItsSeat(t *testing.T) {
	address := "http://" + openServer(t, duplexSite(nil))
	for _, end := range []string{"closed", "closed by halves"} {
		t.Run(end, func(t *testing.T) {
			client := newClient(t)
			client.Timeout = 0 // It would hide the connection behind a timer.
			s := through(t, client, 1)
			r := must(http.NewRequest("GET", address+"/ws", nil))
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
			answer, err := client.Do(r)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
			conn := answer.Body.(io.ReadWriteCloser)
			_, err = io.WriteString(conn, "ping")
			require.NoError(t, err)
			back := make([]byte, 4)
			_, err = io.ReadFull(conn, back)
			require.NoError(t, err)
			require.Equal(t, "ping", string(back))
			require.Equal(t, 1, s.Stats().InFlight)
			if end == "closed by halves" {
				require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
				_, err = io.ReadAll(conn)
				require.NoError(t, err)
				require.Equal(t, 0, s.Stats().InFlight)
			}
			require.NoError(t, conn.Close())
			require.Equal(t, 0, s.Stats().InFlight)
		})
	}
	// If the halves can't be closed, CloseWrite returns an error, as net/http's own does.
	playTransport(t, "inf inflight 1", func(u *upstream) {
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: writableBody{}}, nil
		})
		answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		require.ErrorIs(t, answer.Body.(interface{ CloseWrite() error }).CloseWrite(), http.ErrNotSupported)
		closes(answer.Body)
	})
}

type writableBody struct {
	errorReader
	io.Writer
}

// The cap of any Limiter works by its Acquire, whose release is called exactly once, however the
// answer ends: a foreign one may not bear a second call.
func TestASeatIsGivenBackOnceHoweverTheAnswerEnds(t *testing.T) {
	for _, tt := range bodyEnds {
		t.Run(tt.name, func(t *testing.T) {
			l := &capped{}
			s := limitedInFlight(t, 1, 0)
			transport := shaper.Transport{Limiter: shaper.Chain(l, s), Base: roundTripFunc(func(*http.Request) (*http.Response, error) { return tt.base() })}
			r, err := http.NewRequest(tt.method, "http://upstream/", nil)
			require.NoError(t, err)
			for _, limiter := range []shaper.Limiter{l, s, shaper.Chain(l, s)} {
				l.released, transport.Limiter = 0, limiter
				answer, _ := transport.RoundTrip(r)
				if tt.kept {
					require.Zero(t, l.released)
					require.Equal(t, limiter != l, s.Stats().InFlight == 1)
					tt.then(answer.Body)
					reads(answer.Body)
				}
				require.Equal(t, limiter != s, l.released == 1)
				require.Zero(t, s.Stats().InFlight)
			}
			l.err = errUpstream
			_, err = transport.RoundTrip(r)
			require.Equal(t, errUpstream, err)
			require.Equal(t, 1, l.released)
		})
	}
}

// capped is a Limiter with seats.
type capped struct {
	released int
	err      error
}

func (c *capped) WaitN(context.Context, int) error { return errors.New("Acquire is there") }
func (c *capped) Acquire(context.Context, int) (func(), error) {
	return func() { c.released++ }, c.err
}

// A Limiter that gives seats by Acquire need not look at the context. If the context has
// ended, the Transport gives the seat back.
func TestAnotherLimitersSeatIsGivenBackIfTheContextHasEnded(t *testing.T) {
	for _, tt := range []struct {
		name string
		ctx  func() context.Context
		want func(t *testing.T, call func() error)
	}{
		{"ended", func() context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}, func(t *testing.T, call func() error) { require.Equal(t, context.Canceled, call()) }},
		{"panics", func() context.Context { return panicContext{context.Background()} },
			func(t *testing.T, call func() error) {
				require.PanicsWithValue(t, "context", func() { _ = call() })
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &capped{}
			transport := shaper.Transport{Limiter: l, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
				t.Error("sent")
				return nil, errUpstream
			})}
			body := &sentBody{Reader: strings.NewReader("x")}
			r := must(http.NewRequestWithContext(tt.ctx(), "POST", "http://upstream/", body))
			tt.want(t, func() error {
				answer, err := transport.RoundTrip(r)
				require.Nil(t, answer)
				require.Equal(t, 1, body.closed)
				return err
			})
			require.Equal(t, 1, l.released)
		})
	}
}

type panicContext struct{ context.Context }

func (panicContext) Err() error { panic("context") }

// Such a Limiter may also return a nil release.
func TestTransportBearsANilRelease(t *testing.T) {
	transport := shaper.Transport{Limiter: noRelease{}, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
		return textAnswer(200), nil
	})}
	ctx, cancel := context.WithCancel(context.Background())
	r := must(http.NewRequestWithContext(ctx, "GET", "http://upstream/", nil))
	answer, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, "200: body", inWords(answer))
	cancel()
	_, err = transport.RoundTrip(r)
	require.Equal(t, context.Canceled, err)
}

// A type that embeds a Shaper and has a WaitN of its own also has the Shaper's Acquire.
// Its WaitN is called all the same, unless there is a cap, which only Acquire keeps.
func TestTransportAsksTheWaitNThatIsAboutAShapers(t *testing.T) {
	for limits, want := range map[string]int{"1/s depth 5": 1, "1/s depth 5 inflight 1": 0} {
		t.Run(limits, func(t *testing.T) {
			playTransport(t, limits, func(u *upstream) {
				asked := 0
				u.Limiter = ownWait{u.Shaper, &asked}
				answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
				require.NoError(t, err)
				require.Equal(t, want, asked)
				require.Equal(t, 1-want, u.Stats().InFlight)
				closes(answer.Body)
				require.Equal(t, 0, u.Stats().InFlight)
			})
		})
	}
}

// When a request is sent again, such a Limiter is asked as for a newcomer, because it has
// no way to enter at the head. The hold is that of the Shaper inside.
func TestAShaperInsideIsAskedAnewForARetry(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		asked := 0
		u.Limiter = ownWait{u.Shaper, &asked}
		u.script["a"] = []string{refusedFor30}
		u.took = time.Millisecond
		u.call("a", "b")
		u.at(time.Hour)
		u.saw("0s a sent", "30.001s b sent", "30.002s b 200: body", "31.001s a sent", "31.002s a 200: body")
		require.Equal(t, 3, asked)
	})
}

// A refusal is kept while its request waits to be sent again, as it may have to
// be returned after all.

// A request that can't be sent again comes back at once with the refusal, which
// can still be read, and its second body is closed.
func TestARefusalIsReturnedIfTheRequestCanNotBeSentAgain(t *testing.T) {
	tests := []struct {
		name string
		ends func(u *upstream) (ctx context.Context)
		want []string
		had  int // how often its second body has been asked for
	}{
		{"its time would not suffice", func(u *upstream) context.Context {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			u.cancels["a"] = cancel
			return ctx
		}, []string{"0s a sent with x", "0s a 429, retry 30: body"}, 0},
		{"the shaper is closed", func(u *upstream) context.Context {
			time.AfterFunc(10*time.Second, func() { _ = u.Close() })
			return context.Background()
		}, []string{"0s a sent with x", "10s a 429, retry 30: body"}, 1},
		{"the context ends", func(u *upstream) context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Second, cancel)
			return ctx
		}, []string{"0s a sent with x", "10s a cancelled"}, 1},
	}
	for _, l := range []string{"shaper", "of x/time"} {
		for _, tt := range tests {
			t.Run(l+"/"+tt.name, func(t *testing.T) {
				if l != "shaper" && tt.name == "the shaper is closed" {
					t.Skip("it can't be closed")
				}
				playTransport(t, "1/s depth 3", func(u *upstream) {
					u.Retry = true
					if l != "shaper" {
						u.Limiter = rate.NewLimiter(1, 1)
					}
					u.script["a"] = []string{refusedFor30}
					second, had := &sentBody{Reader: strings.NewReader("x")}, 0
					r := u.request(tt.ends(u), "a", strings.NewReader("x"))
					r.GetBody = func() (io.ReadCloser, error) { had++; return second, nil }
					u.callWith(r, true)
					u.at(time.Minute)
					u.saw(tt.want...)
					require.Equal(t, had, second.closed)
					require.Equal(t, tt.had, had)
					for _, cancel := range u.cancels {
						cancel()
					}
				})
			})
		}
	}
}

// A refusal is kept in memory while its request waits, up to 64 KiB. A longer
// one is returned whole.
func TestRetryKeepsARefusalThatIsShort(t *testing.T) {
	for length, sent := range map[int]int{64 << 10: 2, 64<<10 + 1: 1, 1 << 20: 1} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
				u.Retry = true
				times := 0
				var bodies []*sentBody
				u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
					times++
					body := &sentBody{Reader: strings.NewReader(strings.Repeat("x", length))}
					bodies = append(bodies, body)
					return &http.Response{StatusCode: 429, Body: body}, nil
				})
				second := &sentBody{Reader: strings.NewReader("x")}
				r := u.request(context.Background(), "a", strings.NewReader("x"))
				r.GetBody = func() (io.ReadCloser, error) { return second, nil }
				answer, err := u.RoundTrip(r)
				require.NoError(t, err)
				require.Equal(t, sent, times)
				require.Equal(t, 1, u.Stats().InFlight)
				content := must(io.ReadAll(answer.Body))
				require.Len(t, content, length)
				require.NoError(t, answer.Body.Close())
				require.Equal(t, 0, u.Stats().InFlight)
				for _, body := range bodies {
					require.Equal(t, 1, body.closed)
				}
				require.Equal(t, 2-sent, second.closed) // The recording Base above closes none.
			})
		})
	}
}

// A refusal need not have a body, where the Base is not net/http's.
func TestRetryAfterARefusalWithoutABody(t *testing.T) {
	playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
		u.Retry = true
		u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
			_, err := u.answer(r)
			return &http.Response{StatusCode: 429}, err
		})
		answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		require.Nil(t, answer.Body)
		u.saw("0s a sent", "1s a sent")
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// A refusal whose body breaks off is one all the same; if it is returned, it
// breaks off at the same place.
func TestRetryAfterARefusalThatBreaksOff(t *testing.T) {
	broken := func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"30"}},
			Body: io.NopCloser(io.MultiReader(strings.NewReader("half"), errorReader{}))}, nil
	}
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.Retry = true
		u.Base = roundTripFunc(broken)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		answer, err := u.RoundTrip(u.request(ctx, "a", nil))
		require.NoError(t, err)
		content, err := io.ReadAll(answer.Body)
		require.Equal(t, "half", string(content))
		require.Equal(t, errUpstream, err)
	})
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.Retry = true
		times := 0
		u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if times++; times == 1 {
				return broken(r)
			}
			return u.answer(r)
		})
		u.call("a")
		u.at(time.Minute)
		u.saw("30s a sent", "30s a 200: body")
	})
}
