package llmtest

import (
	"time"

	"example.com/leakybucket/llm"
)

// limits are the counters of a provider: "the token bucket algorithm … your capacity is continuously replenished up to your maximum
// limit, rather than being reset at fixed intervals" (docs.claude.com/en/api/rate-limits, as quoted in 2026-06). Gemini counts
// a rolling minute. The others' are taken to be buckets, too.
type limits struct{ requests, tokens, input, output counter }

func newLimits(q llm.Quota, minute time.Duration, isRolling bool) (l limits) {
	l.each(q, func(c *counter, n int) {
		if *c = (&bucket{limit: int64(n), token: int64(minute), at: time.Now()}); isRolling {
			*c = &rolling{limit: n, minute: minute}
		}
	})
	return l
}

// A counter counts the use of one limit of a minute.
type counter interface {
	// untilFits returns how long until n tokens fit. Output that is counted as it is produced may have filled the
	// counter beyond its limit.
	untilFits(n int, now time.Time) (wait time.Duration, possible bool)

	// take counts n tokens; a negative number is given back.
	take(n int, now time.Time)

	size() int // 0: there is no limit
	remaining(now time.Time) int
	untilFull(now time.Time) time.Duration // until nothing of the limit is used
}

// each calls a function with each counter and its part of a quota.
func (l *limits) each(q llm.Quota, f func(c *counter, n int)) {
	f(&l.requests, q.Requests)
	f(&l.tokens, q.Tokens)
	f(&l.input, q.Input)
	f(&l.output, q.Output)
}

// fit reports whether a call of such a size fits within all limits. wait is how long until it does; 0 if
// it never will.
func (l *limits) fit(q llm.Quota, now time.Time) (wait time.Duration, ok bool) {
	never := false
	l.each(q, func(c *counter, n int) {
		d, possible := (*c).untilFits(n, now)
		wait = max(wait, d)
		never = never || !possible
	})
	if never {
		return 0, false
	}
	return wait, wait == 0
}

// take counts a quota; a negative number is given back.
func (l *limits) take(q llm.Quota, now time.Time) {
	l.each(q, func(c *counter, n int) { (*c).take(n, now) })
}

// A bucket holds at most a minute's quota, and drains evenly. Its level is in units of which a token is
// a minute's nanoseconds, so that it drains by limit units in a nanosecond.
type bucket struct {
	limit int64 // tokens in a minute; 0: there is no limit
	token int64 // the nanoseconds of a minute
	level int64
	at    time.Time // of level
}

func (b *bucket) drain(now time.Time) {
	if elapsed := int64(now.Sub(b.at)); elapsed > 0 {
		b.at = now
		if b.limit == 0 || elapsed > b.level/b.limit {
			b.level = 0
			return
		}
		b.level -= elapsed * b.limit
	}
}

func (b *bucket) untilFits(n int, now time.Time) (wait time.Duration, possible bool) {
	b.drain(now)
	switch over := b.level + int64(n)*b.token - b.limit*b.token; {
	case b.limit == 0 || over <= 0 || n == 0:
		return 0, true
	case int64(n) > b.limit:
		return 0, false
	default:
		return time.Duration((over + b.limit - 1) / b.limit), true
	}
}

func (b *bucket) take(n int, now time.Time) {
	b.drain(now)
	if b.limit > 0 {
		b.level = max(0, b.level+int64(n)*b.token)
	}
}

func (b *bucket) size() int { return int(b.limit) }

func (b *bucket) remaining(now time.Time) int {
	b.drain(now)
	return int(max(0, b.limit*b.token-b.level) / b.token)
}

func (b *bucket) untilFull(now time.Time) time.Duration {
	b.drain(now)
	if b.limit == 0 {
		return 0
	}
	return time.Duration((b.level + b.limit - 1) / b.limit)
}

// A rolling counts what was used in the minute that ends now.
type rolling struct {
	limit  int // 0: there is none
	minute time.Duration
	used   []used
	sum    int
}

type used struct {
	n  int
	at time.Time
}

// forget forgets what is a minute ago.
func (r *rolling) forget(now time.Time) {
	for len(r.used) > 0 && now.Sub(r.used[0].at) >= r.minute {
		r.sum -= r.used[0].n
		r.used = r.used[1:]
	}
}

func (r *rolling) untilFits(n int, now time.Time) (wait time.Duration, possible bool) {
	r.forget(now)
	switch {
	case r.limit == 0 || n == 0:
		return 0, true
	case n > r.limit:
		return 0, false
	}
	left := r.sum
	for _, u := range r.used {
		if left+n <= r.limit {
			break
		}
		left -= u.n
		wait = u.at.Add(r.minute).Sub(now)
	}
	return wait, true
}

func (r *rolling) take(n int, now time.Time) {
	r.forget(now)
	if r.limit > 0 && n != 0 {
		r.used = append(r.used, used{n, now})
		r.sum += n
	}
}

func (r *rolling) size() int { return r.limit }

func (r *rolling) remaining(now time.Time) int {
	r.forget(now)
	return max(0, r.limit-r.sum)
}

func (r *rolling) untilFull(now time.Time) time.Duration {
	if r.forget(now); len(r.used) == 0 {
		return 0
	}
	return r.used[len(r.used)-1].at.Add(r.minute).Sub(now)
}
