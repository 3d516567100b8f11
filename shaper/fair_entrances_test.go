package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
)

func TestMethodsOfAShaperAreThoseOfTheEmptyKey(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.arriveAll("1", "2", "3")
		g.comes("a1")
		require.Equal(t, []string{" weight 9: 2 cost 2, 0s, at 100ms", "a weight 9: 1 cost 1, 0s, at 200ms"}, g.keys(9))
		g.For("a").Hold(time.Second)
		require.Equal(t, g.start.Add(time.Second), g.For("b").Stats().HeldUntil)
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(func(string) int { return 9 }))
}

// The line of a key has its requests alone, each with the departure that it has in the whole line.
func TestTheLineOfAKeyHasItsRequestsAlone(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z1", "a1", "a2", "b1", "a3")
		all := g.Line(9)
		require.Len(t, all, 4)
		for key, want := range map[string][]watch.Waiter{"a": {all[0], all[2], all[3]}, "b": {all[1]}} {
			require.Equal(t, key, want[0].Key)
			require.Equal(t, want, g.For(key).Line(9))
			require.Equal(t, want[:1], g.For(key).Line(1))
		}
		for _, none := range [][]watch.Waiter{g.For("z").Line(9), g.For("c").Line(9), g.For("a").Line(0), g.For("a").Line(-1)} {
			require.Empty(t, none)
		}
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil))
}

// A chain must tell a caller of a key when it is its turn, and not when the empty key's is.
func TestAChainForecastsForItsKey(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("a1", "a2", "a3", "a4")
		for key, wait := range map[string]time.Duration{"a": 400 * time.Millisecond, "b": 200 * time.Millisecond} {
			got, err := shaper.Chain(g.For(key)).Forecast(1)
			require.NoError(t, err)
			require.Equal(t, wait, got, key)
		}
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil))
}

// Without the option the key makes no difference.
func TestForOfAPlainShaperIsTheShaper(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("a1", "a2", "a3", "b1")
		require.Nil(t, g.Keys(9, watch.ByTurn))
		require.Nil(t, g.Keys(9, watch.ByLength))
		require.Empty(t, g.Line(1)[0].Key)
		require.Equal(t, g.Line(9), g.For("a").Line(9))
		g.at(10 * time.Second)
		g.saw("0s a1 left", "100ms a2 left", "200ms a3 left", "300ms b1 left")
		require.True(t, g.For("a").AllowN(0))
		require.False(t, g.For("a").AllowN(-1))
		_, err := g.For("a").Forecast(-1)
		require.Equal(t, shaper.ErrNegativeCost, err)
	})
}

func TestWhatAFairQueueDoesNotGoTogetherWith(t *testing.T) {
	l := shaper.Limits{Rate: 1, Depth: 1}
	_, err := shaper.New(l, shaper.WithFairQueue(nil), shaper.WithDryRun())
	require.ErrorContains(t, err, "WithDryRun")
	_, err = shaper.New(l, shaper.WithBlock(time.Second), shaper.WithFairQueue(nil))
	require.ErrorContains(t, err, "WithBlock")
	_, err = shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithFairQueue(nil))
	require.ErrorContains(t, err, "WithFairQueue")

	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil })
	require.NoError(t, err)
	plain := mustMake(t, l)
	key := shaper.WithKey(shaper.ByHeader("X-Team"))
	require.PanicsWithValue(t, "shaper: WithKey is for a Middleware in front of a Shaper WithFairQueue; for a bucket for each key use Group.Middleware",
		func() { shaper.Middleware(plain, key) })
	require.Panics(t, func() { shaper.Middleware(plain.For("key"), key) })
	require.Panics(t, func() { g.Middleware(func(*http.Request) (string, error) { return "", nil }, key) })
	_, err = (&http.Client{Transport: shaper.Transport{Limiter: plain, Key: shaper.ByHeader("X-Team")}}).Get("http://127.0.0.1:1")
	require.ErrorContains(t, err, "Transport.Key")
}

// A Middleware lets each request wait as its key.
func TestAMiddlewareTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 10, Depth: 20}, shaper.WithFairQueue(nil)))
		var mu sync.Mutex
		var served []string
		h := shaper.Middleware(s, shaper.WithKey(func(r *http.Request) (string, error) {
			if r.URL.Path == "/broken" {
				return "", errors.New("no key")
			}
			return teamOf(r.URL.Path), nil
		}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			served = append(served, r.URL.Path)
		}))
		for _, path := range []string{"/z", "/a1", "/a2", "/a3", "/b1"} {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
			synctest.Wait()
		}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest("GET", "/broken", nil))
		require.Equal(t, http.StatusInternalServerError, answer.Code)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"/z", "/a1", "/b1", "/a2", "/a3"}, served)
	})
}

// A refuser is a RoundTripper that refuses the first request of some paths.
type refuser func(r *http.Request) int

func (u refuser) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: u(r), Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody, Request: r}, nil
}

// With a shared Bucket the rate is that of all processes, and the keys of each process take turns.
func TestKeysOfEachProcessTakeTurnsWithABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.NewMemory()
		begun := time.Now()
		var mu sync.Mutex
		left := map[string][]string{}
		var last time.Duration
		var calls sync.WaitGroup
		for _, process := range []string{"p", "q"} {
			s := must(shaper.New(shaper.Limits{Rate: 10, Depth: 20}, shaper.WithFairQueue(nil), shaper.WithBucket(bucket, "k", shared.Options{})))
			defer s.Close()
			for _, name := range []string{"z", "a1", "a2", "a3", "a4", "b1", "b2", "c1"} {
				calls.Go(func() {
					if err := s.For(teamOf(name)).Wait(context.Background()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					left[process] = append(left[process], name)
					last = time.Since(begun)
				})
				synctest.Wait()
			}
		}
		calls.Wait()
		for process, names := range left {
			require.Equal(t, []string{"z", "a1", "b1", "c1", "a2", "b2", "a3", "a4"}, names, process)
		}
		require.Len(t, left, 2)
		require.GreaterOrEqual(t, last, 1500*ms, "sixteen requests at 10/s")
	})
}

// A retry of a Transport enters at the head of its own key's line, and not of all.
func TestARetryIsAheadOfItsOwnKeyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 10, Depth: 20}, shaper.WithFairQueue(nil)))
		var mu sync.Mutex
		var sent []string
		start := time.Now()
		transport := shaper.Transport{
			Limiter: s, Retry: true,
			Key: func(r *http.Request) (string, error) {
				if r.URL.Path == "/broken" {
					return "", errors.New("no key")
				}
				return teamOf(r.URL.Path[1:]), nil
			},
			Base: refuser(func(r *http.Request) int {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, fmt.Sprint(time.Since(start), " ", r.URL.Path[1:]))
				if len(sent) == 1 {
					return http.StatusTooManyRequests
				}
				return http.StatusOK
			}),
		}
		for _, name := range []string{"a1", "b1", "b2", "a2", "c1"} {
			go func() {
				r := must(http.NewRequest("GET", "http://upstream/"+name, nil))
				response, err := transport.RoundTrip(r)
				require.NoError(t, err)
				_, _ = io.Copy(io.Discard, response.Body)
			}()
			synctest.Wait() // a1 is refused at once, and its retry enters before the others come.
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"0s a1", "1s a1", "1.1s b1", "1.2s c1", "1.3s a2", "1.4s b2"}, sent)
		_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://upstream/broken", nil))
		require.ErrorContains(t, err, "no key")
	})
}
