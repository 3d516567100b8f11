package shaper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// newLog returns a log that writes lines without their time, because the notes of a stage
// have it.
func newLog(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
}

// noting writes each line as a note of a stage.
type noting struct{ *stage }

func (n noting) Write(line []byte) (int, error) {
	n.note(strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

const refusedLine = `level=WARN msg="shaper: refused" status=429 error="shaper: queue is full" `

func TestAStormOfRefusalsIsOneLineASecond(t *testing.T) {
	play(t, "1 per 1h", func(g *stage) {
		require.True(g.t, g.Allow())
		h := shaper.Middleware(g.Shaper, shaper.WithLogger(newLog(noting{g}, slog.LevelInfo)))(http.NotFoundHandler())
		for i := range 1000 { // 200 a second
			g.at(time.Duration(i) * 5 * ms)
			require.Equal(g.t, 429, answerOf(h, context.Background(), "").StatusCode)
		}
		g.at(time.Minute) // Refusals since the last line are counted in the next line,
		answerOf(h, context.Background(), "")
		g.saw("0s "+refusedLine+"refused=1 retry_after=1h0m0s",
			"1s "+refusedLine+"refused=200 retry_after=59m59s",
			"2s "+refusedLine+"refused=200 retry_after=59m58s",
			"3s "+refusedLine+"refused=200 retry_after=59m57s",
			"4s "+refusedLine+"refused=200 retry_after=59m56s",
			"1m0s "+refusedLine+"refused=200 retry_after=59m0s") // so that each is in some line.
	})
}

func TestAbandonmentIsLoggedForThoseWhoDebug(t *testing.T) {
	for _, row := range []struct {
		level slog.Level
		want  []string
	}{
		{slog.LevelInfo, []string{"300ms b 499, close"}},
		{slog.LevelDebug, []string{`300ms level=DEBUG msg="shaper: client gone" waited=300ms`, "300ms b 499, close"}},
	} {
		t.Run(row.level.String(), func(t *testing.T) {
			play(t, "1/s depth 9", func(g *stage) {
				v := newSite(g, g.Shaper, shaper.WithLogger(newLog(noting{g}, row.level)))
				require.True(g.t, g.Allow())
				v.visit("b")
				g.at(300 * ms)
				v.cancel("b")
				g.saw(row.want...)
			})
		})
	}
}

func TestLogNamesTheErrorOfAnotherLimiter(t *testing.T) {
	var lines bytes.Buffer
	h := shaper.Middleware(failing(errors.New("engine is down")),
		shaper.WithLogger(newLog(&lines, slog.LevelDebug)))(http.NotFoundHandler())
	answerOf(h, t.Context(), "")
	require.Equal(t, `level=WARN msg="shaper: refused" status=503 error="engine is down" refused=1`+"\n", lines.String())
}

// What a client sends must not get into a log, where it may be taken for a line, or kept
// for longer than it should be.
func TestLogSaysNothingOfTheRequest(t *testing.T) {
	const canary = "canary"
	reject := &shaper.RejectError{Reason: shaper.ErrTooLate, RetryAfter: time.Second}
	for _, err := range []error{
		reject,
		fmt.Errorf("key %q: %w", canary, reject),
		context.DeadlineExceeded,
		context.Canceled,
	} {
		var lines bytes.Buffer
		h := shaper.Middleware(failing(err), shaper.WithLogger(newLog(&lines, slog.LevelDebug)))(http.NotFoundHandler())
		for _, gone := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			if gone {
				cancel()
			}
			r := httptest.NewRequestWithContext(ctx, canary, "/"+canary+"?"+canary+"="+canary, strings.NewReader(canary))
			r.Header.Set("X-"+canary, canary)
			r.Host, r.RemoteAddr = canary, canary
			r.SetBasicAuth(canary, canary)
			r.AddCookie(&http.Cookie{Name: canary, Value: canary})
			h.ServeHTTP(httptest.NewRecorder(), r)
			cancel()
		}
		require.NotEmpty(t, lines.String(), "%v", err)
		require.NotContains(t, lines.String(), canary)
	}
}

// stuckWriter is a disk that does not answer.
type stuckWriter struct{ reached, release chan struct{} }

func (w stuckWriter) Write(line []byte) (int, error) {
	close(w.reached)
	<-w.release
	return len(line), nil
}

func TestSlowLogDelaysNoOtherRefusal(t *testing.T) {
	disk := stuckWriter{make(chan struct{}), make(chan struct{})}
	h := shaper.Middleware(failing(shaper.ErrQueueFull), shaper.WithLogger(newLog(disk, slog.LevelInfo)))(http.NotFoundHandler())
	first := make(chan struct{})
	go func() {
		defer close(first)
		answerOf(h, context.Background(), "")
	}()
	<-disk.reached
	second := make(chan int, 1)
	go func() { second <- answerOf(h, context.Background(), "").StatusCode }()
	select {
	case status := <-second:
		require.Equal(t, 429, status)
	case <-time.After(enough):
		t.Error("the second refusal waits for the line of the first")
	}
	close(disk.release)
	realtime.Next(t, first)
}

func TestServerTimingTellsTheWait(t *testing.T) {
	play(t, "4/s depth 1", func(g *stage) {
		timing := func(opts ...shaper.MiddlewareOption) func(path string) {
			opts = append(opts, shaper.WithCost(costInQuery))
			h := shaper.Middleware(g.Shaper, opts...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Add("Server-Timing", "handler;dur=1")
			}))
			return func(path string) {
				go func() {
					answer := answerOf(h, context.Background(), path)
					g.note(fmt.Sprint(answer.StatusCode, answer.Header["Server-Timing"]))
				}()
				synctest.Wait()
			}
		}
		told := timing(shaper.WithServerTiming())
		told("")
		told("") // waits
		told("") // refused
		told("?cost=0")
		g.at(10 * time.Second)
		timing()("")
		g.saw("0s 200 [shaper;dur=0.000 handler;dur=1]",
			"0s 429 [shaper;dur=0.000]",
			"0s 200 [handler;dur=1]",
			"250ms 200 [shaper;dur=250.000 handler;dur=1]",
			"10s 200 [handler;dur=1]")
	})
}

