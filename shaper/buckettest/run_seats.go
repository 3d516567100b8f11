package buckettest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// A SeatSetter is a [shared.Seater] that can be given states of seats.
type SeatSetter interface {
	// SetSeats makes s the state of the seats of a key. s may have numbers out of their ranges; if the Bucket can't hold it,
	// SetSeats stores something else that is damaged. A SetSeats that fails must end the test, with the *testing.T that
	// the Bucket was made for.
	SetSeats(key string, s shared.SeatState)
}

// seater returns the Bucket as one that knows of seats; the check is left out if it knows of none.
func (c *tester) seater() shared.Seater {
	c.Helper()
	s, ok := c.bucket.(shared.Seater)
	if !ok {
		c.Skipf("the Bucket has no method Seats")
	}
	return s
}

// setSeats makes s the state of the seats of a key. The check is left out if the Bucket can't be given one.
func (c *tester) setSeats(key string, s shared.SeatState) {
	c.Helper()
	setter, ok := c.bucket.(SeatSetter)
	if !ok {
		c.Skipf("the Bucket has no method SetSeats(key string, s shared.SeatState)")
	}
	setter.SetSeats(c.prefix+key, s)
	s.Holders = slices.Clone(s.Holders)
	c.seats[c.prefix+key] = s
}

// seating returns a question by a process that has held seats and could use want of 20, of a key of this test.
func (c *tester) seating(key, id string, held, want int) shared.Seating {
	return shared.Seating{Key: c.prefix + key, ID: id, Cap: 20, Held: held, Want: want}
}

// ask calls Seats, and compares the answer with the state that the key must have.
func (c *tester) ask(q shared.Seating) shared.Seated {
	c.Helper()
	ctx, cancel := c.context()
	defer cancel()
	got, err := c.seater().Seats(ctx, q)
	c.must(err == nil, "Seats(%+v): %v", q, err)
	before := c.seats[q.Key]
	next, want := q.Apply(before, got.Now)
	c.must(got == want, "the answer to\n%+v\nat the state\n%+v\nis\n%+v\nmust be\n%+v", q, before, got, want)
	c.seats[q.Key] = next
	return got
}

// gets is ask for a question whose answer has so many seats and such a target; unless the machine is so busy that wants have aged
// since the clock was read.
func (c *tester) gets(q shared.Seating, held, target int) shared.Seated {
	c.Helper()
	got := c.ask(q)
	c.must(got.Held == held && got.Target == target || got.Now-c.began > shared.SeatPoll.Microseconds(), "the answer to %+v is %+v, must have %d seats and a Target of %d", q, got, held, target)
	return got
}

// clockNow returns a reading of the Bucket's clock.
func (c *tester) clockNow() int64 {
	c.Helper()
	c.began = c.ask(c.seating("clock", "clock", 0, 0)).Now
	return c.began
}

// ready lets a key give seats, as one whose guard has passed.
func (c *tester) ready(key string) {
	c.Helper()
	c.setSeats(key, shared.SeatState{Ready: c.clockNow()})
}

