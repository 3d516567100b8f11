package buckettest_test

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// The engine's seats and kept keys are texts too, beside its levels: one line for the key, and one for each process.

func (e *engine) seatsKey(key string) string {
	if e.is("seats: are in the place of the level") {
		return e.keyOf(key)
	}
	return "seats of " + e.keyOf(key)
}

func (e *engine) SetSeats(key string, s shared.SeatState) {
	e.states[e.seatsKey(key)] = e.encodeSeats(s.Ready, s.Holders)
}

func (e *engine) encodeSeats(ready int64, holders []shared.SeatHolder) string {
	lines := []string{fmt.Sprint(ready)}
	for _, h := range holders {
		lines = append(lines, fmt.Sprintf("%d %d %d %d %d %q", h.Held, h.Want, h.Since, h.Expires, h.Number, h.ID))
	}
	return strings.Join(lines, "\n")
}

// decodeSeats returns 0 for a text that is damaged.
func (e *engine) decodeSeats(text string) (ready int64, holders []shared.SeatHolder) {
	const most, mostSeats = 1 << 53, 1<<31 - 1
	if text == "" {
		return 0, nil
	}
	lines := strings.Split(text, "\n")
	_, err := fmt.Sscan(lines[0], &ready)
	damaged := err != nil || ready < 1 || ready > most
	for _, line := range lines[1:] {
		var h shared.SeatHolder
		_, err := fmt.Sscanf(line, "%d %d %d %d %d %q", &h.Held, &h.Want, &h.Since, &h.Expires, &h.Number, &h.ID)
		bad := err != nil || h.ID == "" || min(int64(h.Held), int64(h.Want), h.Since, h.Number, h.Expires-1) < 0 || max(h.Since, h.Number, h.Expires) > most || max(h.Held, h.Want) > mostSeats
		if bad && e.is("seats: a process that is damaged is left out") {
			continue
		}
		damaged = damaged || bad
		holders = append(holders, h)
	}
	if damaged && !e.is("seats: what is damaged counts") {
		return 0, nil
	}
	return ready, holders
}