// spreadOf returns how often each Retry-After was given in many answers.
func spreadOf(t *testing.T, l shaper.Limiter, opts ...shaper.MiddlewareOption) map[int]int {
	t.Helper()
	h := shaper.Middleware(l, opts...)(http.NotFoundHandler())
	seen := map[int]int{}
	for range 500 {
		header := answerOf(h, t.Context(), "").Header
		after, err := strconv.Atoi(header.Get("Retry-After"))
		require.NoError(t, err)
		if fields := header.Get("RateLimit"); fields != "" {
			require.Equal(t, fmt.Sprintf(`"default";r=0;t=%d`, after), fields)
		}
		seen[after]++
	}
	return seen
}

// In 500 draws each of 5 values comes up, except in one case of 10⁴⁷.
func TestRetrySpreadReachesBothEndsAndNothingBeyond(t *testing.T) {
	rejected := &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 2*time.Second + 1}
	l := stillLife{shaper.Stats{Limits: shaper.Limits{Rate: rate.Every(time.Hour)}, Level: 1}, rejected}
	keys := func(m map[int]int) (keys []int) {
		for k := range m {
			keys = append(keys, k)
		}
		return keys
	}
	for _, row := range []struct {
		spread time.Duration
		want   []int
	}{
		{0, []int{3}},
		{-time.Hour, []int{3}},
		{time.Second - 1, []int{3}},
		{time.Second, []int{3, 4}},
		{4*time.Second + 999*ms, []int{3, 4, 5, 6, 7}},
	} {
		seen := spreadOf(t, l, shaper.WithRetrySpread(row.spread), shaper.WithRateLimitHeaders())
		require.ElementsMatch(t, row.want, keys(seen), "spread %v", row.spread)
	}
	require.Greater(t, len(spreadOf(t, l, shaper.WithRetrySpread(math.MaxInt64))), 400)
	require.Equal(t, 2*time.Second+1, rejected.RetryAfter)
}

func TestRetrySpreadGivesNoHopeWhereThereIsNone(t *testing.T) {
	h := shaper.Middleware(failing(&shaper.RejectError{Reason: shaper.ErrTooCostly}),
		shaper.WithRetrySpread(time.Minute))(http.NotFoundHandler())
	require.Equal(t, "429", statusLine(answerOf(h, t.Context(), "")))
}

func TestErrorHandlerGetsTheExactRetryAfter(t *testing.T) {
	rejected := &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 3 * time.Second}
	var got error
	seen := spreadOf(t, stillLife{shaper.Stats{Limits: shaper.Limits{Rate: 1}, Level: 1}, rejected},
		shaper.WithRetrySpread(time.Hour), shaper.WithRateLimitHeaders(),
		shaper.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
			got = err
			shaper.WriteError(w, r, err)
		}))
	require.Same(t, rejected, got)
	require.Equal(t, map[int]int{3: 500}, seen)
}