// checkSeatTimes waits for what takes seconds in real time, for all of it together. Each of its parts returns a function that asks
// again, and reports whether what it waits for has come.
func checkSeatTimes(c *tester) {
	parts := []func() bool{c.guardEnds()}
	if _, ok := c.bucket.(SeatSetter); ok {
		parts = append(parts, c.wantAges(), c.wantAgesByAnEarlierClock(), c.leaseEnds())
	}
	for {
		if parts = slices.DeleteFunc(parts, func(again func() bool) bool { return again() }); len(parts) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *tester) guardEnds() func() bool {
	c.clockNow()
	first := c.gets(c.seating("k", "a", 0, 3), 0, 20)
	c.gets(c.seating("k", "b", 15, 20), 15, 17)
	polls := 0
	return func() bool {
		polls++
		got := c.ask(c.seating("k", "a", 0, 3))
		passed := got.Now - first.Now
		if got.Held == 0 {
			c.must(passed < shared.SeatGuard.Microseconds(), "the guard does not end: after %d µs the answer is %+v", passed, got)
			if polls%10 == 0 {
				c.ask(c.seating("k", "b", 15, 20))
			}
			return false
		}
		c.must(passed >= shared.SeatGuard.Microseconds() && polls > 10, "the guard has ended after %d µs, and %d questions", passed, polls)

		// The key is not new when its last process has gone.
		c.clockNow()
		c.ask(c.seating("k", "a", 0, 0))
		c.ask(c.seating("k", "b", 0, 0))
		c.gets(c.seating("k", "c", 0, 20), 20, 20)

		// Without processes there is a guard too.
		c.gets(c.seating("none", "a", 0, 0), 0, 20)
		c.gets(c.seating("none", "b", 0, 1), 0, 20)
		if f, ok := c.bucket.(Forgetter); ok {
			q := c.seating("k", "c", 0, 20)
			err := f.Forget(q.Key)
			c.must(err == nil, "Forget(%q): %v", q.Key, err)
			delete(c.seats, q.Key)
			c.gets(q, 0, 20)
			c.gets(c.seating("k", "d", 20, 20), 20, 10)
		}
		return true
	}
}

func (c *tester) wantAges() func() bool {
	c.ready("wants")
	c.gets(c.seating("wants", "a", 12, 12), 12, 20)
	asked := c.gets(c.seating("wants", "dead", 0, 20), 8, 20).Now
	return func() bool {
		got := c.ask(c.seating("wants", "a", 12, 20))
		c.must(got.Target == 10 || got.Now-asked > 2*shared.SeatPoll.Microseconds(), "a want has aged after %d µs", got.Now-asked)
		return got.Target == 20
	}
}

// The state is of a clock that has gone back since: what was later than it can be is so no more, and that is written.
func (c *tester) wantAgesByAnEarlierClock() func() bool {
	hour := c.clockNow() + 3_600_000_000
	c.setSeats("back", shared.SeatState{Ready: hour, Holders: []shared.SeatHolder{{ID: "dead", Held: 5, Want: 20, Since: hour - 10_000_000, Expires: hour}}})
	return func() bool { return c.ask(c.seating("back", "a", 0, 20)).Target == 20 }
}

// A lease takes long, so a short run is given one that has begun before.
func (c *tester) leaseEnds() func() bool {
	c.ready("leases")
	c.gets(c.seating("leases", "dead", 0, 12), 12, 20)
	asked := c.gets(c.seating("leases", "a", 0, 8), 8, 20).Now
	if !c.long {
		s := c.seats[c.prefix+"leases"]
		s.Holders = slices.Clone(s.Holders)
		s.Holders[1].Expires -= 8_500_000 // that of "dead"
		c.setSeats("leases", s)
	}
	return func() bool {
		got := c.ask(c.seating("leases", "a", 8, 20))
		c.must(got.Held == 20 || got.Now-asked < shared.SeatLease.Microseconds(), "the seats of a process that does not ask any more are not free after %d µs", got.Now-asked)
		return got.Held == 20
	}
}

// checkSeatShares asks at states that are as a table has them, and not as chance has it.
func checkSeatShares(c *tester) {
	now := c.clockNow()
	waits := func(id string, held, want int, since int64) shared.SeatHolder {
		return shared.SeatHolder{ID: id, Held: held, Want: want, Since: now - since, Expires: now + 9_500_000}
	}
	has := func(id string, held, want int) shared.SeatHolder {
		return shared.SeatHolder{ID: id, Held: held, Want: want, Expires: now + 5_000_000}
	}
	for i, t := range []struct {
		others       []shared.SeatHolder // at now
		held, want   int
		gets, target int
	}{
		{nil, 0, 5, 5, 20}, {nil, 5, 5, 5, 20}, {nil, 0, 30, 20, 20}, {nil, 25, 30, 25, 20}, {nil, 5, 0, 5, 20},
		{[]shared.SeatHolder{has("b", 15, 15)}, 0, 20, 5, 20},
		{[]shared.SeatHolder{has("b", 15, 20)}, 0, 20, 5, 20}, // Its want has aged.
		{[]shared.SeatHolder{waits("b", 15, 20, 5)}, 0, 20, 5, 10},
		{[]shared.SeatHolder{waits("b", 15, 20, 5)}, 1, 9, 5, 9},
		{[]shared.SeatHolder{waits("b", 0, 20, 5)}, 15, 20, 15, 10},
		{[]shared.SeatHolder{waits("b", 0, 20, 5)}, 13, 20, 13, 10},
		{[]shared.SeatHolder{waits("b", 2, 20, 5)}, 2, 20, 10, 10},
		{[]shared.SeatHolder{waits("b", 2, 3, 5)}, 2, 20, 17, 17},
		{[]shared.SeatHolder{waits("b", 3, 20, 5)}, 2, 20, 10, 10},
		{[]shared.SeatHolder{waits("b", 3, 20, 5), has("c", 1, 1)}, 3, 20, 9, 10},
		{[]shared.SeatHolder{waits("B", 3, 20, 0), has("c", 1, 1)}, 3, 20, 9, 10},
		{[]shared.SeatHolder{waits("B", 3, 20, -3_600_000_000), has("c", 1, 1)}, 3, 20, 9, 10}, // The clock has gone back.
		{[]shared.SeatHolder{waits("b", 0, 20, 5), waits("c", 1, 20, 6)}, 1, 20, 6, 6},
		{[]shared.SeatHolder{waits("b", 1, 20, 5), waits("c", 1, 20, 6)}, 1, 20, 6, 7},
		{[]shared.SeatHolder{waits("b", 1, 2, 5), waits("c", 1, 5, 6), waits("d", 4, 20, 7)}, 8, 20, 8, 7},
		{[]shared.SeatHolder{waits("b", 0, 1, 5), waits("c", 0, 1, 6), has("d", 15, 15)}, 3, 20, 3, 9},
		{[]shared.SeatHolder{waits("b", 0, 1, 5), has("d", 5, 5)}, 14, 14, 14, 14},
		{[]shared.SeatHolder{has("b", 30, 30)}, 0, 3, 0, 20},
	} {
		key := fmt.Sprint("k", i)
		passed := c.clockNow() - now
		for i := range t.others {
			t.others[i].Expires += passed
		}
		c.setSeats(key, shared.SeatState{Ready: now, Holders: t.others})
		c.gets(c.seating(key, "a", t.held, t.want), t.gets, t.target)
		for _, h := range t.others { // What was kept for them is theirs.
			c.ask(c.seating(key, h.ID, h.Held, h.Want))
		}
		c.ask(c.seating(key, "a", t.gets, t.want+1))
	}

	// Who has been given some goes behind those with as many who have waited longer than that.
	now = c.clockNow()
	c.setSeats("turns", shared.SeatState{Ready: now, Holders: []shared.SeatHolder{waits("a", 1, 20, 10), waits("b", 2, 20, 5), has("c", 16, 16)}})
	c.gets(c.seating("turns", "a", 1, 20), 2, 7)
	c.ask(c.seating("turns", "c", 15, 15))
	c.gets(c.seating("turns", "a", 2, 20), 2, 7)
	c.gets(c.seating("turns", "b", 2, 20), 3, 7)

	// Each process is given seats by its own Cap.
	c.ready("caps")
	q := c.seating("caps", "a", 0, 50)
	c.gets(q, 20, 20)
	q.ID, q.Cap = "b", 40
	c.gets(q, 20, 20)
	q.ID, q.Cap = "c", 40
	c.gets(q, 0, 14)
}

// checkSeatNumbers tests that a question which was overtaken takes nothing away, and that a state older than the last answer gives
// nothing at first.
func checkSeatNumbers(c *tester) {
	asked := func(q shared.Seating, number, answered int64) shared.Seating {
		q.Number, q.Answered = number, answered
		return q
	}
	c.ready("k")
	c.gets(asked(c.seating("k", "a", 0, 5), 1, 0), 5, 20)
	c.gets(asked(c.seating("k", "a", 5, 12), 3, 1), 12, 20)
	c.gets(asked(c.seating("k", "a", 5, 5), 2, 1), 12, 20)
	c.gets(asked(c.seating("k", "a", 0, 0), 2, 1), 12, 20)
	c.gets(asked(c.seating("k", "b", 0, 20), 1, 0), 8, 20)
	c.gets(asked(c.seating("k", "a", 13, 13), 2, 1), 12, 20)
	c.gets(asked(c.seating("k", "a", 3, 3), 3, 3), 3, 3)
	c.gets(asked(c.seating("k", "b", 8, 20), 1<<53, 1), 17, 20)
	c.gets(asked(c.seating("k", "b", 0, 0), 1<<53-1, 1), 17, 20)
	c.gets(asked(c.seating("k", "a", 0, 0), 4, 3), 0, 0)
	c.gets(asked(c.seating("k", "a", 0, 3), 5, 0), 3, 3)

	for i, known := range []shared.SeatHolder{{}, {ID: "a", Held: 1, Want: 1, Number: 4}, {ID: "b", Held: 1, Want: 1, Number: 5}} {
		for _, answered := range []int64{0, 4, 5} {
			key := fmt.Sprint("older", i, answered)
			s := shared.SeatState{Ready: c.clockNow()}
			if known.ID != "" {
				known.Expires = s.Ready + 9_000_000
				s.Holders = append(s.Holders, known)
			}
			c.setSeats(key, s)
			got := c.ask(asked(c.seating(key, "a", 2, 5), 6, answered))
			guarded := answered > 0 && (known.ID != "a" || known.Number < answered)
			c.must(guarded == (got.Held == 2), "a process that had an answer to its question %d asks at the state %+v, and gets %+v", answered, s, got)
			c.ask(asked(c.seating(key, "c", 0, 5), 1, 0))
		}
	}

	// Such a guard does not begin anew with each process.
	s := shared.SeatState{Ready: c.clockNow() + 60_000}
	c.setSeats("once", s)
	for i := 0; c.ask(asked(c.seating("once", fmt.Sprint(i), 0, 0), 2, 1)).Now < s.Ready-30_000; i++ {
		time.Sleep(5 * time.Millisecond)
	}
	for c.ask(c.seating("once", "b", 0, 1)).Held == 0 {
		time.Sleep(5 * time.Millisecond)
	}
}

func checkSeatClock(c *tester) {
	c.seater()
	s, ok := c.bucket.(Stepper)
	if !ok {
		c.Skipf("the Bucket has no method Step(d time.Duration)")
	}
	c.ready("k")
	for _, d := range []time.Duration{0, -time.Hour, 3 * time.Second, -time.Second, time.Microsecond, -time.Microsecond, 9 * time.Second, -9 * time.Second, 30 * time.Second, -30 * time.Second} {
		s.Step(d)
		for _, id := range []string{"a", "b", "c"} {
			c.ask(c.seating("k", id, c.random.IntN(4), 9))
		}
	}
}

// checkSeatKeys asks for keys, and with IDs, that a careless Bucket mixes up or refuses.
func checkSeatKeys(c *tester) {
	most := len(oddKeys) * (len(oddKeys) + 1) / 2
	for i, key := range oddKeys {
		c.ready(key)
		q := c.seating(key, "a", i, i)
		q.Cap = len(oddKeys)
		c.gets(q, i, len(oddKeys))
	}
	c.ready("ids")
	for i, id := range oddKeys {
		q := c.seating("ids", id, 1+i, 1+i)
		q.Cap = most + 1
		c.ask(q)
	}
	for i, key := range oddKeys {
		q := c.seating(key, "b", 0, len(oddKeys))
		q.Cap = len(oddKeys)
		c.gets(q, len(oddKeys)-i, len(oddKeys)) // "a" has the rest.
	}
	q := c.seating("ids", "probe", 0, 5)
	q.Cap = most + 1
	c.gets(q, 1, most+1)
	for i, id := range slices.Backward(oddKeys) { // Of those that wait since one instant, the least ID comes first.
		q := c.seating("ids", id, 1, 2+i)
		q.Cap = most / 2
		c.ask(q)
	}

	// A key's level, its seats and its keeper are three.
	t := c.of("k", slow)
	c.takes(t)
	c.ready("k")
	c.gets(c.seating("k", "a", 0, 7), 7, 20)
	if _, ok := c.bucket.(shared.Keeper); ok {
		c.keep(c.keeping("k", "b", time.Minute, "x"))
	}
	c.refused(t)
	c.giveBack(t, c.levels[t.Key].Empty)
	c.gets(c.seating("k", "a", 7, 20), 20, 20)
	c.takes(t)
	if _, ok := c.bucket.(shared.Keeper); ok {
		c.keep(c.keeping("k", "a", time.Minute, "y"))
	}
}

// checkSeatConcurrency lets processes ask at the same time. Each knows what it has; together they never have more than there are.
func checkSeatConcurrency(c *tester) {
	s := c.seater()
	key := c.prefix + "k"
	if _, ok := c.bucket.(SeatSetter); ok {
		c.ready("k")
	} else {
		c.ask(c.seating("k", "a", 0, 0))
		time.Sleep(shared.SeatGuard + 10*time.Millisecond)
	}
	const seats = 20
	var mu sync.Mutex
	var problem string
	used, given := 0, 0
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			held := 0
			for i := range times(50) {
				keeps := held * ((caller + i) % 3) / 2 // none, half or all
				mu.Lock()
				used -= held - min(keeps, held)
				mu.Unlock()
				held = min(keeps, held)
				ctx, cancel := c.context()
				got, err := s.Seats(ctx, shared.Seating{
					Key: key, ID: fmt.Sprint("process ", caller), Cap: seats, Held: held, Want: 1 + (caller*i)%seats, Number: int64(i + 1),
				})
				cancel()
				mu.Lock()
				switch {
				case err != nil:
					problem = cmp.Or(problem, fmt.Sprintf("Seats by %d callers: %v", callers, err))
				case got.Held < held:
					problem = cmp.Or(problem, fmt.Sprintf("a process that has %d seats gets %+v", held, got))
				default:
					given += got.Held - held
					used += got.Held - held
					held = got.Held
				}
				if used > seats {
					problem = cmp.Or(problem, fmt.Sprintf("%d processes have %d of %d seats", callers, used, seats))
				}
				stop := problem != ""
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	c.must(problem == "", "%s", problem)
	c.must(given > seats, "only %d seats were given", given)

	// None has been lost: when all have given back theirs, they are there.
	ask := func(q shared.Seating) shared.Seated {
		q.Key = key
		ctx, cancel := c.context()
		defer cancel()
		got, err := s.Seats(ctx, q)
		c.must(err == nil, "Seats(%+v): %v", q, err)
		return got
	}
	for caller := range callers {
		ask(shared.Seating{ID: fmt.Sprint("process ", caller), Cap: seats, Number: 1 << 52})
	}
	got := ask(shared.Seating{ID: "last", Cap: seats, Want: 2 * seats})
	c.must(got.Held == seats && got.Target == seats, "when all have given back theirs, the last gets %+v", got)
}

func checkSeatContexts(c *tester) {
	s := c.seater()
	key, without := c.prefix+"k", 0
	call := func(ctx context.Context, number int) error {
		c.Helper()
		start := time.Now()
		got, err := s.Seats(ctx, shared.Seating{Key: key, ID: "a", Cap: 20, Held: 3, Want: 3, Number: int64(number)})
		took := time.Since(start)
		c.must(took < patience, "Seats took %v though its context has ended", took)
		c.must(err == nil || got == shared.Seated{}, "Seats has an error and an answer: %+v, %v", got, err)
		return err
	}
	cancelled, cancel := context.WithCancel(c.Context())
	cancel()
	c.must(call(cancelled, 1) != nil, "Seats with a context that is cancelled has no error")
	expired, cancel := context.WithDeadline(c.Context(), time.Now().Add(-time.Second))
	c.must(call(expired, 2) != nil, "Seats with a context that is expired has no error")
	cancel()
	calls := times(30)
	for i := range calls {
		ctx, cancel := context.WithTimeout(c.Context(), time.Duration(c.random.Int64N(1<<10+int64(i)<<9))*time.Microsecond/4)
		if call(ctx, 3+i) != nil {
			without++
		}
		cancel()
	}
	time.Sleep(20 * time.Millisecond) // Let those arrive that are under way.
	c.must(call(c.Context(), 3+calls) == nil, "after %d calls without an answer there is none either", without)
}

// damagedSeats are states; each has a number outside of its range.
func damagedSeats(now int64) map[string]shared.SeatState {
	const most = 1 << 53
	damaged := map[string]shared.SeatState{}
	for name, spoil := range map[string]func(s *shared.SeatState, h *shared.SeatHolder){
		"Ready is 0":          func(s *shared.SeatState, _ *shared.SeatHolder) { s.Ready = 0 },
		"Ready is negative":   func(s *shared.SeatState, _ *shared.SeatHolder) { s.Ready = -1 },
		"Ready is too far":    func(s *shared.SeatState, _ *shared.SeatHolder) { s.Ready = most + 2 },
		"Held is negative":    func(_ *shared.SeatState, h *shared.SeatHolder) { h.Held = -1 },
		"Want is negative":    func(_ *shared.SeatState, h *shared.SeatHolder) { h.Want = -1 },
		"Since is negative":   func(_ *shared.SeatState, h *shared.SeatHolder) { h.Since = -1 },
		"Since is too far":    func(_ *shared.SeatState, h *shared.SeatHolder) { h.Since = most + 2 },
		"Expires is 0":        func(_ *shared.SeatState, h *shared.SeatHolder) { h.Expires = 0 },
		"Expires is negative": func(_ *shared.SeatState, h *shared.SeatHolder) { h.Expires = -1 },
		"Expires is too far":  func(_ *shared.SeatState, h *shared.SeatHolder) { h.Expires = most + 2 },
		"Number is negative":  func(_ *shared.SeatState, h *shared.SeatHolder) { h.Number = -1 },
		"Number is too great": func(_ *shared.SeatState, h *shared.SeatHolder) { h.Number = most + 2 },
		"one of two is damaged": func(s *shared.SeatState, _ *shared.SeatHolder) {
			s.Holders = append(s.Holders, shared.SeatHolder{ID: "y", Held: 1})
		},
	} {
		s := shared.SeatState{Ready: now, Holders: []shared.SeatHolder{{ID: "x", Held: 3, Want: 5, Since: now, Expires: now + 9_500_000, Number: 1}}}
		spoil(&s, &s.Holders[0])
		damaged[name] = s
	}
	return damaged
}

func checkSeatDamage(c *tester) {
	now := c.clockNow()
	for name, s := range damagedSeats(now) {
		c.setSeats("k", s)
		delete(c.seats, c.prefix+"k")
		got := c.ask(c.seating("k", "a", 2, 20))
		c.must(got.Held == 2 && got.Target == 20, "%s: a state that is damaged is none: %+v", name, got)
		c.gets(c.seating("k", "b", 0, 20), 0, 10) // It is mended: "a" waits.
		c.setSeats("k", s)
		delete(c.seats, c.prefix+"k")
		c.gets(c.seating("k", "x", 0, 0), 0, 20)
	}

	// Numbers at the ends of their ranges are not damaged.
	const most = 1<<31 - 1
	for i, s := range []shared.SeatState{
		{Ready: 1}, {Ready: now, Holders: []shared.SeatHolder{{ID: "x", Held: most, Want: most, Expires: now + 9_500_000, Number: 1 << 53}}},
		{Ready: now, Holders: []shared.SeatHolder{{ID: "x", Want: most, Since: 1 << 53, Expires: 1 << 53}, {ID: "y", Expires: 1}}},
	} {
		key := fmt.Sprint("sound", i)
		c.setSeats(key, s)
		q := c.seating(key, "a", 1, 20)
		got := c.ask(q)
		c.must(i == 1 || got.Held > 1, "a state at the end of its range counts as damaged: %+v", got)
		q.Cap, q.Held, q.Want = most, most-1, most
		c.ask(q)
		q.ID, q.Held = "x", 0
		c.ask(q)
	}
}

// checkSeatsRandom asks at random, of a few keys, with few IDs; and puts states in their place whose times are next to where
// something changes.
func checkSeatsRandom(c *tester) {
	met := kinds{}
	ids := []string{"a", "b", "B", "c\x00", "ключ", "\xff 1 2"}
	now := c.clockNow()
	next := func(spans ...time.Duration) int64 {
		return now + spans[c.random.IntN(len(spans))].Microseconds() + c.random.Int64N(5) - 2
	}
	seats := func() int {
		if c.random.IntN(10) == 0 {
			return int(c.random.Int64N(1<<31-1) >> c.random.IntN(31))
		}
		return c.random.IntN(9)
	}
	for i := range times(1000) {
		key := fmt.Sprint("k", c.random.IntN(3))
		if i < 3 || c.random.IntN(6) == 0 {
			s := shared.SeatState{Ready: next(-time.Hour, -time.Second, -time.Second, 0, shared.SeatGuard, time.Hour)}
			for _, id := range ids {
				h := shared.SeatHolder{ID: id, Held: seats(), Want: seats(), Number: c.random.Int64N(4)}
				if h.Want > h.Held {
					h.Since = next(-time.Second, -time.Second, 0, time.Hour)
				}
				h.Expires = next(shared.SeatLease, shared.SeatLease, shared.SeatLease-2*shared.SeatPoll, 0, 5*time.Second, time.Hour)
				if c.random.IntN(2) == 0 {
					s.Holders = append(s.Holders, h)
				}
			}
			slices.SortFunc(s.Holders, func(a, b shared.SeatHolder) int { return strings.Compare(a.ID, b.ID) })
			c.setSeats(key, s)
		}
		if c.random.IntN(40) == 0 {
			if f, ok := c.bucket.(Forgetter); ok {
				err := f.Forget(c.prefix + key)
				c.must(err == nil, "Forget(%q): %v", c.prefix+key, err)
				delete(c.seats, c.prefix+key)
			}
		}
		q := c.seating(key, ids[c.random.IntN(len(ids))], seats(), seats())
		if q.Cap = 1 + c.random.IntN(20); c.random.IntN(10) == 0 {
			q.Cap = 1 + seats()
		}
		q.Number = c.random.Int64N(5)
		if c.random.IntN(8) == 0 {
			q.Answered = c.random.Int64N(q.Number + 1)
		}
		before := c.seats[q.Key]
		got := c.ask(q)
		now = got.Now
		met.seats(q, before, got)
		if c.random.IntN(40) == 0 {
			time.Sleep(time.Duration(c.random.Int64N(3000)) * time.Microsecond)
		}
	}
	for _, kind := range []string{"some", "all", "none", "guarded", "waited for", "overtaken", "above the cap", "forgotten", "ended", "clock back", "older"} {
		c.must(met[kind] >= 3, "too few random questions meet %q: %v", kind, met)
	}
}

func (k kinds) seats(q shared.Seating, s shared.SeatState, got shared.Seated) {
	guarded := s.Ready > got.Now || s.Ready == 0
	more := got.Held - q.Held
	k.note("some", more > 0 && got.Held < q.Want)
	k.note("all", more > 0 && got.Held == q.Want)
	k.note("none", more == 0 && q.Want > q.Held && !guarded)
	k.note("guarded", guarded)
	k.note("waited for", got.Target < q.Cap)
	k.note("above the cap", got.Held > q.Cap)
	k.note("forgotten", q.Held == 0 && q.Want == 0)
	own := int64(0)
	for _, h := range s.Holders {
		k.note("ended", h.Expires <= got.Now)
		k.note("clock back", h.Expires > got.Now+shared.SeatLease.Microseconds())
		if h.ID == q.ID && h.Expires > got.Now {
			own = h.Number
		}
	}
	k.note("overtaken", own > q.Number)
	k.note("older", own < q.Answered && !guarded)
}
