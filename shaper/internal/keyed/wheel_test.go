package keyed

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// The wheel alone, used by nobody but this file: an entry that is put in comes up in time, as from
// a plain slice.

// entry is the entry that the tests put in.
type entry = Entry[int, int]

// slowWheel is a wheel as one would write it down: when each flow is to come up at
// the earliest, and at the latest.
type slowWheel map[*entry]struct{ earliest, latest int64 }

func TestTheWheelIsWhatASliceWouldBe(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 1))
	for round := range 20 {
		var fast Wheel[int, int]
		slow := slowWheel{}
		var flows []*entry
		for i := range 1 + r.IntN(40) {
			flows = append(flows, &entry{Key: i})
		}
		now := r.Int64N(1000 * spoke)
		tookAll := true // all that was due when now was set
		for range 400 {
			switch r.IntN(5) {
			case 0, 1:
				e := flows[r.IntN(len(flows))]
				if _, is := slow[e]; is {
					break
				}
				due := now + []int64{0, 1, r.Int64N(spoke), spoke, r.Int64N(100 * spoke), spokes * spoke, 1e6 * spoke}[r.IntN(7)]
				if r.IntN(8) == 0 {
					due = exact.Forever
				}
				at := fast.Add(e, now, due)
				was := struct{ earliest, latest int64 }{min(due, now+(spokes-1)*spoke-spoke), due + spoke - 1}
				if due == exact.Forever {
					was.earliest, was.latest = now+spoke, now+2*spoke-1
				}
				if !tookAll {
					was.earliest = 0 // It may come up at once, and be looked at in vain.
				}
				require.LessOrEqual(t, was.earliest, at)
				require.LessOrEqual(t, at, max(was.latest, now+spoke-1), "round %d", round)
				slow[e] = struct{ earliest, latest int64 }{at, at}
			case 2:
				if e := flows[r.IntN(len(flows))]; e.next != nil {
					fast.Remove(e)
					require.True(t, e.next == nil && e.prev == nil)
					delete(slow, e)
				}
			case 3:
				now += []int64{1, r.Int64N(spoke), r.Int64N(10 * spoke), r.Int64N(200 * spoke)}[r.IntN(4)]
				tookAll = false
			case 4:
				most := r.IntN(20)
				for range most {
					e := fast.Take(now)
					var due []*entry
					for other, when := range slow {
						if when.earliest <= now {
							due = append(due, other)
						}
					}
					if e == nil {
						require.Empty(t, due, "it does not come up")
						tookAll = true
						break
					}
					require.Contains(t, due, e, "it comes up too soon")
					for _, other := range due {
						require.LessOrEqual(t, slow[e].earliest, slow[other].earliest, "out of order")
					}
					delete(slow, e)
				}
			}
			requireSameWheel(t, slow, &fast, flows)
		}
	}
}

func requireSameWheel(t *testing.T, slow slowWheel, fast *Wheel[int, int], flows []*entry) {
	t.Helper()
	require.Equal(t, len(slow), fast.len)
	next := int64(exact.Forever)
	for _, when := range slow {
		next = min(next, when.earliest)
	}
	require.Equal(t, next, fast.Next())
	var found []*entry
	for i, head := range fast.heads {
		for e := head; e != nil; {
			require.EqualValues(t, i, e.spoke)
			require.True(t, e.next.prev == e && e.prev.next == e)
			found = append(found, e)
			if e = e.next; e == head {
				break
			}
		}
	}
	require.Len(t, found, len(slow))
	for _, e := range flows {
		_, is := slow[e]
		require.Equal(t, is, slices.Contains(found, e))
		require.Equal(t, is, e.next != nil)
	}
}

// The SmallMap beside a map of Go's, with fewer and with more entries than are in a slice.
func TestASmallMapIsWhatAMapWouldBe(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, kinds := range []int{1, few, few + 1, 100} {
		var small SmallMap[int, *int]
		slow := map[int]*int{}
		for range 3000 {
			key := 1 + r.IntN(kinds)
			require.True(t, small.Get(key) == slow[key])
			switch {
			case slow[key] == nil:
				slow[key] = &key
				small.Add(key, slow[key])
			case r.IntN(2) == 0:
				small.Delete(key)
				delete(slow, key)
			}
			if r.IntN(50) == 0 {
				small.Shrink(few)
			}
			require.Equal(t, len(slow), small.Len())
		}
		for key, value := range slow {
			require.True(t, small.Get(key) == value)
			require.True(t, slices.Contains(slices.Collect(small.Values()), value))
		}
		require.Equal(t, kinds <= few, small.many == nil)

		// Of many entries few are left, and the memory of the others is given back.
		peak := small.peak
		for key := range slow {
			if len(slow) == 1 {
				break
			}
			small.Delete(key)
			delete(slow, key)
		}
		small.Shrink(0)
		if peak > 16 {
			require.Equal(t, 1, small.peak)
		}
		require.Equal(t, len(slow), small.Len())
		for key, value := range slow {
			require.True(t, small.Get(key) == value)
		}
	}
}

// A ring is in the order of its homes, and a key finds the first entry at its home or
// after it, across the end as well.
func TestAKeySharesTheNextEntryOfItsRing(t *testing.T) {
	var o Rings[int, int, string]
	p := "kind"
	flows := map[int16]*entry{}
	for _, home := range []int16{500, 0, 959, 7} {
		flows[home] = &entry{Home: home}
		o.Add(flows[home], p)
	}
	for home, want := range map[int16][2]int16{
		0: {0, 0}, 1: {7, 6}, 7: {7, 0}, 8: {500, 492}, 500: {500, 0}, 501: {959, 458}, 959: {959, 0},
	} {
		e, distance := o.next(home, p)
		require.Equal(t, want, [2]int16{e.Home, distance}, "from %d", home)
	}
	o.Remove(flows[0], p)
	o.Remove(flows[959], p)
	e, distance := o.next(600, p)
	require.Equal(t, [2]int16{7, 367}, [2]int16{e.Home, distance})
	o.Remove(flows[500], p)
	o.Remove(flows[7], p)
	e, _ = o.next(600, p)
	require.Nil(t, e)
}
