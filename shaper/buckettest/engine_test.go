package buckettest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// An engine is a Bucket as somebody may write it for a server: states are texts, and the
// steps of Apply are written anew, with at most one mistake.
type engine struct {
	mistake string

	mu     sync.Mutex
	states map[string]string
	step   time.Duration
}

func newEngine(mistake string) *engine { return &engine{mistake: mistake, states: map[string]string{}} }

// is reports whether the engine has a mistake.
func (e *engine) is(mistake string) bool { return e.mistake == mistake }

func (e *engine) now() int64 {
	now := time.Now().Add(e.step).UnixMicro()
	switch {
	case e.is("the clock shows milliseconds"):
		now -= now % 1000
	case e.is("the clock stands still"):
		now = 1_800_000_000_000_001
	case e.is("the clock goes too fast"):
		now += (now - 1_790_000_000_000_000) / 10
	}
	return now
}

func (e *engine) Corrupt(key, value string) error {
	e.states[e.keyOf(key)] = value
	return nil
}

func (e *engine) Forget(key string) error {
	delete(e.states, e.keyOf(key))
	delete(e.states, e.seatsKey(key))
	delete(e.states, e.keepKey(key))
	return nil
}

func (e *engine) Set(key string, l shared.BucketLevel) { e.states[e.keyOf(key)] = e.encode(l) }

func (e *engine) Step(d time.Duration) { e.step += d }

func (e *engine) keyOf(key string) string {
	switch {
	case e.is("keys are lower case"):
		return strings.ToLower(key)
	case e.is("keys are trimmed"):
		return strings.TrimSpace(key)
	case e.is("keys are cut at 255 bytes"):
		return key[:min(len(key), 255)]
	case e.is("keys are valid text"):
		return strings.ToValidUTF8(key, "?")
	case e.is("keys end at a zero"):
		before, _, _ := strings.Cut(key, "\x00")
		return before
	}
	return key
}

func (e *engine) encode(l shared.BucketLevel) string {
	r := l.Rate
	number := func(n int64) string {
		if e.is("numbers lose digits") {
			return fmt.Sprintf("%.0f", float64(n)*(1-1e-15))
		}
		return fmt.Sprint(n)
	}
	if e.is("numbers are floats") {
		r.Burst = int64(float64(r.Burst))
	}
	return strings.Join([]string{number(l.Empty.Micros), fmt.Sprint(l.Empty.Part), fmt.Sprint(r.Version), fmt.Sprint(r.Micros),
		fmt.Sprint(r.Part), fmt.Sprint(r.Parts), fmt.Sprint(r.Burst), fmt.Sprint(l.At), fmt.Sprint(l.Hold)}, " ")
}

// decode returns the state of a text; false if it is none.
func (e *engine) decode(text string) (l shared.BucketLevel, ok bool, err error) {
	r := &l.Rate
	n, err := fmt.Sscanf(text, "%d %d %d %d %d %d %d %d %d", &l.Empty.Micros, &l.Empty.Part, &r.Version, &r.Micros, &r.Part, &r.Parts, &r.Burst, &l.At, &l.Hold)
	if text != "" && err != nil && e.is("a text that can't be read is an error") {
		return l, false, errors.New("can't read the state")
	}
	if n < 9 || err != nil {
		return shared.BucketLevel{}, false, nil
	}
	const most = 1 << 53
	within := func(n, least, most int64) bool { return least <= n && n <= most }
	switch {
	case !within(r.Version, 0, most), !within(r.Micros, 0, 1<<51), r.Micros+r.Part <= 0, r.Burst < 1, !within(l.At, 1, most), !within(l.Hold, 0, most),
		!within(l.Empty.Micros, 0, most), !within(r.Parts, 1, 1e12), !within(r.Part, 0, r.Parts-1):
		return shared.BucketLevel{}, false, nil
	case !within(l.Empty.Part, 0, r.Parts-1) && !e.is("a part may be too great"):
		return shared.BucketLevel{}, false, nil
	}
	return l, true, nil
}

func (e *engine) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if ctx.Err() != nil {
		switch {
		case e.is("a context that has ended is not looked at"):
		case e.is("what may have been carried out is repeated"):
			e.mu.Lock()
			defer e.mu.Unlock()
			_, _ = e.carryOut(t, e.now())
			_, _ = e.carryOut(t, e.now())
			return shared.Taken{}, ctx.Err()
		case e.is("an error has an answer"):
			return shared.Taken{Now: e.now()}, ctx.Err()
		default:
			return shared.Taken{}, ctx.Err()
		}
	}
	now := e.now()
	if e.is("the clock is read before the key is locked") {
		time.Sleep(rand.N(100 * time.Microsecond)) // the wait for the lock
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.is("the clock is read before the key is locked") {
		now = e.now()
	}
	return e.carryOut(t, now)
}

