package adapt

import (
	"math"
	"math/rand/v2"
	"time"
)

// An answer is what becomes of a call.
type answer int

const (
	fine    answer = iota
	refused        // 429
	broken         // 500
	silent         // no answer: the call times out
)

// An upstream answers a call that arrives at a time after the start, after so much time in it. The calls arrive in order,
// one at a time.
type upstream interface {
	arrive(at time.Duration) (a answer, takes time.Duration)
}

// A tokenBucket refuses what is above a rate.
type tokenBucket struct {
	rate   func(at time.Duration) (rate float64, left time.Duration)
	burst  float64
	tokens float64
	at     time.Duration
}

func (u *tokenBucket) arrive(at time.Duration) (answer, time.Duration) {
	for u.at < at {
		rate, left := u.rate(u.at)
		span := min(left, at-u.at)
		u.tokens = min(u.tokens+rate*span.Seconds(), u.burst)
		u.at += span
	}
	if u.tokens < 1-1e-9 {
		return refused, 0
	}
	u.tokens--
	return fine, 0
}

// servers serve as many calls at once as there are, and queue the others.
type servers struct {
	free    [8]time.Duration // when each is
	service func() time.Duration
}

// openServers returns how to open servers of 80 ms on average: 40 to 120 ms, or exponentially distributed.
func openServers(exponential bool) func(scenario, uint64) upstream {
	return func(_ scenario, seed uint64) upstream {
		r := rand.New(rand.NewPCG(seed, 1))
		return &servers{service: func() time.Duration {
			if exponential {
				return time.Duration(r.ExpFloat64() * float64(80*time.Millisecond))
			}
			return 40*time.Millisecond + time.Duration(r.Int64N(int64(80*time.Millisecond)))
		}}
	}
}

func (u *servers) arrive(at time.Duration) (answer, time.Duration) {
	next := 0
	for i, free := range u.free {
		if free < u.free[next] {
			next = i
		}
	}
	u.free[next] = max(u.free[next], at) + u.service()
	return fine, u.free[next] - at
}

// A rollingMinute refuses a call if so many were served in the minute before it.
type rollingMinute struct {
	most   int
	served []time.Duration
}

func (u *rollingMinute) arrive(at time.Duration) (answer, time.Duration) {
	for len(u.served) > 0 && u.served[0] <= at-time.Minute {
		u.served = u.served[1:]
	}
	if len(u.served) >= u.most {
		return refused, 0
	}
	u.served = append(u.served, at)
	return fine, 0
}

// noisy is an upstream of which one answer in a hundred is another.
type noisy struct {
	upstream
	instead answer
	random  *rand.Rand
}

func openNoisy(instead answer) func(scenario, uint64) upstream {
	return func(s scenario, seed uint64) upstream {
		return noisy{&tokenBucket{rate: s.rateAt, burst: 10, tokens: 10}, instead, rand.New(rand.NewPCG(seed, 2))}
	}
}

func (u noisy) arrive(at time.Duration) (answer, time.Duration) {
	if u.random.IntN(100) == 0 {
		return u.instead, 0
	}
	return u.upstream.arrive(at)
}

// A dying upstream does not answer for a minute.
type dying struct{ upstream }

const (
	deadFrom  = 3 * time.Minute
	deadUntil = 4 * time.Minute
)

func openDying(s scenario, seed uint64) upstream { return dying{openNoisy(broken)(s, seed)} }

func (u dying) arrive(at time.Duration) (answer, time.Duration) {
	if at >= deadFrom && at < deadUntil {
		return silent, math.MaxInt64
	}
	return u.upstream.arrive(at)
}
