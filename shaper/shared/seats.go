package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// A Seater is a [Bucket] that can also bound how many requests of all processes together are under way
// ([Options.InFlight]). A Shaper asks for it by assertion, once. Package buckettest has the tests that it must pass.
type Seater interface {
	// Seats tells how many seats of a key a process keeps and could use, and returns how many it has from now on, in
	// one atomic step. [Seating.Apply] is that step. An error means that it is not known whether it was taken. Seats
	// must return soon after ctx has ended, and must not be repeated by the Bucket.
	Seats(ctx context.Context, q Seating) (Seated, error)
}

// A Seating asks a [Seater] for seats: rights of a process to have one request under way each. No number is above 2³¹ − 1,
// but for those of questions.
type Seating struct {
	Key  string // of the seats; not empty
	ID   string // of this process; not empty, and no other process has it
	Cap  int    // how many seats there are for all processes together; at least 1
	Held int    // how many this process keeps: those in use at least. From when it asks it uses no more, until the answer gives it more
	Want int    // how many it could use; 0 with a Held of 0: it needs none any more, and is forgotten

	// Number counts the questions of this process for this key: each has a greater one than all before it, up to 2⁵³. A
	// question without an answer may still be under way, and arrive after a later one: it must not take from this
	// process in the state what the later one gave it. 0 means that this process does not count.
	Number int64

	// Answered is the Number of the latest question whose answer this process has got, while it has its seats by that answer:
	// 0 if its lease has ended since, or if it has told since that it needs none. A state that does not know
	// of that question is an older one that the [Bucket] got back, or its clock has leapt: then seats are given only after
	// a guard, as after a loss.
	Answered int64
}

// Check returns why q can't be asked for, or nil if it can: no field is out of its range. A [Seater] checks each question before it
// leaves for a server.
func (q Seating) Check() error {
	const mostSeats, most = 1<<31 - 1, 1 << 53
	switch {
	case q.Key == "":
		return errors.New("the key is empty")
	case q.ID == "":
		return errors.New("the ID is empty")
	case q.Cap < 1 || q.Cap > mostSeats:
		return fmt.Errorf("a Cap of %d is out of its range, from 1 to 2³¹ − 1", q.Cap)
	case q.Held < 0 || q.Held > mostSeats:
		return fmt.Errorf("a Held of %d is out of its range, from 0 to 2³¹ − 1", q.Held)
	case q.Want < 0 || q.Want > mostSeats:
		return fmt.Errorf("a Want of %d is out of its range, from 0 to 2³¹ − 1", q.Want)
	case q.Number < 0 || q.Number > most:
		return fmt.Errorf("a Number of %d is out of its range, from 0 to 2⁵³", q.Number)
	case q.Answered < 0 || q.Answered > q.Number:
		return fmt.Errorf("an Answered of %d is out of its range, from 0 to the Number, %d", q.Answered, q.Number)
	}
	return nil
}

// Seated is the answer to a [Seating].
type Seated struct {
	Held   int   // how many seats this process has, for [SeatLease] from when it asked; never less than it said that it keeps
	Target int   // to how many it is to come down as its calls end, while others wait for seats; the Cap if nobody waits
	Now    int64 // the Bucket's clock in this step, in microseconds since 1970, rounded down
}

// The times of seats. They are the same for all processes, so they are no options.
const (
	SeatLease = 10 * time.Second        // for how long a process has its seats, from when it asked
	SeatRenew = 3300 * time.Millisecond // how often it asks again while it has some
	SeatPoll  = time.Second             // and while it waits for one
	SeatGuard = 3600 * time.Millisecond // for how long a key without a state gives no seats: until all have said what they hold
)

// A SeatState is the state of the seats of one key of a [Seater]. The zero SeatState stands for a key without a state. A
// Bucket takes a state that is damaged for none: one that is not of this form, or has a number outside of its range. It
// forgets a state a day after it was last written, and no sooner.
type SeatState struct {
	Ready   int64        // the reading of the Bucket's clock from which seats are given, in microseconds; from 1 to 2⁵³
	Holders []SeatHolder // in the order of their IDs, as bytes
}

// A SeatHolder is a process in a [SeatState].
type SeatHolder struct {
	ID         string // not empty
	Held, Want int    // from 0 to 2³¹ − 1
	Since      int64  // the reading since when it waits for a seat, up to 2⁵³; 0 if its Want is not above its Held
	Expires    int64  // the reading at which its lease ends, from 1 to 2⁵³: SeatLease after it asked last
	Number     int64  // of its latest question; from 0 to 2⁵³
}

// valid reports whether the state is of this form, and all numbers are within their ranges.
func (s SeatState) valid() bool {
	const mostSeats, most = 1<<31 - 1, 1 << 53
	for i, h := range s.Holders {
		if h.ID == "" || i > 0 && s.Holders[i-1].ID >= h.ID || h.Held < 0 || h.Held > mostSeats || h.Want < 0 || h.Want > mostSeats ||
			h.Since < 0 || h.Since > most || h.Expires < 1 || h.Expires > most || h.Number < 0 || h.Number > most {
			return false
		}
	}
	return 0 < s.Ready && s.Ready <= most
}

