// Package find finds, for each rule, the smallest rate that would have kept to a [Goal]
// with the requests of a log, and the smallest depth that does at this rate.
//
// # Why bisection is right
//
// Every key has a bucket of its own, with the burst of the rule, the longest wait of the
// goal, and a line of any length. No request waits longer than the goal says, because one
// that would is refused. So the only question is how many are refused, and that number never
// grows with the rate:
//
// Let the buckets b and B see the same arrivals, of cost 1, and let B leak faster. Of a
// bucket with rate r, a request is refused exactly if the level that it finds is above
// burst − 1 + wait·r, which is higher for B. (The level counts all that were let through,
// also those that still wait.) Claim: at no time has B let through fewer than b. Assume
// that some request is the first after which it has. Before it both had let through the
// same number, then b took it, and B refused it. So B's level was above B's threshold,
// and therefore above b's level. But let u be the last instant at which B was empty. From
// u on B has leaked at its full rate, and b has leaked no more than at its own, which is
// smaller. And by the choice of the request B had let through no fewer than b at u, and
// just as many now, so no more since u. Then B's level is at most b's: a contradiction.
//
// With a depth the threshold is burst − 1 + min(wait·r, depth). So the same argument, with
// equal rates, says that the number that is refused never grows with the depth either.
//
// It would not hold for other measures. The 99th percentile of the waits, for example, can
// grow with the rate, because requests with long waits are let through that were refused
// before.
package find

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// An Outcome tells how the requests of a rule would have fared under limits. Its names in JSON stay as they
// are.
type Outcome struct {
	Limits  string           `json:"limits"`
	Refused int              `json:"refused"`
	Longest simulate.Seconds `json:"wait_max_s"`
	Line    int              `json:"line_max"` // the longest of one key
}

// A Found is the result of a search for a rule.
type Found struct {
	Rule *simulate.Rule // with the fate of the requests under its own limits

	// Limits were found, and Outcome has them as text. If no rate keeps to the goal, or no request
	// has met the rule, OK is false, and they are zero.
	OK      bool
	Limits  shaper.Limits
	Outcome Outcome

	// Lowest reports that Limits have the lowest rate that is tried: each lower one may do.
	Lowest bool
}

// Search returns the limits that it has found for a rule, whose simulation has kept the arrivals of
// its keys. If the context ends before, it returns the error of the context.
func (g Goal) Search(ctx context.Context, r *simulate.Rule) (Found, error) {
	f := Found{Rule: r}
	if r.Requests == 0 {
		return f, ctx.Err()
	}
	most := g.allowed(r.Requests)

	all := rates()
	keeps := func(i, depth int) bool {
		if ctx.Err() != nil {
			return true
		}
		l := g.limits(r, all[i], depth)
		if l.Validate() != nil {
			return false // So great a burst is not allowed with so low a rate.
		}
		_, ok := replayed(r, l, most)
		return ok
	}
	endless := math.MaxInt
	if g.Wait == 0 {
		endless = 0
	}
	i := sort.Search(len(all), func(i int) bool { return keeps(i, endless) })
	if i == len(all) || ctx.Err() != nil {
		return f, ctx.Err()
	}
	loose, _ := replayed(r, g.limits(r, all[i], endless), most)
	depth := sort.Search(loose.Line, func(depth int) bool { return keeps(i, depth) })
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	f.OK, f.Lowest = true, i == 0
	f.Limits = g.limits(r, all[i], depth)
	f.Outcome, _ = replayed(r, f.Limits, most)
	f.Outcome.Limits = textOf(all[i], f.Limits)
	return f, nil
}

// limits returns the limits with a rate and a depth that are tried for a rule. Settings that a replay ignores stay as in
// the rule, so that the limits can take its place.
func (g Goal) limits(r *simulate.Rule, c candidate, depth int) shaper.Limits {
	l := r.Limits
	l.Rate, l.Depth, l.MaxWait = c.rate, depth, g.Wait
	if g.Burst > 0 {
		l.Burst = g.Burst
	}
	if depth == 0 {
		l.MaxWait, l.Slack = 0, 0 // No request waits.
	}
	return l
}

// textOf returns limits as text, with the rate as it was tried: "3.07/min" is clearer than
// "307 per 100min" by [shaper.Limits.String].
func textOf(c candidate, l shaper.Limits) string {
	l.Rate = rate.Inf
	return c.text + strings.TrimPrefix(l.String(), "inf")
}

// replayed returns how the requests of a rule would have fared under limits. If more than most would
// have been refused, ok is false, and the outcome counts only some of the requests.
func replayed(r *simulate.Rule, l shaper.Limits, most int) (o Outcome, ok bool) {
	plan := replay.NewPlan(l)
	for _, k := range r.Keys {
		bucket := replay.Bucket{}
		for _, at := range k.Arrivals {
			fate := bucket.Arrive(plan, at, 1)
			if fate.Result != replay.Departed {
				if o.Refused++; o.Refused > most {
					return o, false
				}
				continue
			}
			if fate.Waited > 0 {
				o.Longest = max(o.Longest, simulate.Seconds(fate.Waited))
				o.Line = max(o.Line, bucket.Line())
			}
		}
	}
	return o, true
}

