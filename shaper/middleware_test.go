package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

var (
	_ shaper.Limiter = (*shaper.Shaper)(nil)
	_ shaper.Limiter = (*rate.Limiter)(nil)
)

func TestMiddlewareDelaysInsteadOfRejecting(t *testing.T) {
	play(t, "4/s depth 3", func(g *stage) {
		v := newSite(g, g.Shaper)
		for _, name := range []string{"a", "b", "c", "d"} {
			v.visit(name)
		}
		g.at(time.Minute)
		g.saw("0s a runs", "0s a 200",
			"250ms b runs", "250ms b 200",
			"500ms c runs", "500ms c 200",
			"750ms d runs", "750ms d 200")
	})
}

// There is one row for each of the answers that a Shaper can lead to. Where a row has no
// note of a handler, none has run.
func TestMiddlewareAnswersByTheTable(t *testing.T) {
	ended := func(err error) context.Context {
		if err == context.Canceled {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}
		ctx, cancel := context.WithTimeout(context.Background(), -1)
		cancel()
		return ctx
	}
	for _, row := range []struct {
		name, limits string
		timeline     func(v *site)
		saw          []string
	}{
		{"queue full", "1 per 3s depth 1", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.visit("c")
		}, []string{"0s a runs", "0s a 200", "0s c 429, retry 3", "3s b runs", "3s b 200"}},

		{"queue full without a line", "1 per 3s", func(v *site) {
			v.visit("a")
			v.at(500 * ms)
			v.visit("b")
		}, []string{"0s a runs", "0s a 200", "500ms b 429, retry 3"}},

		{"too late for MaxWait", "1/s depth 9 wait 500ms", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.at(500 * ms)
			v.visit("c")
		}, []string{"0s a runs", "0s a 200", "0s b 429, retry 1", "1s c runs", "1s c 200"}},

		{"too late for the request's deadline", "1 per 10s depth 9", func(v *site) {
			v.visit("a")
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			v.visitWith(ctx, "b")
		}, []string{"0s a runs", "0s a 200", "0s b 429, retry 9"}},

		{"too costly", "1/s", func(v *site) {
			v.visit("a?cost=2")
		}, []string{"0s a 429"}},

		{"closed", "1 per 2s depth 9", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.visit("c")
			go func() {
				if err := v.Shutdown(context.Background()); err != nil {
					v.t.Error(err)
				}
			}()
			synctest.Wait()
			v.visit("d")
		}, []string{"0s a runs", "0s a 200", "0s d 503, retry 4",
			"2s b runs", "2s b 200", "4s c runs", "4s c 200"}},

		{"closed while it waits", "1/s depth 9", func(v *site) {
			v.visit("a")
			v.visit("b")
			require.NoError(v.t, v.Close())
		}, []string{"0s a runs", "0s a 200", "0s b 503, retry 1"}},

		{"deadline that ends the wait", "1/s depth 9", func(v *site) {
			v.visit("a")
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			v.visitWith(ctx, "b")
			v.set("1 per 10s depth 9")
			v.at(5 * time.Second)
		}, []string{"0s a runs", "0s a 200", "2s b 503, retry 1"}},

		{"deadline before the wait", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.DeadlineExceeded), "a")
		}, []string{"0s a 503, retry 1"}},

		{"negative cost", "1/s depth 9", func(v *site) {
			v.visit("a?cost=-1")
		}, []string{"0s a 500"}},

		{"negative cost of a client that has gone", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.Canceled), "a?cost=-1")
		}, []string{"0s a 500"}},

		{"client gone while it waits", "1/s depth 9", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.at(300 * ms)
			v.cancel("b")
		}, []string{"0s a runs", "0s a 200", "300ms b 499, close"}},

		{"client gone before it waits", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.Canceled), "a")
		}, []string{"0s a 499, close"}},

		{"cost 0 where nothing else passes", "1/s", func(v *site) {
			require.NoError(v.t, v.Close())
			v.visitWith(ended(context.Canceled), "a?cost=0")
		}, []string{"0s a runs", "0s a 200"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, row.limits, func(g *stage) {
				row.timeline(newSite(g, g.Shaper))
				g.at(time.Hour)
				g.saw(row.saw...)
			})
		})
	}
}

func TestGoneClientsPlaceAndSlotGoToTheNextAtOnce(t *testing.T) {
	play(t, "1/s depth 2", func(g *stage) {
		v := newSite(g, g.Shaper)
		v.visit("a")
		v.visit("gone")
		v.visit("b")
		v.visit("refused")
		g.at(400 * ms)
		v.cancel("gone")
		v.visit("c") // The place is free in the same instant,
		g.at(time.Minute)
		g.saw("0s a runs", "0s a 200", "0s refused 429, retry 1",
			"400ms gone 499, close",
			"1s b runs", "1s b 200", // and so is the slot.
			"2s c runs", "2s c 200")
		require.Equal(t, uint64(1), g.Stats().Abandoned)
		require.Equal(t, uint64(1), g.Stats().Refused)
	})
}

