package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressIsShownAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown strings.Builder
		s := streams{err: &shown, progress: true, progressWidth: 80}
		p := s.startProgress(func() (int64, int64) { return 250, 1000 })
		p.requests.Store(1234)
		time.Sleep(150 * time.Millisecond)
		p.stop()
		const line = "[#######.......................]  25%  1234 requests  0s left"
		require.Equal(t, "\r"+line+"\r"+strings.Repeat(" ", len(line))+"\r", shown.String())
	})
}

func TestProgressFitsTheTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown strings.Builder
		s := streams{err: &shown, progress: true, progressWidth: 20}
		p := s.startProgress(func() (int64, int64) { return 250, 1000 })
		time.Sleep(250 * time.Millisecond)
		p.stop()
		require.Contains(t, shown.String(), "[#######...........\r") // the last column is left free
		for part := range strings.SplitSeq(shown.String(), "\r") {
			require.Less(t, len(part), 20)
		}
	})
}

func TestOfAPipeNobodyKnowsTheLength(t *testing.T) {
	p := progress{read: func() (int64, int64) { return 250, 0 }}
	p.requests.Store(7)
	require.Equal(t, "7 requests read", p.line(time.Second))
}

func TestWithoutATerminalNoProgressIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown strings.Builder
		s := streams{err: &shown}
		p := s.startProgress(func() (int64, int64) { return 250, 1000 })
		time.Sleep(time.Second)
		p.stop()
		require.Empty(t, shown.String())
	})
}