func (e *engine) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	if ctx.Err() != nil {
		switch {
		case e.is("seats: a context that has ended is not looked at"):
		case e.is("seats: an error has an answer"):
			return shared.Seated{Held: 1}, ctx.Err()
		default:
			return shared.Seated{}, ctx.Err()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.is("seats: IDs are lower case") {
		q.ID = strings.ToLower(q.ID)
	}
	if e.is("seats: IDs are valid text") {
		q.ID = strings.ToValidUTF8(q.ID, "?")
	}
	key := e.seatsKey(q.Key)
	before := e.states[key]
	if e.is("seats: two at the same time read the same") {
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
	}
	after, answer := e.seat(q, before, e.now())
	e.states[key] = after
	return answer, nil
}

// seat is Seating.Apply.
func (e *engine) seat(q shared.Seating, text string, now int64) (string, shared.Seated) {
	lease, guard, poll := int64(10_000_000), int64(3_600_000), int64(1_000_000)
	switch {
	case e.is("seats: a lease is shorter"):
		lease = 9_900_000
	case e.is("seats: a lease is longer"):
		lease = 10_100_000
	case e.is("seats: the guard is shorter"):
		guard = 3_500_000
	case e.is("seats: wants age sooner"):
		poll = 950_000
	case e.is("seats: there is no guard after a loss"):
		guard = 0
	case e.is("seats: a want never ages"):
		poll = 1 << 40
	}
	ready, holders := e.decodeSeats(text)
	if ready == 0 {
		ready = now + guard
	}
	me := shared.SeatHolder{ID: q.ID, Held: q.Held, Want: q.Want, Number: q.Number, Expires: now + lease}
	if !e.is("seats: a clock that goes back makes the guard longer") {
		ready = min(ready, now+guard)
	}
	var left, others []shared.SeatHolder
	had, number := 0, int64(0)
	for _, h := range holders {
		before := h
		if !e.is("seats: a clock that goes back makes a lease longer") {
			h.Expires = min(h.Expires, now+lease)
		}
		if !e.is("seats: who waits since a later time is behind for ever") {
			h.Since = min(h.Since, now)
		}
		switch {
		case h.Expires < now, h.Expires == now && !e.is("seats: a lease ends a microsecond late"):
			if !e.is("seats: a lease never ends") {
				continue
			}
		case h.ID == q.ID:
			if had, number = h.Held, h.Number; !e.is("seats: a process waits from when it asks") {
				me.Since = h.Since
			}
			continue
		}
		if left = append(left, h); e.is("seats: what the clock has changed is not written") {
			left[len(left)-1] = before
		}
		if age := now + lease - h.Expires; age > 2*poll {
			switch {
			case e.is("seats: what is held ages with the want"):
				continue
			case h.Want > h.Held || e.is("seats: a process that does not wait ages too"):
				h.Want = h.Held
				if e.is("seats: a process that does not wait ages too") {
					h.Want = 0
				}
			}
		}
		others = append(others, h)
	}
	switch {
	case number > q.Number && !e.is("seats: numbers are not looked at"):
		answer := shared.Seated{Held: had, Target: q.Cap, Now: now}
		if e.is("seats: a question that was overtaken is answered as if it was not") {
			answer.Held = q.Held
		}
		if e.is("seats: a question that was overtaken makes a process forgotten") && q.Held+q.Want == 0 {
			return e.encodeSeats(ready, left), answer
		}
		return text, answer
	case number == q.Number && number > 0 && e.is("seats: a number must be a greater one"):
		return text, shared.Seated{Held: had, Target: q.Cap, Now: now}
	}
	if q.Answered > number && !e.is("seats: an older state is not noticed") {
		if now >= ready || e.is("seats: the guard begins anew with each process") {
			ready = now + guard
		}
	}
	if q.Held > q.Cap && e.is("seats: what is above the cap is taken away") {
		me.Held = q.Cap
	}
	if had > q.Held && e.is("seats: what is given back is not free") {
		me.Held = had
	}
	if me.Want <= me.Held {
		me.Since = 0
	} else if me.Since == 0 {
		me.Since = now
	}

	free := int64(q.Cap) - int64(me.Held)
	for _, h := range others {
		free -= int64(h.Held)
	}
	if now >= ready && me.Want > me.Held && free > 0 {
		told := me.Held
		all := append(slices.Clone(others), me)
		if e.is("seats: what others wait for is not kept for them") {
			all = []shared.SeatHolder{me}
		}
		rise := func(h shared.SeatHolder, level int64) int64 { return max(0, min(level, int64(h.Want))-int64(h.Held)) }
		needs := func(level int64) (n int64) {
			for _, h := range all {
				n += rise(h, level)
			}
			return n
		}
		level := int64(0)
		for bit := int64(1) << 31; bit > 0; bit >>= 1 {
			if needs(level+bit) <= free {
				level += bit
			}
		}
		rest := free - needs(level)
		me.Held += int(rise(me, level))
		slices.SortFunc(all, func(a, b shared.SeatHolder) int {
			if e.is("seats: IDs come before times") {
				return strings.Compare(a.ID, b.ID)
			}
			if e.is("seats: IDs do not decide") {
				return cmp.Compare(a.Since, b.Since)
			}
			return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.ID, b.ID))
		})
		for _, h := range all {
			if int64(h.Held) <= level && level < int64(h.Want) && rest > 0 {
				rest--
				if h.ID == q.ID {
					me.Held++
				}
			}
		}
		if e.is("seats: whoever has waited longest gets all") {
			for _, h := range all {
				got := min(free, int64(h.Want-h.Held))
				if free -= got; h.ID == q.ID {
					me.Held = h.Held + int(got)
				}
			}
		}
		if me.Held >= me.Want {
			me.Since = 0
		} else if me.Held > told && !e.is("seats: a process that got some is still first") {
			me.Since = now
		}
		if e.is("seats: what is kept for others is theirs at once") {
			for i, h := range left {
				left[i].Held += int(rise(h, level))
			}
		}
	}

	target, starving, waits := q.Cap, false, false
	wants := []int{q.Want}
	for _, h := range others {
		wants = append(wants, h.Want)
		waits = waits || h.Want > h.Held
		starving = starving || h.Want > h.Held && h.Held == 0
	}
	switch {
	case e.is("seats: the target is always the cap"):
	case waits || e.is("seats: the target does not ask who waits"):
		// The greatest level up to which all wants can be met.
		sum := func(level int) (n int64) {
			for _, w := range wants {
				n += int64(min(w, level))
			}
			return n
		}
		level := 0
		for bit := 1 << 30; bit > 0; bit >>= 1 {
			if level|bit <= q.Cap && sum(level|bit) <= int64(q.Cap) {
				level |= bit
			}
		}
		// Without a remainder nobody would get one more.
		more := sum(level) < int64(q.Cap) && level < slices.Max(wants)
		if more && (!starving || e.is("seats: the target is rounded up while somebody has none")) && !e.is("seats: the target is rounded down") {
			level++
		}
		if e.is("seats: the target is an equal part") {
			level = q.Cap / len(wants)
		}
		target = min(q.Want, level)
	}
	if q.Held+q.Want > 0 || e.is("seats: no process is forgotten") {
		left = append(left, me)
	}
	if len(left) == 0 && e.is("seats: a key without a process is forgotten") {
		return "", shared.Seated{Held: me.Held, Target: target, Now: now}
	}
	return e.encodeSeats(ready, left), shared.Seated{Held: me.Held, Target: target, Now: now}
}

func (e *engine) keepKey(key string) string {
	if e.is("seats: are in the place of the keeper") {
		return e.seatsKey(key)
	}
	return "keeper of " + e.keyOf(key)
}

