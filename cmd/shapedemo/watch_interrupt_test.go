package main

import (
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// With a page open, Ctrl-C must not wait for the stream to end: it would never.
func TestInterruptEndsThePageToo(t *testing.T) {
	t.Parallel()
	p, proxy, page := watched(t, "-limits", "1/s depth 4")
	events := openStream(t, page)
	statuses := clientsOf(4, proxy)
	// All have come: each waits, or has been served. One more may leave meanwhile.
	awaitState(t, page, func(s demoState) bool { return s.Waiting >= 2 && s.Waiting+len(statuses) == 4 })
	p.signals <- os.Interrupt
	p.stdout.awaits(t, `Draining [1-3] waiting requests?`)
	got, _ := ask(t, page+"/api/buckets")
	require.Equal(t, http.StatusOK, got.StatusCode, "the page shows how the line drains")
	status, _ := postTo(t, page, "burst", `{"n":1}`)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, map[int]int{200: 4}, tallyOf(t, 4, statuses))
	require.Equal(t, exitOK, p.ends(t))
	rest, err := io.ReadAll(events)
	require.NoError(t, err, "the stream ends, and is not cut off")
	require.Contains(t, string(rest), "event: bye\n")
	require.Regexp(t, `Drained: [1-3] served, 0 gave up\.\n$`, p.stdout.String())
	require.Empty(t, p.stderr.String())
}

// The herd's clients in the line are served, and the others do not come back.
func TestInterruptInTheMiddleOfAHerd(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "20/s depth 20")
	_, _ = postTo(t, page, "herd", `{"n":200}`)
	awaitState(t, page, func(s demoState) bool { return s.Errand.Refused >= 100 })
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Regexp(t, `Drained: \d+ served, 0 gave up\.\n$`, p.stdout.String())
}

func TestSecondInterruptEndsAHerdAtOnce(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "6/h depth 50")
	_, _ = postTo(t, page, "herd", `{"n":200}`)
	awaitState(t, page, func(s demoState) bool { return s.Waiting == 50 })
	p.signals <- os.Interrupt
	p.stdout.awaits(t, `Draining 50 waiting requests`)
	p.signals <- os.Interrupt
	require.Equal(t, exitInterrupted, p.ends(t))
	require.Contains(t, p.stdout.String(), "Stopped at once; 50 waiting requests got a 503.")
}
