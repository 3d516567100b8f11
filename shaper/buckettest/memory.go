package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// Memory is a [shared.Bucket] in memory, also a [shared.Seater] and a [shared.Keeper], with faults for tests. [NewMemory]
// makes one.
//
// A call goes through the stages of a call to a server: the request travels, the atomic
// step takes place in one instant, the answer travels. [Memory.SetDelay] sets how long the
// two ways take; [Memory.Fail] loses requests and answers. If the context ends on the way,
// the call returns the error of the context; but a request that is under way arrives all
// the same, and takes its slots. A call whose context has ended before does nothing.
//
// The clock is the one of [time.Now] until [Memory.Step] or [Memory.Drift] moves it. A key
// is forgotten one minute after its level has reached 0, and its seats and its keeper a day after they were written, which
// is as soon as a Bucket may. A call that breaks the rules of its fields panics.
//
// A Memory may be used by several goroutines at once, and starts none.
type Memory struct {
	mu       sync.Mutex
	clock    clock
	levels   map[string]shared.BucketLevel
	seats    map[string]written[shared.SeatState]
	keeps    map[string]written[shared.KeepState]
	request  time.Duration
	reply    time.Duration
	fail     func(call int, op string) Fault
	calls    int
	log      []*Entry
	underway []underway // in the order of their arrival
}

// A written is a state that is forgotten a day after it was written.
type written[S any] struct {
	state S
	at    int64
}

// An underway is a request that has not arrived yet, though its caller has gone.
type underway struct {
	at   time.Time
	step func(now int64)
}

// NewMemory returns a [Memory] without levels, whose clock is right. A Memory for a bubble is
// made within it.
func NewMemory() *Memory {
	return &Memory{
		clock: newClock(), levels: map[string]shared.BucketLevel{},
		seats: map[string]written[shared.SeatState]{}, keeps: map[string]written[shared.KeepState]{},
	}
}

// keep is how long a level is kept after it has reached 0, in microseconds, and day how long seats and keepers are.
const (
	keep = int64(time.Minute / time.Microsecond)
	day  = 24 * 60 * keep
)

// Take implements [shared.Bucket].
func (m *Memory) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if problem := problemOf(t); problem != "" {
		panic(fmt.Sprintf("buckettest: Memory.Take(%+v): %s", t, problem))
	}
	e := &Entry{Op: "Take", Take: t}
	err := m.call(ctx, e, func(now int64) {
		e.Before = m.levelLocked(t.Key, now)
		e.After, e.Taken = t.Apply(e.Before, now)
		m.storeLocked(t.Key, e)
	})
	if err != nil {
		return shared.Taken{}, err
	}
	return e.Taken, nil
}

// GiveBack implements [shared.Bucket].
func (m *Memory) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	e := &Entry{Op: "GiveBack", Take: t, End: end}
	return m.call(ctx, e, func(now int64) {
		e.Before = m.levelLocked(t.Key, now)
		e.After = t.ApplyGiveBack(e.Before, end)
		m.storeLocked(t.Key, e)
	})
}

// Seats implements [shared.Seater].
func (m *Memory) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	if err := q.Check(); err != nil {
		panic(fmt.Sprintf("buckettest: Memory.Seats(%+v): %v", q, err))
	}
	e := &Entry{Op: "Seats", Seating: q}
	err := m.call(ctx, e, func(now int64) {
		var next shared.SeatState
		next, e.Seated = q.Apply(stateOf(m.seats, q.Key, now), now)
		m.seats[q.Key] = written[shared.SeatState]{next, now}
	})
	if err != nil {
		return shared.Seated{}, err
	}
	return e.Seated, nil
}

