package llmtest

import (
	"time"

	"example.com/leakybucket/llm"
)

// limits are the buckets of a provider: "the token bucket algorithm … your capacity is continuously replenished up to your maximum
// limit, rather than being reset at fixed intervals" (docs.claude.com/en/api/rate-limits, as quoted in 2026-06). The others' are
// taken to be the same.
type limits struct{ requests, tokens, input, output bucket }

func newLimits(q llm.Quota) (l limits) {
	l.each(q, func(b *bucket, n int) { *b = bucket{limit: int64(n), at: time.Now()} })
	return l
}

// each calls a function with each bucket and its part of a quota.
func (l *limits) each(q llm.Quota, f func(b *bucket, n int)) {
	f(&l.requests, q.Requests)
	f(&l.tokens, q.Tokens)
	f(&l.input, q.Input)
	f(&l.output, q.Output)
}

// fit reports whether a call of such a size fits into all buckets. wait is how long until it does; 0 if
// it never will.
func (l *limits) fit(q llm.Quota, now time.Time) (wait time.Duration, ok bool) {
	never := false
	l.each(q, func(b *bucket, n int) {
		d, possible := b.untilFits(n, now)
		wait = max(wait, d)
		never = never || !possible
	})
	if never {
		return 0, false
	}
	return wait, wait == 0
}

// take takes a quota from the buckets; a negative number is given back.
func (l *limits) take(q llm.Quota, now time.Time) {
	l.each(q, func(b *bucket, n int) { b.take(n, now) })
}

// A bucket holds at most a minute's quota, and drains evenly. Its level is in units of which a token is
// a minute's nanoseconds, so that it drains by limit units in a nanosecond.
type bucket struct {
	limit int64 // tokens in a minute; 0: there is no limit
	level int64
	at    time.Time // of level
}

const token = int64(time.Minute)

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

// untilFits returns how long until n tokens fit. Output that is counted as it is produced may have filled the
// bucket beyond its limit.
func (b *bucket) untilFits(n int, now time.Time) (wait time.Duration, possible bool) {
	b.drain(now)
	switch over := b.level + int64(n)*token - b.limit*token; {
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
		b.level = max(0, b.level+int64(n)*token)
	}
}

func (b *bucket) remaining(now time.Time) int {
	b.drain(now)
	return int(max(0, b.limit*token-b.level) / token)
}

// untilFull returns how long until nothing of the limit is used.
func (b *bucket) untilFull(now time.Time) time.Duration {
	b.drain(now)
	if b.limit == 0 {
		return 0
	}
	return time.Duration((b.level + b.limit - 1) / b.limit)
}
