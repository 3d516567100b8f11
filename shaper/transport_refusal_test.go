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
				content, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
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

// If the limiter gives up before the retry, the caller gets the first answer and not the
// limiter's error.
func TestRetryWhoseLimiterFails(t *testing.T) {
	times := 0
	l := limiterFunc(func(context.Context, int) error {
		if times++; times == 1 {
			return nil
		}
		return errors.New("engine down")
	})
	transport := shaper.Transport{Limiter: l, Retry: true, Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
		return answerOfText("429 -", r)
	})}
	r, err := http.NewRequest("GET", "http://upstream/", nil)
	require.NoError(t, err)
	answer, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, "429: body", inWords(answer))
}