func (e *engine) carryOut(t shared.Take, now int64) (shared.Taken, error) {
	key := e.keyOf(t.Key)
	l, ok, err := e.decode(e.states[key])
	if err != nil {
		return shared.Taken{}, err
	}
	if e.is("a key is forgotten when its level is 0") && l.Empty.Micros < now {
		l, ok = shared.BucketLevel{}, false
	}
	if e.is("two at the same time read the same") {
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
	}
	next, write, answer := e.apply(t, l, ok, now)
	if write {
		e.states[key] = e.encode(next)
	}
	return answer, nil
}

// apply is Take.Apply. It also reports whether there is something to write.
func (e *engine) apply(t shared.Take, l shared.BucketLevel, ok bool, now int64) (next shared.BucketLevel, write bool, answer shared.Taken) {
	r := t.Rate
	answer = shared.Taken{Now: now, Cold: !ok && !e.is("nothing is cold")}
	next = shared.BucketLevel{Empty: shared.Instant{Micros: now}, Rate: r, At: now}
	switch {
	case !ok:
		write = !e.is("the guard is not written with a refusal")
		if !e.is("the guard is forgotten") {
			next.Empty.Micros += t.Guard.Microseconds()
		}
	default:
		next.Empty, next.Hold = l.Empty, l.Hold
		if l.At > now && !e.is("a hold does not go back with the clock") {
			next.Hold = max(0, l.Hold-(l.At-now))
		}
		if l.At > now && !e.is("the clock never goes back") {
			next.Empty.Micros -= l.At - now
			write = !e.is("the clock that went back is not written")
		}
		if e.agree(l.Rate, r) || e.is("only versions are compared") && l.Rate.Version == r.Version {
			if l.Rate.Version < r.Version {
				write = write || !e.is("a newer version of the rate is not written with a refusal")
				if e.is("a newer version of the rate is a change of the rate") {
					next.Empty = e.rescale(r, l.Rate, next.Empty, max(now, next.Hold))
				}
			}
			if !e.is("the greater version is forgotten") {
				next.Rate.Version = max(l.Rate.Version, r.Version)
			}
			break
		}
		if r.Version > l.Rate.Version || e.is("the rate of the latest call is in force") || e.is("of one version the latest call's is in force") && r.Version == l.Rate.Version {
			from := max(now, next.Hold)
			if e.is("a new rate stretches a hold") {
				from = now
			}
			next.Empty, write = e.rescale(r, l.Rate, next.Empty, from), !e.is("a new rate is not written with a refusal")
			break
		}
		if next.Hold > now && !e.is("an older rate is not told of a hold") {
			answer.Hold = next.Hold
		}
		answer.Empty = next.Empty.Later(shared.Instant{Micros: now})
		if e.is("Empty may be before Now") {
			answer.Empty = next.Empty
		}
		answer.Other = &l.Rate
		switch {
		case e.is("the answer does not tell the other rate"):
			answer.Other = nil
		case e.is("a Take at an older rate writes"):
			l.Empty = l.Empty.Later(t.High)
			return l, true, answer
		case e.is("an older rate makes a hold longer"):
			l.Hold = max(l.Hold, t.Hold)
			return l, true, answer
		}
		return l, false, answer
	}
	if now >= t.Seen && !e.is("High is not looked at") || e.is("Seen is not looked at") {
		high := t.High
		if e.is("High is whole microseconds") {
			high.Part = 0
		}
		if next.Empty.Later(high) != next.Empty {
			next.Empty, write = high, write || e.is("High is written with a refusal")
		}
	}
	if told := t.Hold; now >= t.Seen || e.is("a hold of another clock counts") {
		switch {
		case told <= now && !e.is("a hold that has ended is told"):
		case told > next.Hold, e.is("the shorter hold wins"):
			next.Hold, write = told, write || !e.is("a hold is not written with a refusal")
		}
	}
	if next.Hold > now || next.Hold > 0 && e.is("a hold that has ended is told") {
		room := r.Times(r.Burst - 1)
		if e.is("a burst follows a hold") {
			room = shared.Instant{}
		}
		answer.Hold = next.Hold
		if !e.is("a hold is told and not kept") {
			next.Empty = next.Empty.Later(r.Plus(shared.Instant{Micros: next.Hold}, room))
		}
	} else {
		next.Hold = 0
	}
	if e.is("a hold is a level alone") {
		next.Hold = 0
	}
	if !e.is("idle time is saved up") {
		next.Empty = next.Empty.Later(shared.Instant{Micros: now})
	}
	answer.Empty = next.Empty

	room := t.Room()
	switch {
	case e.is("First is not looked at"):
		room = shared.Take{First: 1, Rate: r}.Room()
	case e.is("room may be negative") && t.First > r.Burst:
		room = shared.Take{First: 1, Rate: shared.BucketRate{Micros: r.Micros, Part: r.Part, Parts: r.Parts, Burst: 1 + min(t.First-r.Burst, 1e6)}}.Room()
		room.Micros, room.Part = -room.Micros, 0
	}
	ahead := t.Ahead.Microseconds()
	switch {
	case e.is("Ahead is not looked at"):
		ahead = 0
	case e.is("Ahead is at most a second"):
		ahead = min(ahead, 1_000_000)
	case e.is("Ahead is a microsecond shorter"):
		ahead--
	}
	first := r.Minus(next.Empty, room)
	late := first.Micros > now+ahead || first.Micros == now+ahead && first.Part > 0
	if e.is("parts do not decide") {
		late = first.Micros > now+ahead
	}
	if late {
		if e.is("a refusal takes") {
			next.Empty.Micros++
			return next, true, answer
		}
		return next, write, answer
	}
	answer.OK = true
	rise := t.Rise()
	switch {
	case e.is("First is taken for Cost"):
		rise = shared.Take{Cost: t.First, Rate: r}.Rise()
	case e.is("parts are dropped"):
		rise.Part, next.Empty.Part = 0, 0
	case e.is("time is a float"):
		at := float64(next.Empty.Micros) + float64(next.Empty.Part)/float64(r.Parts) + float64(rise.Micros) + float64(rise.Part)/float64(r.Parts)
		whole, part := math.Modf(at)
		next.Empty = shared.Instant{Micros: int64(whole), Part: int64(part * float64(r.Parts))}
		return next, true, answer
	}
	next.Empty.Micros += rise.Micros
	if next.Empty.Part += rise.Part; next.Empty.Part >= r.Parts && !e.is("parts are not carried") {
		next.Empty.Part -= r.Parts
		next.Empty.Micros++
	}
	return next, true, answer
}

