package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 2"))
	s := capacity{workers: 3, serviceTime: 10 * time.Millisecond}
	good := func() (direct, shaped trial) {
		shaped.requests = history("peeff     l         l")
		for _, r := range shaped.requests {
			shaped.arrived = append(shaped.arrived, r.arrived)
			if r.refused.IsZero() {
				shaped.reached = append(shaped.reached, r.departed)
			}
		}
		shaped.tally = tally{sent: 5, served: 3, refused: 2}
		direct.tally = tally{sent: 5, served: 3, failed: 2}
		return direct, shaped
	}
	direct, shaped := good()
	require.Empty(t, judgeBurst(info, s, direct, shaped))
	minimum, maximum := bounds(info, shaped)
	require.Equal(t, 3, minimum)
	// 1 at once, 2 wait, and 3 more may leave in the 2 ms up to the last
	// admission and the 20 ms of slack.
	require.Equal(t, 5, maximum)

	for says, spoil := range map[string]func(direct, shaped *trial){
		"the upstream served the burst of 5":      func(direct, _ *trial) { direct.tally = tally{sent: 5, served: 5} },
		"the burst of 2 fits into the upstream's": func(direct, _ *trial) { direct.tally = tally{sent: 2, served: 2} },
		"1 request failed behind the shaper":      func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, failed: 1, refused: 2} },
		"got no response, or one that this":       func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, other: 1, refused: 2} },
		"5 were sent through the shaper, but 4":   func(_, shaped *trial) { shaped.refused = 1 },
		"3 were served behind the shaper, but 2":  func(_, shaped *trial) { shaped.reached = shaped.reached[:2] },
		"2 were admitted by the shaper, but from": func(_, shaped *trial) { shaped.served, shaped.refused = 2, 3 },
		"a request was refused":                   func(_, shaped *trial) { shaped.requests = slices.Delete(shaped.requests, 1, 2) },
	} {
		t.Run(says, func(t *testing.T) {
			direct, shaped := good()
			spoil(&direct, &shaped)
			faults := judgeBurst(info, s, direct, shaped)
			require.NotEmpty(t, faults)
			text := burstVerdict(plain(), info, direct, shaped, faults)
			require.Contains(t, text, says)
			require.Contains(t, text, "✗")
		})
	}
}

func TestJudgeOfImpatientClients(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 3 slack 1ms"))
	s := capacity{workers: 3, serviceTime: 10 * time.Millisecond}
	direct := trial{tally: tally{sent: 4, served: 3, failed: 1}}
	with := func(timeline string, shaped tally) trial {
		got := trial{tally: shaped, impatient: 2, requests: history(timeline)}
		for _, r := range got.requests {
			got.arrived = append(got.arrived, r.arrived)
			if !r.departed.IsZero() {
				got.reached = append(got.reached, r.departed)
			}
		}
		return got
	}
	for name, c := range map[string]struct {
		shaped trial
		says   string // "": nothing
	}{
		"at its turn, handed on":  {with("peee va    l         l", tally{sent: 4, served: 3, disconnected: 1}), ""},
		"one slot may be lost":    {with("peee v     l         l         l", tally{sent: 4, served: 3, disconnected: 1}), ""},
		"two slots were spent":    {with("peee vv    l         l         l", tally{sent: 4, served: 2, disconnected: 2}), "2 slots were given to clients that had d"},
		"two slots went by":       {with("peee va                        l         l", tally{sent: 4, served: 3, disconnected: 1}), "2 slots were given to clients that had d"},
		"none disconnected":       {with("peee       l         l         l", tally{sent: 4, served: 4}), "none of 2 impatient clients"},
		"a response is missing":   {with("peee va    l         l", tally{sent: 4, served: 2, disconnected: 1}), "4 were sent through the shaper, but 3"},
		"fewer were admitted":     {with("peee va    l         l", tally{sent: 4, served: 2, disconnected: 1, refused: 1}), "3 were admitted by the shaper, but from 4"},
		"the patient are refused": {with("peeeff va  l         l", tally{sent: 6, served: 3, disconnected: 1, refused: 2}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults := judgeBurst(info, s, direct, c.shaped)
			if c.says == "" {
				require.Empty(t, faults)
				return
			}
			require.Contains(t, burstVerdict(plain(), info, direct, c.shaped, faults), c.says)
		})
	}
}

func TestVerdictSaysWhereTheBurstWent(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "50/s depth 100"))
	direct := trial{tally: tally{sent: 150, served: 63, failed: 87}}
	for says, shaped := range map[string]tally{
		"101 fitted at once, there was room for 13 more while the burst came in,\n  and the other 36 were refused at once, with 429.": {sent: 150, served: 114, refused: 36},
		"101 fitted, and the other 49 were refused at once, with 429.":                                                                {sent: 150, served: 101, refused: 49},
		"all were served, a little later": {sent: 90, served: 90},
		"66 disconnected while they waited and cost no slot;\n  70 were served, and the other 14 were refused at once, with 429.": {sent: 150, served: 70, refused: 14, disconnected: 66},
		"66 disconnected while they waited and cost no slot;\n  the other 84 were served.":                                        {sent: 150, served: 84, disconnected: 66},
	} {
		require.Contains(t, burstVerdict(plain(), info, direct, trial{tally: shaped}, nil), says)
	}
}