// Keep implements [shared.Keeper].
func (m *Memory) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	if err := k.Check(); err != nil {
		panic(fmt.Sprintf("buckettest: Memory.Keep(%+v): %v", k, err))
	}
	k.Value = bytes.Clone(k.Value)
	e := &Entry{Op: "Keep", Keeping: k}
	err := m.call(ctx, e, func(now int64) {
		before := stateOf(m.keeps, k.Key, now)
		next, kept := k.Apply(before, now)
		e.Kept = kept
		if k.ID == kept.ID || k.ID == before.ID || next.Ends != before.Ends {
			m.keeps[k.Key] = written[shared.KeepState]{next, now}
		}
	})
	if err != nil {
		return shared.Kept{}, err
	}
	kept := e.Kept
	kept.Value = bytes.Clone(kept.Value)
	return kept, nil
}

// stateOf returns the state of a key at a reading of the clock.
func stateOf[S any](states map[string]written[S], key string, now int64) S {
	s := states[key]
	if s.at < now-day {
		delete(states, key)
		return *new(S)
	}
	return s.state
}

// call takes a call through its stages. step is run under the lock, with the reading of the
// clock.
func (m *Memory) call(ctx context.Context, e *Entry, step func(now int64)) error {
	m.lock()
	m.calls++
	e.Call, e.Sent = m.calls, time.Now()
	m.log = append(m.log, e)
	fail, request, reply := m.fail, m.request, m.reply
	m.mu.Unlock()

	fault := NoFault
	if fail != nil {
		fault = fail(e.Call, e.Op)
	}
	arrive := func(now int64) { step(now); e.Done, e.Arrived = true, now }
	err := m.travel(ctx, fault, request, reply, arrive)

	m.lock()
	defer m.mu.Unlock()
	e.Fault, e.Returned, e.Err = fault, time.Now(), err
	return err
}

// travel takes a call that meets a fault through its stages, and returns the error that its
// caller gets.
func (m *Memory) travel(ctx context.Context, fault Fault, request, reply time.Duration, arrive func(now int64)) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case fault == FailBefore:
		return ErrFault
	case fault == LoseRequest:
		<-ctx.Done()
		return ctx.Err()
	}
	arrival := time.Now().Add(request)
	if !wait(ctx, request) {
		m.lock()
		defer m.mu.Unlock()
		m.arriveLaterLocked(arrival, arrive)
		return ctx.Err()
	}
	m.lock()
	arrive(m.clock.at(time.Now()))
	m.mu.Unlock()
	switch {
	case fault == LoseReply:
		<-ctx.Done()
		return ctx.Err()
	case !wait(ctx, reply):
		return ctx.Err()
	case fault == FailAfter:
		return ErrFault
	}
	return nil
}

// wait waits for d, and reports whether it has passed before ctx ended. At one instant it
// has passed first, so that what happens in a bubble does not depend on chance.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	end := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return !time.Now().Before(end)
	}
}

// lock locks m, and lets the requests arrive whose time has come. No goroutine needs to wait for
// their time, as the level can only be seen with the lock.
func (m *Memory) lock() {
	m.mu.Lock()
	now := time.Now()
	for len(m.underway) > 0 && !m.underway[0].at.After(now) {
		first := m.underway[0]
		m.underway = m.underway[1:]
		first.step(m.clock.at(first.at))
	}
}

// arriveLaterLocked puts a request whose caller has gone among those under way.
func (m *Memory) arriveLaterLocked(at time.Time, step func(now int64)) {
	i := len(m.underway)
	for i > 0 && m.underway[i-1].at.After(at) {
		i--
	}
	m.underway = append(m.underway, underway{})
	copy(m.underway[i+1:], m.underway[i:])
	m.underway[i] = underway{at, step}
}

// levelLocked returns the level of a key at a reading of the clock.
func (m *Memory) levelLocked(key string, now int64) shared.BucketLevel {
	l := m.levels[key]
	if l.Empty.Micros < now-keep {
		delete(m.levels, key)
		return shared.BucketLevel{}
	}
	return l
}

// storeLocked writes the level of a key that a call has changed.
func (m *Memory) storeLocked(key string, e *Entry) {
	if e.After != e.Before {
		m.levels[key] = e.After
	}
}

