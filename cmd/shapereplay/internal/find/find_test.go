package find_test

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/find"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

var start = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// arrivals are instants by key.
type arrivals map[string][]time.Duration

// simulated returns the default rule, which all arrivals have met.
func simulated(t *testing.T, limits string, all arrivals) *simulate.Rule {
	t.Helper()
	rules, err := config.Parse("test.yaml", []byte("default: "+limits))
	require.NoError(t, err)
	type one struct {
		at  time.Duration
		key string
	}
	var inOrder []one
	for key, instants := range all {
		for _, at := range instants {
			inOrder = append(inOrder, one{at, key})
		}
	}
	slices.SortFunc(inOrder, func(a, b one) int { return cmp.Compare(a.at, b.at) })
	s := simulate.New(rules, simulate.Options{Arrivals: true})
	for _, o := range inOrder {
		s.Arrive(start.Add(o.at), o.key, "")
	}
	return s.Result().Rules[0]
}

// search returns the limits found for the default rule.
func search(t *testing.T, goal, limits string, all arrivals) find.Found {
	t.Helper()
	g, err := find.ParseGoal(goal)
	require.NoError(t, err)
	found, err := g.Search(t.Context(), simulated(t, limits, all))
	require.NoError(t, err)
	return found
}

// outcome returns how the arrivals fare under limits.
func (all arrivals) outcome(l shaper.Limits) (refused int, longest time.Duration) {
	plan := replay.NewPlan(l) // which takes most of the time
	for _, instants := range all {
		var bucket replay.Bucket
		for _, at := range instants {
			fate := bucket.Arrive(plan, at, 1)
			if fate.Result != replay.Departed {
				refused++
			}
			longest = max(longest, fate.Waited)
		}
	}
	return refused, longest
}

