package caddyshaper_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
)

// logged returns a logger, and a function that returns its lines since it was asked last.
func logged() (log *slog.Logger, lines func() []string) {
	var text lockedText
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey && strings.HasPrefix(a.Value.String(), "requests") {
			return slog.Attr{}
		}
		return a
	}}
	return slog.New(slog.NewTextHandler(&text, plain)), func() []string {
		text.mu.Lock()
		defer text.mu.Unlock()
		defer text.Reset()
		return slices.Collect(strings.Lines(text.String()))
	}
}

// A lockedText is written by the goroutines of timers.
type lockedText struct {
	mu sync.Mutex
	strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

// Requests that were refused in the last second of an outage were told at the next one, as if they
// had been refused then, and as of the status that came first.
func TestNoRefusalIsToldInTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		note, end := caddyshaper.NewFailureLog(log)
		away, gone := errors.New("away"), errors.New("gone")

		note(503, away)
		require.Equal(t, []string{"status=503 error=away refused=1\n"}, lines())
		for range 700 {
			note(503, away)
		}
		note(503, gone)
		require.Empty(t, lines())
		note(500, away)
		require.Equal(t, []string{"status=500 error=away refused=1\n"}, lines(), "each status has its count")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"status=503 error=gone refused=701\n"}, lines())
		note(503, away)
		require.Empty(t, lines(), "there was a line just now")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"status=503 error=away refused=1\n"}, lines())

		time.Sleep(time.Hour)
		require.Empty(t, lines())
		note(503, gone)
		require.Equal(t, []string{"status=503 error=gone refused=1\n"}, lines())
		note(503, gone)
		end()
		require.Equal(t, []string{"status=503 error=gone refused=1\n"}, lines(), "a reload loses none")
		time.Sleep(time.Hour)
		require.Empty(t, lines())
	})
}

// go-redis tells of each connection that fails, which are hundreds a second in an outage.
func TestTheClientOfRedisFloodsNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		printf := caddyshaper.NewRedisLog(log)
		for k := range 5000 { // a millisecond apart
			printf(t.Context(), "dial %d failed", k)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		all := lines()
		require.LessOrEqual(t, len(all), 7)
		sum := 0
		for _, line := range all {
			var dial, count int
			_, err := fmt.Sscanf(line, `msg="dial %d failed" lines=%d`, &dial, &count)
			require.NoError(t, err)
			sum += count
			require.Equal(t, dial+1, sum, "it is the latest of them")
		}
		require.Equal(t, 5000, sum)
	})
}