// A Goal is the goal that limits have to reach.
type Goal struct {
	Wait    time.Duration // no request that is let through waits longer
	Refused *big.Rat      // at most this share of a rule's requests is refused
	Burst   int           // 0: each rule's own
}

// ParseGoal reads a goal such as "wait=200ms refused=0.1% burst=5". The wait must be there.
// Without refused, none may be.
func ParseGoal(text string) (Goal, error) {
	g := Goal{Refused: new(big.Rat)}
	seen := map[string]bool{}
	for _, field := range strings.Fields(text) {
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			return Goal{}, fmt.Errorf(`%q: must be a name and a value, such as wait=200ms`, field)
		}
		if seen[name] {
			return Goal{}, fmt.Errorf("%q: %s is there twice", field, name)
		}
		seen[name] = true
		var err error
		switch name {
		case "wait":
			g.Wait, err = parseWait(value)
		case "refused":
			g.Refused, err = parseShare(value)
		case "burst":
			g.Burst, err = parseBurst(value)
		default:
			err = errors.New("the names are wait, refused and burst")
		}
		if err != nil {
			return Goal{}, fmt.Errorf("%q: %w", field, err)
		}
	}
	if !seen["wait"] {
		return Goal{}, errors.New("wait is missing: how long may a request wait that is let through? For example wait=200ms, or wait=0s if none may")
	}
	return g, nil
}

// longestWait is the longest wait that limits can name: more is the same.
const longestWait = 365 * 24 * time.Hour

func parseWait(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	switch {
	case err != nil && isNumber(value):
		return 0, fmt.Errorf("the unit is missing: write wait=%sms or wait=%ss", value, value)
	case err != nil:
		return 0, errors.New("must be a duration such as 200ms or 1.5s")
	case d < 0:
		return 0, errors.New("must not be negative")
	case d > longestWait:
		return 0, errors.New("must be at most 8760h, which is 365 days")
	}
	return d, nil
}

// parseShare reads a percentage, exactly.
func parseShare(value string) (*big.Rat, error) {
	number, percent := strings.CutSuffix(value, "%")
	switch {
	case !isNumber(number):
		return nil, errors.New("must be a percentage such as 0.1%")
	case !percent:
		return nil, fmt.Errorf("the unit is missing: write refused=%s%%", value)
	}
	share, _ := new(big.Rat).SetString(number)
	if share.Quo(share, big.NewRat(100, 1)).Cmp(big.NewRat(1, 1)) > 0 {
		return nil, errors.New("must be at most 100%")
	}
	return share, nil
}

func parseBurst(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, errors.New("must be a whole number, at least 1")
	}
	if all := rates(); (shaper.Limits{Rate: all[len(all)-1].rate, Burst: n}).Validate() != nil {
		return 0, errors.New("so great a burst takes longer than 365 days to drain at every rate that is tried")
	}
	return n, nil
}

// isNumber reports whether text is digits, maybe with a point between them.
func isNumber(text string) bool {
	const longest = 20 // more digits than anybody means, and exact arithmetic takes longer with more
	whole, decimals, point := strings.Cut(text, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return len(text) <= longest && digits(whole) && (!point || digits(decimals))
}

// allowed returns how many of so many requests may be refused.
func (g Goal) allowed(requests int) int {
	most := new(big.Int).Mul(g.Refused.Num(), big.NewInt(int64(requests)))
	return int(most.Quo(most, g.Refused.Denom()).Int64())
}

// A candidate is a rate that is tried, as text and as a number.
type candidate struct {
	text string
	rate rate.Limit
}

// rates returns the rates that are tried, from 1/d to 999000000/s, in ascending order: all
// that have at most three digits in the longest unit of time in which they are at least 1.
// Between two of them is at most 1 %.
var rates = sync.OnceValue(func() []candidate {
	var all []candidate
	for _, unit := range []struct {
		name string
		less int64 // the rate in this unit from which on the next one is used
	}{{"d", 24}, {"h", 60}, {"min", 60}, {"s", 1_000_000_000}} {
		for scale := int64(1); scale < unit.less; scale *= 10 {
			for mantissa := int64(100); mantissa < 1000; mantissa++ {
				if mantissa*scale >= unit.less*100 {
					break
				}
				all = append(all, newCandidate(mantissa, scale, unit.name))
			}
		}
	}
	return all
})

// newCandidate returns the rate mantissa·scale/100 per unit.
func newCandidate(mantissa, scale int64, unit string) candidate {
	number := strconv.FormatInt(mantissa*scale/100, 10)
	if rest := mantissa * scale % 100; rest != 0 {
		number += strings.TrimRight(fmt.Sprintf(".%02d", rest), "0")
	}
	text := number + "/" + unit
	l, err := shaper.ParseLimits(text)
	if err != nil {
		panic(err) // All these rates are valid.
	}
	return candidate{text, l.Rate}
}