// Level returns the level of a key; the zero BucketLevel if there is none.
func (m *Memory) Level(key string) shared.BucketLevel {
	m.lock()
	defer m.mu.Unlock()
	return m.levelLocked(key, m.clock.at(time.Now()))
}

// Set sets the level of a key, as if the Bucket had it. l may be damaged.
func (m *Memory) Set(key string, l shared.BucketLevel) {
	m.lock()
	defer m.mu.Unlock()
	m.levels[key] = l
}

// SeatState returns the state of the seats of a key; the zero SeatState if there is none.
func (m *Memory) SeatState(key string) shared.SeatState {
	m.lock()
	defer m.mu.Unlock()
	s := stateOf(m.seats, key, m.clock.at(time.Now()))
	s.Holders = slices.Clone(s.Holders)
	return s
}

// SetSeats sets the state of the seats of a key, as if the Bucket had it. s may be damaged.
func (m *Memory) SetSeats(key string, s shared.SeatState) {
	m.lock()
	defer m.mu.Unlock()
	s.Holders = slices.Clone(s.Holders)
	m.seats[key] = written[shared.SeatState]{s, m.clock.at(time.Now())}
}

// KeepState returns the state of a kept key; the zero KeepState if there is none.
func (m *Memory) KeepState(key string) shared.KeepState {
	m.lock()
	defer m.mu.Unlock()
	s := stateOf(m.keeps, key, m.clock.at(time.Now()))
	s.Value = bytes.Clone(s.Value)
	return s
}

// SetKeep sets the state of a kept key, as if the Bucket had it. s may be damaged.
func (m *Memory) SetKeep(key string, s shared.KeepState) {
	m.lock()
	defer m.mu.Unlock()
	s.Value = bytes.Clone(s.Value)
	m.keeps[key] = written[shared.KeepState]{s, m.clock.at(time.Now())}
}

// Forget loses the level of a key, its seats and its keeper.
func (m *Memory) Forget(key string) error {
	m.lock()
	defer m.mu.Unlock()
	delete(m.levels, key)
	delete(m.seats, key)
	delete(m.keeps, key)
	return nil
}

// Wipe loses the states of all keys, as a server does that is restarted.
func (m *Memory) Wipe() {
	m.lock()
	defer m.mu.Unlock()
	clear(m.levels)
	clear(m.seats)
	clear(m.keeps)
}

// problemOf returns the fault of a Take, or "" if it has none.
func problemOf(t shared.Take) string {
	r := t.Rate
	switch {
	case t.Key == "":
		return "Key is empty"
	case t.Cost < 1 || t.First < 1:
		return "Cost and First must be at least 1"
	case t.Ahead < 0 || t.Ahead > shared.MaxAhead || t.Ahead%time.Microsecond != 0:
		return "Ahead must be from 0 to MaxAhead, in whole microseconds"
	case t.Guard < 0 || t.Guard%time.Microsecond != 0:
		return "Guard must be at least 0, in whole microseconds"
	case r.Version < 0 || r.Version > 1<<53:
		return "Rate.Version must be from 0 to 2⁵³"
	case r.Parts < 1 || r.Parts > 1_000_000_000_000 || r.Part < 0 || r.Part >= r.Parts:
		return "Rate.Parts must be from 1 to 10¹², and Rate.Part from 0 to less than Parts"
	case r.Micros < 0 || r.Micros == 0 && r.Part == 0 || r.Burst < 1:
		return "the time of a unit must be above 0, and Burst at least 1"
	case t.Hold < 0 || t.Hold > 1<<53:
		return "Hold must be from 0 to 2⁵³"
	case t.High.Part < 0 || t.High.Part >= r.Parts:
		return "High.Part must be from 0 to less than Rate.Parts"
	}
	return ""
}

