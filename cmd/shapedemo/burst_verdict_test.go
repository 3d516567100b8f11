package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	m := meaningOf(limitsOf(t, "100/s depth 2"))
	s := size{workers: 3, service: 10 * time.Millisecond}
	good := func() (straight, shaped trial) {
		shaped.passages = history("peeff     l         l")
		for _, p := range shaped.passages {
			shaped.arrived = append(shaped.arrived, p.arrived)
			if p.refused.IsZero() {
				shaped.reached = append(shaped.reached, p.left)
			}
		}
		shaped.tally = tally{sent: 5, served: 3, refused: 2}
		straight.tally = tally{sent: 5, served: 3, failed: 2}
		return straight, shaped
	}
	straight, shaped := good()
	require.Empty(t, judge(m, s, straight, shaped))
	least, most := bounds(m, shaped)
	require.Equal(t, 3, least)
	// 1 at once, 2 wait, and 3 more may leave in the 2 ms up to the last
	// admission and the 20 ms of slack.
	require.Equal(t, 5, most)

	for says, spoil := range map[string]func(straight, shaped *trial){
		"the upstream stood the burst of 5":       func(straight, _ *trial) { straight.tally = tally{sent: 5, served: 5} },
		"the burst of 2 fits into the upstream's": func(straight, _ *trial) { straight.tally = tally{sent: 2, served: 2} },
		"1 request failed behind the shaper":      func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, failed: 1, refused: 2} },
		"got no answer that this program expects": func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, other: 1, refused: 2} },
		"5 were sent through the shaper, but 4":   func(_, shaped *trial) { shaped.refused = 1 },
		"3 were served behind the shaper, but 2":  func(_, shaped *trial) { shaped.reached = shaped.reached[:2] },
		"2 were admitted by the shaper, but from": func(_, shaped *trial) { shaped.served, shaped.refused = 2, 3 },
		"one was refused":                         func(_, shaped *trial) { shaped.passages = slices.Delete(shaped.passages, 1, 2) },
	} {
		t.Run(says, func(t *testing.T) {
			straight, shaped := good()
			spoil(&straight, &shaped)
			faults := judge(m, s, straight, shaped)
			require.NotEmpty(t, faults)
			text := verdict(plain(), m, straight, shaped, faults)
			require.Contains(t, text, says)
			require.Contains(t, text, "✗")
		})
	}
}

func TestJudgeOfVanishers(t *testing.T) {
	m := meaningOf(limitsOf(t, "100/s depth 3 slack 1ms"))
	s := size{workers: 3, service: 10 * time.Millisecond}
	straight := trial{tally: tally{sent: 4, served: 3, failed: 1}}
	with := func(timeline string, shaped tally) trial {
		got := trial{tally: shaped, impatient: 2, passages: history(timeline)}
		for _, p := range got.passages {
			got.arrived = append(got.arrived, p.arrived)
			if !p.left.IsZero() {
				got.reached = append(got.reached, p.left)
			}
		}
		return got
	}
	for name, c := range map[string]struct {
		shaped trial
		says   string // "": nothing
	}{
		"at its turn, handed on":  {with("peee va    l         l", tally{sent: 4, served: 3, vanished: 1}), ""},
		"one slot may be lost":    {with("peee v     l         l         l", tally{sent: 4, served: 3, vanished: 1}), ""},
		"two slots were spent":    {with("peee vv    l         l         l", tally{sent: 4, served: 2, vanished: 2}), "2 slots were spent on clients that had left"},
		"two slots went by":       {with("peee va                        l         l", tally{sent: 4, served: 3, vanished: 1}), "2 slots were spent on clients that had left"},
		"nobody vanished":         {with("peee       l         l         l", tally{sent: 4, served: 4}), "none of 2 impatient clients"},
		"an answer is missing":    {with("peee va    l         l", tally{sent: 4, served: 2, vanished: 1}), "4 were sent through the shaper, but 3"},
		"fewer were admitted":     {with("peee va    l         l", tally{sent: 4, served: 2, vanished: 1, refused: 1}), "3 were admitted by the shaper, but from 4"},
		"the patient are refused": {with("peeeff va  l         l", tally{sent: 6, served: 3, vanished: 1, refused: 2}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults := judge(m, s, straight, c.shaped)
			if c.says == "" {
				require.Empty(t, faults)
				return
			}
			require.Contains(t, verdict(plain(), m, straight, c.shaped, faults), c.says)
		})
	}
}

func TestVerdictSaysWhereTheBurstWent(t *testing.T) {
	m := meaningOf(limitsOf(t, "50/s depth 100"))
	straight := trial{tally: tally{sent: 150, served: 63, failed: 87}}
	for says, shaped := range map[string]tally{
		"101 fit at once, 13 left while\n  the burst came in, and the other 36 were told so":                           {sent: 150, served: 114, refused: 36},
		"101 fit, and the other 49\n  were told so":                                                                    {sent: 150, served: 101, refused: 49},
		"all were served, a little later":                                                                              {sent: 90, served: 90},
		"66 left while they waited and\n  cost no slot; 70 were served, and the other 14 were told at once, with 429.": {sent: 150, served: 70, refused: 14, vanished: 66},
		"66 left while they waited and\n  cost no slot; the other 84 were served.":                                     {sent: 150, served: 84, vanished: 66},
	} {
		require.Contains(t, verdict(plain(), m, straight, trial{tally: shaped}, nil), says)
	}
}
