package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVanishersAreSpreadOverTheBurst(t *testing.T) {
	m := meaningOf(limitsOf(t, "50/s depth 100"))
	for percent, want := range map[int]int{0: 0, 1: 1, 33: 49, 50: 75, 67: 100, 100: 150} {
		all := vanishersOf(150, percent, m, nil)
		require.Len(t, all, want)
		uploads, within := 0, 0
		for i, v := range all {
			if v.upload {
				uploads++
			}
			if i < 75 {
				within++
			}
			require.GreaterOrEqual(t, v.perPlace, 2*time.Millisecond)
			require.LessOrEqual(t, v.perPlace, 8*time.Millisecond)
		}
		require.Equal(t, want/2, uploads)
		require.InDelta(t, want/2, within, 1, "in the first half")
	}
}

// filled is a proxy with a full bucket, whose logbook is open.
func filled(t *testing.T, limits string) *proxy {
	t.Helper()
	f, err := startFragile(size{workers: 9, service: 500 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(f.close)
	front, err := newDoor(config{addr: "127.0.0.1:0"})
	require.NoError(t, err)
	p, err := startProxy(front.listener, limitsOf(t, limits), f.url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	p.log.start()
	require.True(t, p.shaper.Allow())
	return p
}

// Whose turn has come is in no line any more: his patience does not run out while
// he is being served.
func TestVanisherWhoseTurnComesStays(t *testing.T) {
	p := filled(t, "20/s depth 2")
	v := &vanisher{log: &p.log, upload: true, perPlace: 300 * time.Millisecond}
	got := v.ask(t.Context(), p.url)
	require.Equal(t, http.StatusOK, got.status)
	require.False(t, got.vanished)
	passages := p.log.stop()
	require.Len(t, passages, 1)
	require.Same(t, v, passages[0].client)
	require.NotZero(t, passages[0].queued)
	require.Zero(t, passages[0].vanished)
}

func TestVanisherLeavesTheLine(t *testing.T) {
	for name, upload := range map[string]bool{"download": false, "upload": true} {
		t.Run(name, func(t *testing.T) {
			p := filled(t, "1 per 10s depth 2")
			v := &vanisher{log: &p.log, upload: upload, perPlace: 10 * time.Millisecond}
			require.Equal(t, answer{vanished: true}, v.ask(t.Context(), p.url))
			passages := p.log.stop() // It returns when the shaper, too, has noticed.
			require.Len(t, passages, 1)
			require.Equal(t, v.goneAt(), passages[0].vanished)
			require.Less(t, passages[0].abandoned.Sub(passages[0].vanished), 5*time.Second)
			require.Zero(t, passages[0].left)
			require.Zero(t, p.shaper.Stats().Waiting)
		})
	}
}