// Apply is the atomic step of [Seater.Seats]. s is the state of the key, and now the [Bucket]'s clock, in microseconds
// rounded down, read after the key was locked. Apply returns the state to be written and the answer. A Bucket whose server
// can't call Apply does the same in the server's language; package buckettest compares the two.
//
// The steps are these.
//
//  1. Without a state Ready is now + [SeatGuard]: until then no seats are given, while all processes tell what they hold.
//  2. No time of the state is later than it could be if it were written now: Ready is at most now + SeatGuard, each Expires
//     at most now + [SeatLease], and each Since at most now. Where one was later the clock has gone back.
//  3. A process whose Expires is not after now is dropped: its lease has ended.
//  4. If the state has this process with a greater Number than q's, q has been overtaken on the way. The answer has the
//     Held of the state and a Target of q.Cap, and nothing is written.
//  5. If q.Answered is above the Number that the state has of this process, which is 0 if it does not have it, the state is
//     not the one of that answer. Unless now is before Ready, Ready becomes now + SeatGuard.
//  6. The state has Held, Want and Number of this process as q tells them, and Expires is now + SeatLease. Held stands, even
//     if all together then hold more than the Cap: what is in use can't be taken away. Since stays if this process
//     waited before, and is now if it has begun to; it waits if its Want is above its Held.
//  7. The want of another process that has not asked for 2 × [SeatPoll] counts as no more than it holds: who waits asks each
//     SeatPoll, so it may be dead. Its seats stay its own until its lease ends.
//  8. If now is not before Ready and this process waits, the seats of q.Cap that nobody holds go one by one to whoever
//     waits and has fewest, of these to who has waited longest, and of these to the least ID. This process gets what
//     falls to it. The others get theirs as they ask; until then nobody else does. If it has got all that it wants, Since becomes 0,
//     and if it has got some, now.
//  9. If no other process waits, Target is q.Cap. Otherwise it is this process's max-min fair share of q.Cap: its Want, but
//     no more than the level up to which all wants can be met equally. A level that is no whole number is rounded up,
//     as nobody gains if whoever has one more than another gives it up; or down if somebody who waits has no seat.
//  10. A process whose Held and Want are both 0 is dropped. The state is written, also if it has no process any more: or the
//     key's next would have to wait for the guard again.
//
// Caps may differ, as during a deployment. Each process is given seats by its own Cap, so all together never
// hold more than the greatest.
func (q Seating) Apply(s SeatState, now int64) (SeatState, Seated) {
	guarded := now + SeatGuard.Microseconds()
	leased := now + SeatLease.Microseconds()
	next := SeatState{Ready: guarded}
	mine := SeatHolder{ID: q.ID}
	free := int64(q.Cap - q.Held)
	var others []SeatHolder // with the wants that count
	if s.valid() {
		next.Ready = min(s.Ready, guarded)
		for _, h := range s.Holders {
			h.Expires, h.Since = min(h.Expires, leased), min(h.Since, now)
			switch {
			case h.Expires <= now:
				continue
			case h.ID == q.ID:
				mine = h
				continue
			}
			next.Holders = append(next.Holders, h)
			free -= int64(h.Held)
			if leased-h.Expires > 2*SeatPoll.Microseconds() {
				h.Want = min(h.Want, h.Held)
			}
			others = append(others, h)
		}
	}
	if mine.Number > q.Number {
		return s, Seated{Held: mine.Held, Target: q.Cap, Now: now}
	}
	if q.Answered > mine.Number && now >= next.Ready {
		next.Ready = guarded
	}
	mine.Held, mine.Want, mine.Number, mine.Expires = q.Held, q.Want, q.Number, leased
	switch {
	case !mine.waits():
		mine.Since = 0
	case mine.Since == 0:
		mine.Since = now
	}
	if more := min(free, int64(q.Want)-int64(q.Held)); more > 0 && now >= next.Ready {
		got := mine.share(others, free, int(more))
		mine.Held += got
		switch {
		case !mine.waits():
			mine.Since = 0
		case got > 0:
			mine.Since = now
		}
	}
	if mine.Held > 0 || mine.Want > 0 {
		i, _ := slices.BinarySearchFunc(next.Holders, q.ID, func(h SeatHolder, id string) int { return strings.Compare(h.ID, id) })
		next.Holders = slices.Insert(next.Holders, i, mine)
	}
	return next, Seated{Held: mine.Held, Target: q.target(others), Now: now}
}

// waits reports whether the process could use more seats than it has.
func (h SeatHolder) waits() bool { return h.Want > h.Held }

// share returns how many of free seats fall to h, at most most, if they go one by one to whoever has fewest. Before h gets
// its next seat, each of the others has risen to what h has then, and to one more if it comes first.
func (h SeatHolder) share(others []SeatHolder, free int64, most int) int {
	return sort.Search(most, func(got int) bool {
		before := int64(got)
		for _, o := range others {
			if !o.waits() {
				continue
			}
			level := int64(h.Held) + int64(got)
			if cmp.Or(cmp.Compare(o.Since, h.Since), strings.Compare(o.ID, h.ID)) < 0 {
				level++
			}
			before += min(max(level-int64(o.Held), 0), int64(o.Want-o.Held))
		}
		return before >= free
	})
}

// target returns the [Seated.Target] of a process beside others.
func (q Seating) target(others []SeatHolder) int {
	if !slices.ContainsFunc(others, SeatHolder.waits) {
		return q.Cap
	}
	wants := []int{q.Want}
	starving := false
	for _, o := range others {
		wants = append(wants, o.Want)
		starving = starving || o.waits() && o.Held == 0
	}
	slices.Sort(wants)
	left := q.Cap
	for i, w := range wants {
		if n := len(wants) - i; int64(w)*int64(n) >= int64(left) {
			level := left / n
			if left%n > 0 && !starving {
				level++
			}
			return min(q.Want, level)
		}
		left -= w
	}
	return min(q.Want, q.Cap)
}
