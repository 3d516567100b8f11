package buckettest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// A KeepSetter is a [shared.Keeper] that can be given states of kept keys.
type KeepSetter interface {
	// SetKeep makes s the state of a kept key, as [SeatSetter.SetSeats] does with seats.
	SetKeep(key string, s shared.KeepState)
}

// keeper returns the Bucket as one that keeps keys; the check is left out if it does not.
func (c *tester) keeper() shared.Keeper {
	c.Helper()
	k, ok := c.bucket.(shared.Keeper)
	if !ok {
		c.Skipf("the Bucket has no method Keep")
	}
	return k
}

// setKeep makes s the state of a kept key. The check is left out if the Bucket can't be given one.
func (c *tester) setKeep(key string, s shared.KeepState) {
	c.Helper()
	c.keeper()
	setter, ok := c.bucket.(KeepSetter)
	if !ok {
		c.Skipf("the Bucket has no method SetKeep(key string, s shared.KeepState)")
	}
	setter.SetKeep(c.prefix+key, s)
	c.keeps[c.prefix+key] = s
}

// keeping returns a Keeping of a key of this test.
func (c *tester) keeping(key, id string, lease time.Duration, value string) shared.Keeping {
	return shared.Keeping{Key: c.prefix + key, ID: id, Lease: lease, Value: []byte(value)}
}

// keep calls Keep, and compares the answer with the state that the key must have.
func (c *tester) keep(k shared.Keeping) shared.Kept {
	c.Helper()
	ctx, cancel := c.context()
	defer cancel()
	got, err := c.keeper().Keep(ctx, k)
	c.must(err == nil, "Keep(%s): %v", keepingText(k), err)
	before := c.keeps[k.Key]
	next, want := k.Apply(before, got.Now)
	c.must(got.ID == want.ID && bytes.Equal(got.Value, want.Value), "the answer to\n%s\nat the state of %q up to %d with %s\nis\n%q with %s at %d\nmust be\n%q with %s",
		keepingText(k), before.ID, before.Ends, valueText(before.Value), got.ID, valueText(got.Value), got.Now, want.ID, valueText(want.Value))
	c.keeps[k.Key] = next
	return got
}

func keepingText(k shared.Keeping) string {
	return fmt.Sprintf("{Key:%q ID:%q Lease:%v Value:%s}", k.Key, k.ID, k.Lease, valueText(k.Value))
}

func valueText(v []byte) string {
	if len(v) > 100 {
		return fmt.Sprintf("%q… of %d bytes", v[:100], len(v))
	}
	return fmt.Sprintf("%q", v)
}

// kept is keep for a call after which a process keeps the key, and is told a value.
func (c *tester) kept(k shared.Keeping, id, value string) shared.Kept {
	c.Helper()
	got := c.keep(k)
	c.must(got.ID == id && string(got.Value) == value, "after %s the key must be kept by %q, with %q, and the answer is %q, with %s", keepingText(k), id, value, got.ID, valueText(got.Value))
	return got
}

func checkKeep(c *tester) {
	c.kept(c.keeping("k", "a", 0, "look"), "", "")
	c.kept(c.keeping("k", "a", time.Minute, "0"), "a", "")
	c.kept(c.keeping("k", "b", time.Minute, "b"), "a", "")
	c.kept(c.keeping("k", "a", time.Minute, "1"), "a", "1")
	c.kept(c.keeping("k", "b", time.Minute, "b"), "a", "1")
	c.kept(c.keeping("k", "b", 0, "b"), "a", "1")
	c.kept(c.keeping("k", "a", 20*time.Second, "2"), "a", "2")
	c.kept(c.keeping("k", "a", 0, "last"), "", "last")
	c.kept(c.keeping("k", "a", 0, "again"), "", "last")
	c.kept(c.keeping("k", "c", 0, "look"), "", "last")
	c.kept(c.keeping("k", "b", time.Minute, "b"), "b", "last")
	c.kept(c.keeping("k", "a", time.Minute, "late"), "b", "last")
	c.kept(c.keeping("k", "a", 0, "late"), "b", "last")
	c.kept(c.keeping("k", "b", time.Minute, ""), "b", "")
	c.kept(c.keeping("k", "a", 0, "late"), "b", "")
	if f, ok := c.bucket.(Forgetter); ok {
		k := c.keeping("k", "a", time.Minute, "a")
		c.keep(c.keeping("k", "b", time.Minute, "lost"))
		err := f.Forget(k.Key)
		c.must(err == nil, "Forget(%q): %v", k.Key, err)
		delete(c.keeps, k.Key)
		c.kept(k, "a", "")
		c.kept(c.keeping("k", "b", time.Minute, "b"), "a", "")
	}
}