func TestRunningHandlersHoldUpNobody(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		h := shaper.Middleware(g.Shaper)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 10 { // A stream, of 10 s.
				_, _ = io.WriteString(w, "data\n")
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}))
		v := &site{g, h}
		v.visit("a")
		v.visit("b")
		v.visit("c")
		g.at(5 * time.Second)
		require.Equal(t, uint64(3), g.Stats().Departed)
		g.at(time.Minute)
		g.saw("10s a 200", "11s b 200", "12s c 200")
	})
}

// A lone client that waits for exactly Retry-After is admitted, whatever state the shaper
// was in when it refused the request.
func TestRetryAfterIsHonest(t *testing.T) {
	const states = 400
	refusals := 0
	for seed := range uint64(states) {
		random := rand.New(rand.NewPCG(seed, 1))
		limits := shaper.Limits{
			Rate:    []rate.Limit{7, 1, 0.3, 20. / 60, rate.Every(3 * time.Second)}[random.IntN(5)],
			Burst:   random.IntN(4),
			Depth:   random.IntN(6),
			MaxWait: time.Duration(random.IntN(2)) * time.Duration(random.Int64N(int64(20*time.Second))),
		}
		playLimits(t, limits, func(g *stage) {
			v := newSite(g, g.Shaper)
			for i := range random.IntN(10) {
				time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
				v.visitWith(context.Background(), fmt.Sprintf("line%d?cost=%d", i, 1+random.IntN(5)))
			}
			path := fmt.Sprintf("lone?cost=%d", 1+random.IntN(5))
			patience := time.Duration(random.Int64N(int64(time.Minute)))
			if random.IntN(2) == 0 {
				patience = time.Hour
			}
			try := func() *http.Response {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				return answerOf(v, ctx, path)
			}
			first := try()
			after := first.Header.Get("Retry-After")
			if after != "" {
				refusals++
				require.Equal(t, http.StatusTooManyRequests, first.StatusCode)
				seconds, err := strconv.Atoi(after)
				require.NoError(t, err)
				time.Sleep(time.Duration(seconds) * time.Second)
				require.Equal(t, http.StatusOK, try().StatusCode, "seed %d, %v, %s within %v", seed, limits, path, patience)
			}
			require.NoError(t, g.Close())
			synctest.Wait()
		})
	}
	require.Greater(t, refusals, states/4, "too few states refuse for this to say much")
}

// Errors that a Shaper does not return itself, or not in this form.
func TestMiddlewareAnswersErrorsOfAnyLimiter(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithTimeout(context.Background(), -1)
	defer cancel()
	full := &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 5 * time.Second}

	for _, row := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"unknown", t.Context(), errors.New("engine is down"), "503, retry 1"},
		{"unknown, client gone", gone, errors.New("engine is down"), "499, close"},
		{"unknown, outer deadline", expired, errors.New("engine is down"), "503, retry 1"},
		{"cancelled, client gone", gone, context.Canceled, "499, close"},
		{"cancelled, client still there", t.Context(), context.Canceled, "503, retry 1"},
		{"deadline, client still there", t.Context(), context.DeadlineExceeded, "503, retry 1"},
		{"refusal, client gone since", gone, full, "429, retry 5"},
		{"refusal, wrapped", t.Context(), fmt.Errorf("upstream: %w", full), "429, retry 5"},
		{"reason without a RejectError", t.Context(), shaper.ErrTooLate, "429, retry 1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handler ran") })
			h := shaper.Middleware(failing(row.err))(never)
			require.Equal(t, row.want, statusLine(answerOf(h, row.ctx, "")))
		})
	}
}

func TestMiddlewareWithRateLimiterOfXTime(t *testing.T) {
	play(t, "inf", func(g *stage) {
		l := rate.NewLimiter(1, 2)
		v := newSite(g, l)
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		v.visit("a?cost=2")
		v.visit("b")
		v.visitWith(short, "late")
		v.visit("dear?cost=3")
		v.visit("negative?cost=-100")
		v.visit("gone")
		v.cancel("gone")
		v.visit("c")
		g.at(time.Minute)
		g.saw("0s a runs", "0s a 200",
			"0s late 503, retry 1", // "would exceed context deadline"
			"0s dear 503, retry 1", // "exceeds limiter's burst"
			"0s negative 500",      // The limiter would let more through after it.
			"0s gone 499, close",
			"1s b runs", "1s b 200",
			"2s c runs", "2s c 200")
	})
}

// net/http ends the context of a client that closes its sending half, and would
// answer an empty 200 if nothing else were written.
func TestHalfClosedClientReadsNoSuccess(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: 1})
	require.NoError(t, err)
	defer s.Close()
	waiting := make(chan struct{})
	l := limiterFunc(func(ctx context.Context, n int) error {
		close(waiting)
		return s.WaitN(ctx, n)
	})
	addr := openServer(t, shaper.Middleware(l)(http.NotFoundHandler()))
	require.True(t, s.Allow()) // The next slot is an hour off.

	v := visitOn(t, dial(t, addr), get("/"))
	realtime.Next(t, waiting)
	v.closeHalf()
	answer, body := v.answer()
	require.Equal(t, 499, answer.StatusCode)
	require.True(t, answer.Close)
	require.Empty(t, body)
}
