package model

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mistake is one that a model can make on purpose, to see that the
// comparison would notice.
type mistake int

const (
	none             mistake = iota
	refundWithLine           // a waiter that gives up lowers the level, though it never left
	noRetime                 // SetLimits leaves the head the instant it had
	idleTick                 // an idle bucket keeps a tick, as time.Ticker's channel does
	placeFreedLate           // who gave up keeps its place until the next departure
	depthOffByOne            // Depth + 1 may wait
	overtaking               // a newcomer slips past a line whose head is dearer
	droppedRemainder         // the schedule goes on from the whole nanosecond
	lateStillLeft            // a late cancel keeps its slot, which nobody uses
	closeFirst               // Close refuses who is due at its instant
	handedTwice              // the slot of a late cancel goes to the next waiter and to the bucket
	freedTwice               // a place that is given back twice is somebody else's the second time
	capIgnored               // when a late cancel hands its place on, all leave whom the bucket lets go
	placeLost                // a late cancel keeps its place, which nobody gives back
	blockedIsLate            // who waited for a place leaves as if at the instant at which the bucket allowed it
	holdShortens             // of two holds the last one counts
	holdUnbounded            // MaxWait does not count the hold
)

// TestModelTellsMistakes tests the checker: each mistake must show within
// 100,000 operations, on scripts on which the model without it agrees with the
// shaper.
func TestModelTellsMistakes(t *testing.T) {
	for _, test := range []struct {
		name string
		with mistake
	}{
		{"refund on cancel with a line", refundWithLine},
		{"no re-time in SetLimits", noRetime},
		{"a tick kept after idle", idleTick},
		{"a place freed late", placeFreedLate},
		{"off by one at Depth", depthOffByOne},
		{"a newcomer that overtakes", overtaking},
		{"a dropped remainder", droppedRemainder},
		{"a late cancel that still counts as left", lateStillLeft},
		{"Close before a due departure", closeFirst},
		{"a slot handed on twice", handedTwice},
		{"a place freed twice", freedTwice},
		{"a cap ignored when a place is handed on", capIgnored},
		{"a place lost by a late cancel", placeLost},
		{"time blocked that is made up", blockedIsLate},
		{"a hold that shortens another", holdShortens},
		{"a hold that MaxWait ignores", holdUnbounded},
	} {
		t.Run(test.name, func(t *testing.T) {
			done := 0
			for seed := uint64(1); done < 100_000; seed++ {
				s, right := composed(&source{chance: rand.New(rand.NewPCG(seed, uint64(test.with)))})
				done += len(s.ops)
				got, problem := played(t, s)
				require.Empty(t, problem, "%v", s)
				require.Empty(t, difference(s, got, right), "without a mistake, seed %d\n%v", seed, s)
				wrong, _ := s.predict(test.with)
				if told := difference(s, got, wrong); told != "" {
					t.Logf("told after %d operations: %s", done, told)
					return
				}
			}
			require.FailNow(t, "not told", fmt.Sprint(done, " operations agree with the mistake"))
		})
	}
}