func checkKeepLease(c *tester) {
	const lease = 200 * time.Millisecond
	renewed, inTime := c.keep(c.keeping("k", "a", lease, "a")), 0
	for range 4 { // It goes on as long as it asks.
		time.Sleep(lease / 3)
		got := c.keep(c.keeping("k", "a", lease, "1"))
		if got.Now < renewed.Now+lease.Microseconds() && string(got.Value) == "1" {
			inTime++
		}
		renewed = got
	}
	c.must(inTime > 0, "a process that asks in time does not go on keeping the key")
	for looks := 0; ; looks++ {
		id := [...]string{"b", "c"}[looks%2]
		got := c.keep(c.keeping("k", id, [...]time.Duration{lease, 0}[looks%2], id)) // "c" only looks
		if got.ID == "b" {
			c.must(got.Now >= renewed.Now+lease.Microseconds(), "a lease of %v has ended after %d µs", lease, got.Now-renewed.Now)
			break
		}
		c.must(looks < 10_000, "a lease does not end")
		time.Sleep(2 * time.Millisecond)
	}
	c.keep(c.keeping("k", "a", lease, "late"))
	for c.keep(c.keeping("k", "c", 0, "c")).ID != "" {
		time.Sleep(2 * time.Millisecond)
	}
	c.keep(c.keeping("k", "b", 0, "too late"))
	c.keep(c.keeping("k", "b", lease, "too late"))
	c.keep(c.keeping("k", "b", time.Millisecond, "b"))
	time.Sleep(2 * time.Millisecond)
	c.keep(c.keeping("k", "a", time.Minute, ""))
}

func checkKeepValues(c *tester) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = byte(c.random.Uint32())
	}
	c.keep(c.keeping("k", "a", time.Minute, ""))
	for _, value := range slices.Concat(oddKeys, damagedTexts, []string{string(every), string(long), string(long[1:]), string(make([]byte, 1<<20)), "", "\n", " x "}) {
		c.kept(c.keeping("k", "a", time.Minute, value), "a", value)
		c.kept(c.keeping("k", "b", time.Minute, "b"), "a", value)
	}
	k := c.keeping("k", "a", time.Minute, "")
	k.Value = nil
	c.kept(k, "a", "")
	k.Value = long
	c.keep(k)
	want := bytes.Clone(long)
	got := c.keep(c.keeping("k", "b", 0, "")) // Neither what was given nor what was told is the Bucket's own.
	clear(k.Value)
	clear(got.Value)
	c.keeps[k.Key] = shared.KeepState{ID: "a", Lease: time.Minute, Ends: c.keeps[k.Key].Ends, Value: want}
	c.keep(c.keeping("k", "b", 0, ""))
}

func checkKeepClock(c *tester) {
	const hour = 3_600_000_000
	now := c.keep(c.keeping("clock", "a", 0, "")).Now
	for i, lease := range []time.Duration{50 * time.Millisecond, time.Second, time.Minute} {
		for _, lasts := range []int64{-hour / 2, -1, 0, 1, 3_000_000, hour} {
			// Who looks at it first has a lease of another length.
			key := fmt.Sprint("k", i, lasts)
			c.setKeep(key, shared.KeepState{ID: "a", Lease: lease, Ends: now + hour + lasts, Value: []byte("1")})
			c.kept(c.keeping(key, "b", 3*time.Second, "b"), "a", "1")
			if i == 0 {
				for c.keep(c.keeping(key, "b", 2*time.Second, "b")).ID == "a" {
					time.Sleep(5 * time.Millisecond)
				}
			}
		}
		for _, before := range []time.Duration{time.Hour, lease} {
			key := fmt.Sprint("renewed", i, before)
			c.setKeep(key, shared.KeepState{ID: "a", Lease: lease, Ends: now + before.Microseconds() + hour, Value: []byte("1")})
			c.kept(c.keeping(key, "a", time.Minute, "2"), "a", "2")
			c.kept(c.keeping(key, "b", time.Minute, "b"), "a", "2")
			c.kept(c.keeping(key, "a", 0, "3"), "", "3")
			c.kept(c.keeping(key, "b", time.Minute, "b"), "b", "3")
		}
	}
	if s, ok := c.bucket.(Stepper); ok {
		for _, d := range []time.Duration{0, -time.Hour, 2 * time.Second, -2 * time.Second, time.Minute, -time.Minute, time.Microsecond} {
			s.Step(d)
			for _, id := range []string{"a", "b"} {
				c.keep(c.keeping("stepped", id, time.Duration(1+c.random.IntN(3))*time.Second, id+d.String()))
			}
		}
	}
}

