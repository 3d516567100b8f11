package shaper_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The cap of a foreign Limiter works by its Acquire, whose release is called exactly once:
// it may not bear a second call.
func TestAnotherLimitersSeatIsGivenBackOnce(t *testing.T) {
	for _, tt := range bodyEnds {
		t.Run(tt.name, func(t *testing.T) {
			l := &capped{}
			transport := shaper.Transport{Limiter: l, Base: roundTripFunc(func(*http.Request) (*http.Response, error) { return tt.base() })}
			r, err := http.NewRequest(tt.method, "http://upstream/", nil)
			require.NoError(t, err)
			answer, _ := transport.RoundTrip(r)
			if tt.kept {
				require.Equal(t, 0, l.released)
				tt.then(answer.Body)
				reads(answer.Body)
			}
			require.Equal(t, 1, l.released)

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
			r, err := http.NewRequestWithContext(tt.ctx(), "POST", "http://upstream/", body)
			require.NoError(t, err)
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
	r, err := http.NewRequestWithContext(ctx, "GET", "http://upstream/", nil)
	require.NoError(t, err)
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