func (e *engine) SetKeep(key string, s shared.KeepState) {
	e.states[e.keepKey(key)] = e.encodeKeep(s)
}

func (e *engine) encodeKeep(s shared.KeepState) string {
	return fmt.Sprintf("%d %d %q\n", s.Lease.Microseconds(), s.Ends, s.ID) + string(s.Value)
}

func (e *engine) decodeKeep(text string) shared.KeepState {
	var s shared.KeepState
	var lease int64
	line, value, _ := strings.Cut(text, "\n")
	if _, err := fmt.Sscanf(line, "%d %d %q", &lease, &s.Ends, &s.ID); err != nil {
		return shared.KeepState{}
	}
	s.Value = []byte(value)
	s.Lease = time.Duration(lease) * time.Microsecond
	free := s.ID == "" && lease == 0 && s.Ends == 0
	kept := s.ID != "" && lease > 0 && lease <= 60_000_000 && s.Ends > 0 && s.Ends <= 1<<53
	if !free && !kept && !e.is("a kept key: what is damaged counts") {
		return shared.KeepState{}
	}
	return s
}

func (e *engine) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	if ctx.Err() != nil {
		switch {
		case e.is("a kept key: a context that has ended is not looked at"):
		case e.is("a kept key: an error has an answer"):
			return shared.Kept{ID: k.ID}, ctx.Err()
		default:
			return shared.Kept{}, ctx.Err()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.is("a kept key: IDs are trimmed"):
		k.ID = strings.TrimSpace(k.ID)
	case e.is("a kept key: values are valid text"):
		k.Value = []byte(strings.ToValidUTF8(string(k.Value), "?"))
	case e.is("a kept key: values are cut"):
		k.Value = k.Value[:min(len(k.Value), 1<<20-1)]
	case e.is("a kept key: a lease has whole seconds"):
		k.Lease = k.Lease.Round(time.Second)
	}
	key := e.keepKey(k.Key)
	s := e.decodeKeep(e.states[key])
	if e.is("a kept key: two at the same time read the same") {
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
	}
	now := e.now()
	s, answer := e.keep(k, s, now)
	e.states[key] = e.encodeKeep(s)
	return answer, nil
}

// keep is Keeping.Apply.
func (e *engine) keep(k shared.Keeping, s shared.KeepState, now int64) (shared.KeepState, shared.Kept) {
	before := s
	lease := s.Lease
	if e.is("a kept key: after the clock has gone back the lease is as long as the asker's") {
		lease = k.Lease
	}
	if ends := now + lease.Microseconds(); s.Ends > ends && !e.is("a kept key: a lease gets longer as the clock goes back") {
		s.Ends = ends
		if !e.is("a kept key: a look does not write that the clock has gone back") {
			before = s
		}
	}
	if s.Ends < now || s.Ends == now && !e.is("a kept key: a lease ends a microsecond late") {
		if s.ID, s.Lease, s.Ends = "", 0, 0; e.is("a kept key: a value ends with the lease") {
			s.Value = nil
		}
	}
	if e.is("a kept key: a lease never ends") {
		s.ID = before.ID
	}
	if s.ID == "" && k.Lease == 0 && e.is("a kept key: whoever looks takes it") {
		k.Lease = 3 * time.Second
	}
	keeps := s.ID == k.ID || k.Lease > 0 && e.is("a kept key: whoever asks keeps it")
	told := s.Value
	switch {
	case keeps:
		if k.Lease > 0 || !e.is("a kept key: the last value is not written") {
			s.Value = k.Value
		}
		if s.Ends = now + k.Lease.Microseconds(); e.is("a kept key: a lease is not renewed") {
			s.Ends = before.Ends
		}
		s.Lease = k.Lease
	case s.ID == "" && k.Lease > 0:
		s.ID, s.Lease, s.Ends = k.ID, k.Lease, now+k.Lease.Microseconds()
		if e.is("a kept key: whoever begins writes its value") {
			s.Value = k.Value
		}
	case e.is("a kept key: anybody writes the value"):
		before.Value = k.Value
		return before, shared.Kept{ID: s.ID, Value: k.Value, Now: now}
	case k.Lease == 0 && e.is("a kept key: anybody gives it up"):
		return shared.KeepState{Value: s.Value}, shared.Kept{Value: s.Value, Now: now}
	default:
		return before, shared.Kept{ID: s.ID, Value: s.Value, Now: now}
	}
	if k.Lease == 0 {
		s.ID, s.Ends = "", 0
		if e.is("a kept key: what is given up is kept to the end of its lease") {
			s = before
			s.Value = k.Value
		}
	}
	answer := shared.Kept{ID: s.ID, Value: s.Value, Now: now}
	if e.is("a kept key: a keeper is told the value of before") {
		answer.Value = told
	}
	return s, answer
}