// allRates returns the rates of three digits in the units of time that texts of limits
// have, from 1/d to 999000000/s, in ascending order.
func allRates(t *testing.T) []shaper.Limits {
	t.Helper()
	var all []shaper.Limits
	for unit, length := range map[string]float64{"d": 86400, "h": 3600, "min": 60, "s": 1} {
		next := map[string]float64{"d": 24, "h": 60, "min": 60, "s": 1e9}[unit]
		for scale := 0.01; 100*scale < next; scale *= 10 {
			for digits := 100; digits < 1000; digits++ {
				n, err := strconv.ParseFloat(fmt.Sprintf("%.2f", float64(digits)*scale), 64)
				require.NoError(t, err)
				if n < next {
					l, err := shaper.ParseLimits(strconv.FormatFloat(n, 'f', -1, 64) + "/" + unit)
					require.NoError(t, err)
					require.InEpsilon(t, n/length, float64(l.Rate), 1e-9)
					all = append(all, l)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b shaper.Limits) int { return cmp.Compare(a.Rate, b.Rate) })
	return all
}

// A search that stops at a rate below which another one would do gives operators a number
// that is too high, and one that skips a rate that fails gives one that is too low. So the
// rates are tried one after another, far below the rate found every tenth of them, and all
// depths.
func TestASearchFindsWhatTryingEverythingFinds(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(16, 5))
	every := allRates(t)
	found, waits, lowest := 0, 0, 0
	for n := range 30 {
		all, requests := randomArrivals(chance)
		burst := 1 + chance.IntN(3)
		wait := []time.Duration{0, time.Millisecond, 200 * time.Millisecond, 3 * time.Second, 10 * time.Minute}[chance.IntN(5)]
		tenths := []int{0, 1, 50, 100, 300, 1000}[chance.IntN(6)] // of a percent
		goal := fmt.Sprintf("wait=%v refused=%d.%d%% burst=%d", wait, tenths/10, tenths%10, burst)
		most := requests * tenths / 1000

		keeps := func(l shaper.Limits) bool {
			if l.Validate() != nil {
				return false
			}
			refused, longest := all.outcome(l)
			require.LessOrEqual(t, longest, wait)
			return refused <= most
		}
		limits := func(i, depth int) shaper.Limits {
			l := shaper.Limits{Rate: every[i].Rate, Burst: burst, Depth: depth, MaxWait: wait}
			if wait == 0 || depth == 0 {
				l.Depth, l.MaxWait = 0, 0
			}
			return l
		}
		got := search(t, goal, "1/s", all)
		i := 0
		for i < len(every) && !keeps(shaper.Limits{Rate: every[i].Rate, Burst: burst, Depth: int(min(wait, 1_000_000)), MaxWait: wait}) {
			i++
			if i%10 == 0 && (!got.OK || every[i].Rate < got.Limits.Rate/3) {
				i += 9
			}
		}
		require.Equal(t, i < len(every), got.OK, "load %d: %s", n, goal)
		if !got.OK {
			continue
		}
		depth := 0
		for !keeps(limits(i, depth)) {
			depth++
		}
		require.Equal(t, limits(i, depth), got.Limits, "load %d: %s: %s", n, goal, got.Outcome.Limits)
		parsed, err := shaper.ParseLimits(got.Outcome.Limits)
		require.NoError(t, err)
		require.Equal(t, got.Limits, parsed)
		refused, longest := all.outcome(got.Limits)
		require.Equal(t, refused, got.Outcome.Refused)
		require.EqualValues(t, longest, got.Outcome.Longest)
		found++
		if depth > 1 {
			waits++
		}
		if got.Lowest {
			lowest++
		}
	}
	require.Greater(t, found, 20)
	require.Greater(t, waits, 4)
	require.Positive(t, lowest)
	require.Less(t, lowest, 12)
}

// randomArrivals returns crowds of requests of a few keys.
func randomArrivals(chance *rand.Rand) (all arrivals, requests int) {
	all = arrivals{}
	gap := []time.Duration{time.Millisecond, time.Second, time.Minute}[chance.IntN(3)]
	for key := range 1 + chance.IntN(3) {
		at := time.Duration(chance.Int64N(int64(gap)))
		for range 5 + chance.IntN(15) {
			switch chance.IntN(4) {
			case 0: // at the same instant, sometimes
				at += time.Duration(chance.IntN(2))
			default:
				at += time.Duration(chance.Int64N(int64(3 * gap)))
			}
			all[strconv.Itoa(key)] = append(all[strconv.Itoa(key)], at)
			requests++
		}
	}
	return all, requests
}

func TestWhatIsFoundIsWrittenAsPeopleWriteIt(t *testing.T) {
	every := func(gap time.Duration, n int) (instants []time.Duration) {
		for i := range n {
			instants = append(instants, time.Duration(i)*gap)
		}
		return instants
	}
	ten := make([]time.Duration, 10)
	for _, test := range []struct {
		goal, limits string
		all          arrivals
		want         string
	}{
		{"wait=1s", "1/s", arrivals{"a": every(time.Second/8, 100)}, "7.41/s depth 8 wait 1s"},
		{"wait=0s", "1/s", arrivals{"a": every(time.Second/8, 100)}, "8/s depth 0"},
		{"wait=1s", "1/s", arrivals{"a": ten}, "9/s depth 9 wait 1s"},
		{"wait=1s", "1/s slack 5ms inflight 4", arrivals{"a": ten}, "9/s depth 9 wait 1s slack 5ms inflight 4"},
		{"wait=0s", "1/s depth 3 slack 5ms inflight 4", arrivals{"a": every(time.Second/8, 100)}, "8/s depth 0 inflight 4"},
		{"wait=1500ms", "1/s burst 4", arrivals{"a": ten}, "4/s burst 4 depth 6 wait 1500ms"},
		{"wait=1s refused=20%", "1/s", arrivals{"a": ten}, "7/s depth 7 wait 1s"},
		{"wait=0s burst=10", "1/s", arrivals{"a": ten}, "1/d burst 10 depth 0"},
		{"wait=0s refused=90%", "1/s", arrivals{"a": ten}, "1/d depth 0"},
		{"wait=1h", "1/s", arrivals{"a": every(20*time.Second, 4000)}, "2.88/min depth 160 wait 1h"},
	} {
		require.Equal(t, test.want, search(t, test.goal, test.limits, test.all).Outcome.Limits, test.goal)
	}
	// A million a second would be too slow for two at the same instant.
	require.False(t, search(t, "wait=0s", "1/s", arrivals{"a": ten}).OK)
}

func TestASearchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := find.Goal{Refused: new(big.Rat)}.Search(ctx, simulated(t, "1/s", arrivals{"a": {0}}))
	require.ErrorIs(t, err, context.Canceled)
}

// Limits allow no burst that takes longer than a year to drain, so no rate would be found, and that would be said of
// the requests.
func TestABurstThatNoRateAllowsIsAMistake(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("each burst that an int holds is allowed with some rate")
	}
	for burst, allowed := range map[string]bool{"31504464000000000": true, "31504464000000001": false} { // a year at 999000000/s
		_, err := find.ParseGoal("wait=0s burst=" + burst)
		require.Equal(t, allowed, err == nil, "%s: %v", burst, err)
	}
}