// A clock shows the time of [time.Now] until it is moved.
type clock struct {
	since time.Time // when it was last moved
	shown int64     // its reading then, in nanoseconds since 1970
	ppm   float64   // how much faster it has gone since, in millionths
}

func newClock() clock {
	now := time.Now()
	return clock{since: now, shown: now.UnixNano()}
}

// nanos returns the reading of the clock at an instant.
func (c clock) nanos(at time.Time) int64 {
	passed := at.Sub(c.since)
	return c.shown + int64(passed) + int64(float64(passed)*c.ppm/1e6)
}

// at returns the reading of the clock at an instant, in microseconds rounded down.
func (c clock) at(at time.Time) int64 { return c.nanos(at) / 1000 }

// Now returns the reading of the Memory's clock, in microseconds since 1970, rounded down.
func (m *Memory) Now() int64 {
	m.lock()
	defer m.mu.Unlock()
	return m.clock.at(time.Now())
}

// Step moves the clock forward by d, or back if d is negative.
func (m *Memory) Step(d time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	m.clock.shown += int64(d)
}

// Drift makes the clock go faster than [time.Now] by ppm millionths from now on, or slower
// if ppm is negative.
func (m *Memory) Drift(ppm float64) {
	m.lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.clock = clock{since: now, shown: m.clock.nanos(now), ppm: ppm}
}

// A Fault is the mishap of one call of a [Memory].
type Fault int

const (
	// NoFault lets the call succeed.
	NoFault Fault = iota

	// LoseRequest loses the request: nothing is done, and the call returns when its
	// context ends. In that time nothing answers, so a context without an end hangs.
	LoseRequest

	// LoseReply loses the answer: the step is carried out, and the call returns when its
	// context ends.
	LoseReply

	// FailBefore makes the call return [ErrFault] at once. Nothing is done.
	FailBefore

	// FailAfter makes the call return [ErrFault] after the step has been carried out.
	FailAfter
)

// ErrFault is the error of [FailBefore] and [FailAfter].
var ErrFault = errors.New("buckettest: a fault that the test asked for")

// An Entry is a call of a [Memory], as [Memory.Log] returns it.
type Entry struct {
	Call int    // its number, from 1, in the order in which calls were made
	Op   string // "Take", "GiveBack", "Seats" or "Keep"
	Take shared.Take
	End  shared.Instant // of GiveBack

	Seating shared.Seating // of Seats
	Keeping shared.Keeping // of Keep

	Fault    Fault
	Sent     time.Time // when the call was made
	Returned time.Time // when it returned; zero if it has not yet
	Err      error     // the error that it returned

	// Done is whether the step has been carried out. Then Arrived is the reading of the
	// [Memory]'s clock in that step, Before and After are the level before and after it, and
	// Taken, Seated or Kept is the answer, which the caller may not have got.
	Done          bool
	Arrived       int64
	Before, After shared.BucketLevel
	Taken         shared.Taken
	Seated        shared.Seated
	Kept          shared.Kept
}

// SetDelay sets how long the requests and the answers of later calls travel.
func (m *Memory) SetDelay(request, reply time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	m.request, m.reply = request, reply
}

// Fail sets a function which is asked for each later call what becomes of it. call is the
// number of the call, from 1, and op is that of the [Entry]. The function may use the
// Memory, and is called by several goroutines at once if calls are. nil means that all
// calls succeed.
func (m *Memory) Fail(f func(call int, op string) Fault) {
	m.lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Log returns all calls since the last [Memory.ClearLog], in the order in which they were made.
func (m *Memory) Log() []Entry {
	m.lock()
	defer m.mu.Unlock()
	entries := make([]Entry, len(m.log))
	for i, e := range m.log {
		entries[i] = *e
	}
	return entries
}

// ClearLog empties the log, which long tests would fill memory with. The numbers of calls
// go on.
func (m *Memory) ClearLog() {
	m.lock()
	defer m.mu.Unlock()
	m.log = nil
}
