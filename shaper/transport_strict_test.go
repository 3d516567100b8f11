package shaper_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// A strict upstream punishes bursts: when two requests come within less than a
// gap, it refuses all for a minute.
type strict struct {
	gap time.Duration

	mu              sync.Mutex
	last            time.Time // zero: none has come yet
	until           time.Time // of the minute
	served, refused int
}

func (u *strict) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if !u.last.IsZero() && now.Sub(u.last) < u.gap {
		u.until = now.Add(time.Minute)
	}
	u.last = now
	if now.Before(u.until) {
		u.refused++
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	u.served++
	_, _ = io.WriteString(w, "ok")
}

// count returns how many requests the upstream has served, and how many refused.
func (u *strict) count() (served, refused int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.served, u.refused
}

// besiege lets 100 goroutines send through one client for a time, each as soon as
// it has the answer to the one before.
func besiege(client *http.Client, address string, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, "GET", address, nil)
				if err != nil {
					panic(err)
				}
				answer, err := client.Do(r)
				if err != nil {
					return // It would leave after the end.
				}
				reads(answer.Body)
				closes(answer.Body)
			}
		})
	}
	all.Wait()
}

// In virtual time an upstream may be as strict as it likes: at exactly the rate that it
// allows, no request is refused and no slot is left unused.
func TestAStrictUpstreamRefusesNobody(t *testing.T) {
	const minute, interval = 60 * time.Second, 20 * time.Millisecond
	for _, shaped := range []bool{true, false} {
		t.Run(map[bool]string{true: "shaped", false: "not"}[shaped], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &strict{gap: interval}
				var transport http.RoundTripper = roundTripFunc(func(r *http.Request) (*http.Response, error) {
					rec := httptest.NewRecorder()
					u.ServeHTTP(rec, r)
					time.Sleep(time.Second) // Many are in flight at any time.
					return rec.Result(), nil
				})
				if shaped {
					s, err := shaper.New(shaper.Limits{Rate: rate.Every(interval), Depth: 100})
					require.NoError(t, err)
					transport = shaper.Transport{Limiter: s, Base: transport}
				}
				besiege(&http.Client{Transport: transport}, "http://upstream/", minute)
				served, refused := u.count()
				if shaped {
					require.Equal(t, 0, refused)
					require.Equal(t, int(minute/interval), served)
				} else {
					require.Equal(t, 1, served)
					require.Greater(t, refused, 5000)
				}
			})
		})
	}
}

// The same over real connections, and for longer if the great counts are wanted. The
// upstream allows half the interval between two arrivals, as the way there takes
// one request longer than the next; the slack is small for the same reason.
//
// If other work keeps the processors busy, a request that has left in time may get none
// for longer than that, and arrive together with the next one. No limiter can prevent
// it: the fault is the machine's, and the run is repeated.
func TestAStrictServerRefusesNobody(t *testing.T) {
	t.Parallel()
	d := time.Duration(rounds(2, 15, 60)) * time.Second
	wrong, stall := "not run", time.Duration(0)
	for runs := 0; wrong != "" && (runs < 4 || runs < 20 && stall > strictInterval/10); runs++ {
		stall = realtime.LongestStall(func() { wrong = strictRun(t, d) })
		t.Log(wrong, stall)
	}
	require.Empty(t, wrong, "in the last run, on a machine that stood still for up to %v", stall)

	u := &strict{gap: strictInterval / 2}
	client, address := manyClient(t), "http://"+openServer(t, u)
	served, refused := 0, 0
	for began := time.Now(); refused <= 20 && time.Since(began) < enough; served, refused = u.count() {
		besiege(client, address, 500*ms)
	}
	require.Greater(t, refused, 20)
	require.Less(t, served, 5)
}

const strictInterval = 200 * time.Millisecond

// strictRun besieges a strict server through a Transport, and returns what was wrong with what
// the server saw: "", or something that may be the fault of the machine. It also checks that the
// requests left as they should, which no machine can change.
func strictRun(t *testing.T, d time.Duration) (wrong string) {
	const slack = 2 * time.Millisecond
	var mu sync.Mutex
	var departures []time.Time
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(strictInterval), Depth: 100, Slack: slack},
		shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			departures = append(departures, e.At)
		}}))
	require.NoError(t, err)
	defer s.Close()
	u := &strict{gap: strictInterval / 2}
	client := manyClient(t)
	client.Transport = &shaper.Transport{Limiter: s, Base: client.Transport}
	besiege(client, "http://"+openServer(t, u), d)

	slices.SortFunc(departures, time.Time.Compare)
	for i := 1; i < len(departures); i++ {
		if d := departures[i].Sub(departures[i-1]); d < strictInterval-slack {
			t.Errorf("a request left %v after another", d)
		}
	}
	served, refused := u.count()
	full := int(d / strictInterval)
	if refused > 0 || served > full || float64(served)+s.Stats().Missed < 0.95*float64(full)-1 {
		return fmt.Sprintf("%d served of %d, %d refused, %v missed", served, full, refused, s.Stats().Missed)
	}
	return ""
}

// manyClient returns a client that keeps a connection for each goroutine of besiege.
func manyClient(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