func checkKeepKeys(c *tester) {
	for i, key := range oddKeys {
		c.kept(c.keeping(key, oddKeys[i], time.Minute, ""), oddKeys[i], "")
		c.keep(c.keeping(key, oddKeys[i], time.Minute, key))
	}
	for _, key := range oddKeys {
		for _, id := range oddKeys { // IDs that are alike are two.
			c.kept(c.keeping(key, id, time.Minute, key), key, key)
		}
	}
}

// checkKeepConcurrency lets processes ask at the same time, with short leases. No two keep the key at one instant of the
// Bucket's clock.
func checkKeepConcurrency(c *tester) {
	keeper := c.keeper()
	type term struct {
		id       string
		from, to int64
	}
	var mu sync.Mutex
	var terms []term
	var failed error
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range times(50) {
				k := c.keeping("k", fmt.Sprint("process ", caller), time.Duration(1+(caller+i)%3)*time.Millisecond, fmt.Sprint(caller, i))
				if (caller+i)%4 == 0 {
					k.Lease = 0
				}
				ctx, cancel := c.context()
				got, err := keeper.Keep(ctx, k)
				cancel()
				mu.Lock()
				failed = cmp.Or(failed, err)
				if got.ID == k.ID {
					terms = append(terms, term{k.ID, got.Now, got.Now + k.Lease.Microseconds()})
				} else if k.Lease == 0 && err == nil && got.ID == "" {
					terms = append(terms, term{k.ID, got.Now, got.Now}) // It has given the key up, if it kept it.
				}
				mu.Unlock()
				if err != nil {
					return
				}
				if i%5 == 0 {
					time.Sleep(300 * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	c.must(failed == nil, "Keep by %d callers: %v", callers, failed)
	slices.SortStableFunc(terms, func(a, b term) int { return cmp.Compare(a.from, b.from) })
	latest, changes := map[string]int64{}, 0
	for _, t := range terms {
		if t.to > t.from {
			for id, to := range latest {
				// Of two calls in one microsecond either may have come first.
				goes := slices.ContainsFunc(terms, func(o term) bool { return o.id == id && o.from == t.from && o.to == o.from })
				c.must(id == t.id || to <= t.from || goes, "%q keeps the key from %d, and %q up to %d", t.id, t.from, id, to)
				if id != t.id {
					changes++
					delete(latest, id)
				}
			}
		}
		latest[t.id] = t.to
	}
	c.must(changes > 0, "one process has kept the key all the time")

	// A long lease goes to one of those who ask at once.
	var keepers []string
	for caller := range callers {
		wg.Go(func() {
			ctx, cancel := c.context()
			defer cancel()
			got, err := keeper.Keep(ctx, c.keeping("long", fmt.Sprint("process ", caller), time.Minute, "x"))
			mu.Lock()
			defer mu.Unlock()
			keepers, failed = append(keepers, got.ID), cmp.Or(failed, err)
		})
	}
	wg.Wait()
	slices.Sort(keepers)
	c.must(failed == nil && keepers[0] != "" && len(slices.Compact(keepers)) == 1, "%d processes ask at once, and are told of the keepers %q, %v", callers, keepers, failed)
}

func checkKeepContexts(c *tester) {
	keeper := c.keeper()
	call := func(ctx context.Context, k shared.Keeping) error {
		c.Helper()
		start := time.Now()
		got, err := keeper.Keep(ctx, k)
		took := time.Since(start)
		c.must(took < patience, "Keep took %v though its context has ended", took)
		c.must(err == nil || got.ID == "" && got.Value == nil && got.Now == 0, "Keep has an error and an answer: %+v, %v", got, err)
		return err
	}
	k := c.keeping("k", "a", time.Minute, "x")
	cancelled, cancel := context.WithCancel(c.Context())
	cancel()
	c.must(call(cancelled, k) != nil, "Keep with a context that is cancelled has no error")
	expired, cancel := context.WithDeadline(c.Context(), time.Now().Add(-time.Second))
	c.must(call(expired, k) != nil, "Keep with a context that is expired has no error")
	cancel()
	for i := range times(30) {
		ctx, cancel := context.WithTimeout(c.Context(), time.Duration(c.random.Int64N(1<<10+int64(i)<<9))*time.Microsecond/4)
		_ = call(ctx, k)
		cancel()
	}
	time.Sleep(20 * time.Millisecond) // Let those arrive that are under way.
	for range 2 {
		c.must(call(c.Context(), k) == nil, "after calls without an answer there is none either")
	}
	k.ID = "b"
	got, err := keeper.Keep(c.Context(), k)
	c.must(err == nil && got.ID == "a" && string(got.Value) == "x", "after calls without an answer the key is kept by %q, with %s, %v", got.ID, valueText(got.Value), err)
}

func checkKeepDamage(c *tester) {
	now := c.keep(c.keeping("clock", "a", 0, "")).Now
	good := shared.KeepState{ID: "a", Lease: 3 * time.Second, Ends: now + 3_000_000, Value: []byte("1")}
	for name, spoil := range map[string]func(*shared.KeepState){
		"Ends is 0":               func(s *shared.KeepState) { s.Ends = 0 },
		"Ends is negative":        func(s *shared.KeepState) { s.Ends = -1 },
		"Ends is too far":         func(s *shared.KeepState) { s.Ends = 1<<53 + 2 },
		"Lease is 0":              func(s *shared.KeepState) { s.Lease = 0 },
		"Lease is negative":       func(s *shared.KeepState) { s.Lease = -time.Second },
		"Lease is too long":       func(s *shared.KeepState) { s.Lease = time.Minute + time.Millisecond },
		"Ends is of no keeper":    func(s *shared.KeepState) { s.ID, s.Lease = "", 0 },
		"Lease is of no keeper":   func(s *shared.KeepState) { s.ID, s.Ends = "", 0 },
		"both are of no keeper's": func(s *shared.KeepState) { s.ID = "" },
	} {
		s := good
		spoil(&s)
		for _, id := range []string{"a", "b"} {
			c.setKeep("k", s)
			delete(c.keeps, c.prefix+"k")
			got := c.keep(c.keeping("k", "c", 0, "c"))
			c.must(got.ID == "" && got.Value == nil, "%s: a state that is damaged is none: the key is kept by %q, with %s", name, got.ID, valueText(got.Value))
			c.kept(c.keeping("k", id, time.Minute, id), id, "")
			c.kept(c.keeping("k", id, time.Minute, "2"), id, "2")
		}
	}
	for i, s := range []shared.KeepState{
		{Value: []byte("1")}, {ID: "a", Lease: time.Minute, Ends: 1 << 53, Value: []byte("1")}, {ID: "a", Lease: time.Millisecond, Ends: 1, Value: []byte("1")},
	} {
		key := fmt.Sprint("sound", i)
		c.setKeep(key, s)
		got := c.keep(c.keeping(key, "b", 0, "b"))
		c.must(string(got.Value) == "1" && (got.ID == "a") == (i == 1), "a state at the end of its range counts as damaged: the key is kept by %q, with %s", got.ID, valueText(got.Value))
	}
}

func checkKeepRandom(c *tester) {
	met := kinds{}
	_, sets := c.bucket.(KeepSetter)
	ids := []string{"a", "A", "b", "\xff"}
	now := c.keep(c.keeping("clock", "a", 0, "")).Now
	for i := range times(500) {
		key := fmt.Sprint("k", c.random.IntN(2))
		lease := time.Duration(c.random.IntN(4)) * time.Millisecond
		if c.random.IntN(3) == 0 {
			lease = time.Duration(c.random.IntN(60_001)) * time.Millisecond
		}
		if sets && c.random.IntN(8) == 0 {
			s := shared.KeepState{ID: ids[c.random.IntN(len(ids))], Lease: lease + time.Millisecond, Value: []byte(fmt.Sprint("set ", i))}
			s.Lease = min(s.Lease, time.Minute)
			s.Ends = now + c.random.Int64N(5) - 2
			if c.random.IntN(3) == 0 {
				s.Ends += []int64{s.Lease.Microseconds(), 3_600_000_000}[c.random.IntN(2)]
			}
			c.setKeep(key, s)
		}
		k := c.keeping(key, ids[c.random.IntN(len(ids))], lease, fmt.Sprint("value ", i))
		before := c.keeps[k.Key]
		got := c.keep(k)
		now = got.Now
		met.note("begun", got.ID == k.ID && before.ID != k.ID)
		met.note("renewed", got.ID == k.ID && before.ID == k.ID && got.Now < before.Ends)
		met.note("given up", before.ID == k.ID && got.ID == "" && got.Now < before.Ends)
		met.note("looked", lease == 0 && before.ID != k.ID)
		met.note("another's", got.ID != "" && got.ID != k.ID)
		met.note("ended", before.ID != "" && got.Now >= before.Ends)
		if c.random.IntN(10) == 0 {
			time.Sleep(time.Duration(c.random.Int64N(3000)) * time.Microsecond)
		}
	}
	for _, kind := range []string{"begun", "renewed", "given up", "looked", "another's", "ended"} {
		c.must(met[kind] >= 3, "too few random calls meet %q: %v", kind, met)
	}
}