// agree reports whether two rates differ in their versions at most.
func (e *engine) agree(a, b shared.BucketRate) bool {
	return a == b || a.Agrees(b) && !e.is("versions of one rate conflict")
}

func (e *engine) rescale(r, old shared.BucketRate, empty shared.Instant, now int64) shared.Instant {
	right := r.Rescale(old, empty, now)
	unit := func(r shared.BucketRate) float64 { return float64(r.Micros) + float64(r.Part)/float64(r.Parts) }
	span := float64(empty.Micros-now) + float64(empty.Part)/float64(old.Parts)
	ratio := unit(r) / unit(old)
	switch {
	case e.is("a new rate keeps the instant"):
		return shared.Instant{Micros: empty.Micros, Part: 0}
	case e.is("a new rate is a new level"):
		return shared.Instant{Micros: now}
	case e.is("a new rate is early"):
		right.Micros -= min(1, right.Micros-now)
	case e.is("a new rate is late"):
		right.Micros += 3
	case e.is("slots of the old rate are not looked at"):
		return shared.Instant{Micros: now + int64(math.Ceil(min(math.Max(0, span)*ratio, 1<<51)))}
	case e.is("a new rate counts the level as of now"):
		next := min(span-float64(old.Burst-1)*unit(old), 2e6)
		scaled := span * ratio
		if next > 0 {
			scaled = max(scaled, next+float64(r.Burst-1)*unit(r))
		}
		return shared.Instant{Micros: now + int64(math.Ceil(max(0, min(scaled, 1<<51))))}
	case e.is("a new rate has no bound"):
		if right.Micros == now+1<<51 {
			right.Micros += 1 << 40
		}
	}
	return right
}

func (e *engine) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	if ctx.Err() != nil && !e.is("GiveBack does not look at its context") {
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := e.keyOf(t.Key)
	l, ok, err := e.decode(e.states[key])
	if err != nil && !e.is("a text that can't be read is an error") {
		return err
	}
	sameRate := e.agree(l.Rate, t.Rate) || e.is("GiveBack does not compare rates")
	switch {
	case e.is("GiveBack compares versions only"):
		sameRate = l.Rate.Version == t.Rate.Version
	case e.is("GiveBack compares versions too"):
		sameRate = l.Rate == t.Rate
	}
	sameEnd := l.Empty == end || e.is("GiveBack does not compare ends") || e.is("GiveBack compares microseconds") && l.Empty.Micros == end.Micros
	switch {
	case e.is("GiveBack does nothing"):
		return nil
	case !ok && e.is("GiveBack makes a state"):
		l = shared.BucketLevel{Empty: shared.Instant{Micros: e.now()}, Rate: t.Rate, At: e.now()}
	case !ok || !sameRate || !sameEnd:
		return nil
	case e.is("GiveBack drops parts"):
		l.Empty.Micros -= t.Rise().Micros
	case e.is("GiveBack ends a hold"):
		l.Empty, l.Hold = t.Rate.Minus(l.Empty, t.Rise()), 0
	default:
		l.Empty = t.Rate.Minus(l.Empty, t.Rise())
	}
	e.states[key] = e.encode(l)
	return nil
}
