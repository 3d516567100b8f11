package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestImpatientClientsAreSpreadOverTheBurst(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "50/s depth 100"))
	for percent, want := range map[int]int{0: 0, 1: 1, 33: 49, 50: 75, 67: 100, 100: 150} {
		all := chooseImpatient(150, percent, info, nil)
		require.Len(t, all, want)
		uploads, within := 0, 0
		for i, c := range all {
			if c.upload {
				uploads++
			}
			if i < 75 {
				within++
			}
			require.GreaterOrEqual(t, c.patiencePerPlace, 2*time.Millisecond)
			require.LessOrEqual(t, c.patiencePerPlace, 8*time.Millisecond)
		}
		require.Equal(t, want/2, uploads)
		require.InDelta(t, want/2, within, 1, "in the first half")
	}
}

// filled returns a proxy with a full bucket, which records its requests.
func filled(t *testing.T, limits string, serviceTime time.Duration) *proxy {
	t.Helper()
	f, err := startFragileUpstream(capacity{workers: 9, serviceTime: serviceTime})
	require.NoError(t, err)
	t.Cleanup(f.close)
	front, err := listenFront(config{addr: "127.0.0.1:0"})
	require.NoError(t, err)
	p, err := startProxy(front.listener, limitsOf(t, limits), f.url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	p.requests.startRecording()
	require.True(t, p.shaper.Allow())
	return p
}

// A client whose turn has come does not wait any more: its patience must not run
// out while it is being served. Its turn comes once it is in line. On a busy machine that
// may be too late for it: then a client with more patience, which is served for longer in
// turn, tries again.
func TestAnImpatientClientWhoseTurnComesStays(t *testing.T) {
	t.Parallel()
	soon := limitsOf(t, "1000/s depth 2")
	for patience := 300 * time.Millisecond; ; patience *= 2 {
		p := filled(t, "6/h depth 2", 2*patience)
		go func() {
			for p.shaper.Stats().Waiting == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			_ = p.shaper.SetLimits(soon)
		}()
		c := &impatientClient{log: &p.requests, upload: true, patiencePerPlace: patience}
		got := c.send(t.Context(), p.url)
		requests := p.requests.stopRecording()
		if got.disconnected && patience < 3*time.Second {
			continue
		}
		require.Equal(t, http.StatusOK, got.status)
		require.False(t, got.disconnected)
		require.Len(t, requests, 1)
		require.Same(t, c, requests[0].client)
		require.NotZero(t, requests[0].enqueued)
		require.Zero(t, requests[0].disconnected)
		return
	}
}

func TestAnImpatientClientLeavesTheLine(t *testing.T) {
	for name, upload := range map[string]bool{"download": false, "upload": true} {
		t.Run(name, func(t *testing.T) {
			p := filled(t, "6/h depth 2", 0)
			c := &impatientClient{log: &p.requests, upload: upload, patiencePerPlace: 10 * time.Millisecond}
			require.Equal(t, result{disconnected: true}, c.send(t.Context(), p.url))
			requests := p.requests.stopRecording() // It returns when the shaper, too, has noticed.
			require.Len(t, requests, 1)
			require.Equal(t, c.disconnectedAt(), requests[0].disconnected)
			require.Less(t, requests[0].abandoned.Sub(requests[0].disconnected), time.Minute)
			require.Zero(t, requests[0].departed)
			require.Zero(t, p.shaper.Stats().Waiting)
		})
	}
}
