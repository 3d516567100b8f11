package caddyshaper

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A line that can't be hidden, such as one whose changes can't be ended, must hang neither a
// reload nor what others show.
func TestALineThatCannotBeHiddenHangsNoReload(t *testing.T) {
	all := followers
	defer func() { followers = all }()
	synctest.Test(t, func(t *testing.T) {
		blocked := make(chan struct{})
		var hidden atomic.Int64 // Followers hide each in their own time.
		stuck := &follower{shown: map[shownLine]func(){
			{name: "shaper-test-stuck"}: func() { <-blocked },
			{name: "shaper-test-other"}: func() { hidden.Add(1) },
		}}
		other := &follower{shown: map[shownLine]func(){{name: "shaper-test-stuck"}: func() { hidden.Add(1) }}}
		followers = map[*follower]bool{stuck: true, other: true}
		start := time.Now()
		linesChanged()
		require.Equal(t, hideWait, time.Since(start))
		require.EqualValues(t, 2, hidden.Load())
		linesChanged()
		require.Equal(t, 2*hideWait, time.Since(start))
		close(blocked)
		linesChanged()
		require.Equal(t, 2*hideWait, time.Since(start), "nothing hangs any more")
		require.Empty(t, stuck.shown)
	})
}
