package model_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
)

// seatLog reads a log from lines like "1s 0 begins", and "3s 0 ends 1s" where an event has a Since.
func seatLog(t *testing.T, text string) (log []model.SeatEvent) {
	what := map[string]model.SeatWhat{
		"waits": model.Waits, "givesUp": model.GivesUp, "begins": model.Begins, "ends": model.Ends, "leased": model.Leased,
		"stops": model.Stops, "goesOn": model.GoesOn, "isCutOff": model.IsCutOff, "isReached": model.IsReached,
	}
	for line := range strings.SplitSeq(text, ",") {
		var at, word, since string
		e := model.SeatEvent{}
		_, err := fmt.Sscan(line+" 0s", &at, &e.Process, &word, &since)
		require.NoError(t, err, line)
		require.Contains(t, what, word)
		e.What = what[word]
		e.At, err = time.ParseDuration(at)
		require.NoError(t, err)
		e.Since, err = time.ParseDuration(since)
		require.NoError(t, err)
		log = append(log, e)
	}
	return log
}

// A cap of 2 with leases of 10 s, judged from 0 s to 20 s.
func TestSharedCapByHand(t *testing.T) {
	for name, row := range map[string]struct {
		log  string
		want model.SeatUse
		err  string
	}{
		"one call at a time": {
			"0s 0 leased 0s, 0s 0 waits, 0s 0 begins, 4s 0 ends 0s, 4s 0 waits, 4s 0 begins, 8s 0 ends 4s",
			model.SeatUse{Most: 1, Calls: 2, Each: []float64{0.4}},
			"",
		},
		"a line for 4 s, and one of two seats in use": {
			"0s 0 leased 0s, 0s 0 waits, 0s 0 begins, 2s 0 waits, 6s 0 givesUp, 8s 0 ends 0s",
			model.SeatUse{Most: 1, Calls: 1, Use: 0.5, Each: []float64{0.4}},
			"",
		},
		"three calls at once": {
			"0s 0 leased 0s, 0s 1 leased 0s, 1s 0 begins, 1s 0 begins, 1s 1 begins, 2s 1 ends 1s",
			model.SeatUse{Most: 3, Outlived: 2, Beyond: 1, Calls: 3, Each: []float64{1.9, 0.05}},
			"3 calls were under way by seats whose lease lasted, 2 are allowed",
		},
		"a call that outlives its lease, and a seat for another": {
			"1s 0 leased 0s, 1s 0 begins, 1s 0 begins, 9s 1 leased 9s, 10s 1 begins, 12s 1 ends 10s, 15s 0 leased 15s, 16s 0 ends 1s, 16s 0 ends 1s",
			model.SeatUse{Most: 2, Outlived: 2, Beyond: 1, Calls: 3, Each: []float64{1.5, 0.1}},
			"",
		},
		"a lease that is renewed lasts on": {
			"0s 0 leased 0s, 0s 0 begins, 0s 0 begins, 6s 0 leased 5s, 15s 1 leased 15s, 15s 1 begins, 16s 0 ends 0s, 16s 0 ends 0s, 17s 1 ends 15s",
			model.SeatUse{Most: 2, Outlived: 2, Beyond: 1, Calls: 3, Each: []float64{1.6, 0.1}},
			"",
		},
		"a lease that is counted from the answer": {
			"0s 0 leased 0s, 2s 0 leased 1s, 11500ms 0 begins, 12s 0 ends 11500ms",
			model.SeatUse{Outlived: 1, Unleased: 1, Calls: 1, Each: []float64{0.025}},
			"1 calls began when their process had no lease",
		},
		"an answer that comes after its lease": {
			"12s 0 leased 1s, 12s 0 begins, 13s 0 ends 12s",
			model.SeatUse{Outlived: 1, Unleased: 1, Calls: 1, Each: []float64{0.05}},
			"1 calls began when their process had no lease",
		},
		"a process that is stopped neither works nor waits": {
			"0s 0 leased 0s, 0s 0 waits, 0s 0 begins, 0s 0 waits, 5s 0 stops, 9s 0 goesOn, 9s 0 leased 9s, 9s 0 ends 0s, 9s 0 begins, 10s 0 ends 9s",
			model.SeatUse{Most: 1, Calls: 2, Use: 0.5, Each: []float64{0.3}},
			"",
		},
		"a process that waits while others have all seats": {
			"0s 0 leased 0s, 0s 0 waits, 0s 0 begins, 2s 1 waits, 3s 1 isCutOff, 5s 1 isReached, 9s 1 leased 9s, 9s 1 begins, 9s 0 ends 0s, 10s 1 ends 9s",
			model.SeatUse{Most: 2, Calls: 2, Use: 0.5, Each: []float64{0.45, 0.05}, Starved: 4 * time.Second},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := model.SharedCap{Cap: 2, Lease: 10 * time.Second}
			u := c.Judge(seatLog(t, row.log), 0, 20*time.Second)
			if row.err == "" {
				require.NoError(t, c.Check(u))
			} else {
				require.EqualError(t, c.Check(u), row.err)
			}
			u.Line, u.Lines, u.Leases, u.Overstay = 0, nil, nil, nil
			require.Equal(t, row.want, u)
		})
	}
}
