package replicas_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// Wherever calls come in, they leave by one line, at the rate of one.
func TestCallsOfAllReplicasLeaveByOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: llm.Quota{Requests: 1000}, burst: 6 * time.Second})
		k := f.keeper()
		began := time.Since(f.begun)
		var replies []<-chan reply
		for i := range 30 {
			replies = append(replies, f.call(i%3, fmt.Sprint("team-", i%2), fmt.Sprint(i)))
		}
		for _, r := range replies {
			got := <-r
			require.NoError(t, got.err)
			require.Equal(t, 200, got.status)
			require.Equal(t, "{}", got.body)
		}
		sent := f.got()
		require.Len(t, sent, 30)
		for i, s := range sent {
			require.Equal(t, k.number, s.by)
			require.Equal(t, began+time.Duration(i+1)*60*time.Millisecond, s.at)
			require.Contains(t, []string{"team-0", "team-1"}, s.team)
		}
		f.once()
	})
}
