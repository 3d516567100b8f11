package find

import (
	"context"
	"math"
	"sort"
	"strconv"
	"time"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// An Outcome is what the requests of a rule would have met under limits.
type Outcome struct {
	Refused int
	Longest time.Duration // wait
	Line    int           // the longest of one key
}

// A Found is what was found for a rule.
type Found struct {
	Rule *Rule
	Now  Outcome // under the limits of the rule

	// Limits are those that were found, as the text that is shortest to read; Text is that
	// of the same limits. If no rate keeps to the goal, or no request has met the rule, OK is
	// false, and they are zero.
	OK      bool
	Text    string
	Limits  shaper.Limits
	Outcome Outcome // under them

	// Lowest reports that Limits have the lowest rate that is tried: each lower one may do.
	Lowest bool
}

// Search returns what it has found for a rule. If the context ends before, its error is
// that of the context.
func (g Goal) Search(ctx context.Context, r *Rule) (Found, error) {
	f := Found{Rule: r}
	if r.Requests == 0 {
		return f, ctx.Err()
	}
	f.Now, _ = r.replay(r.Limits, math.MaxInt)
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
		_, ok := r.replay(l, most)
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
	loose, _ := r.replay(g.limits(r, all[i], endless), most)
	depth := sort.Search(loose.Line, func(depth int) bool { return keeps(i, depth) })
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	f.OK, f.Lowest = true, i == 0
	f.Limits = g.limits(r, all[i], depth)
	f.Text = textOf(all[i], f.Limits)
	f.Outcome, _ = r.replay(f.Limits, most)
	return f, nil
}

// limits returns the limits with a rate and a depth that are tried for a rule.
func (g Goal) limits(r *Rule, c candidate, depth int) shaper.Limits {
	l := shaper.Limits{Rate: c.rate, Burst: r.Limits.Burst, Depth: depth, MaxWait: g.Wait}
	if g.Burst > 0 {
		l.Burst = g.Burst
	}
	if depth == 0 {
		l.MaxWait = 0 // No request waits.
	}
	return l
}

// textOf returns limits as text, with the rate as it was tried: "3.07/min" says more than
// what [shaper.Limits.String] makes of it, "307 per 100min".
func textOf(c candidate, l shaper.Limits) string {
	text := c.text
	if l.Burst > 0 {
		text += " burst " + strconv.Itoa(l.Burst)
	}
	text += " depth " + strconv.Itoa(l.Depth)
	if l.MaxWait > 0 {
		text += " wait " + waitText(l.MaxWait)
	}
	return text
}

// waitText returns a duration as the text of limits has it.
func waitText(d time.Duration) string {
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}} {
		if d%unit.length == 0 {
			return strconv.FormatInt(int64(d/unit.length), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// replay returns what the requests would have met under limits. If more would have been
// refused than most, ok is false, and the outcome is that of some of the requests.
func (r *Rule) replay(l shaper.Limits, most int) (o Outcome, ok bool) {
	plan := replay.NewPlan(l)
	for _, k := range r.keys {
		bucket := replay.Bucket{}
		for _, at := range k.at {
			fate := bucket.Arrive(plan, at, 1)
			if fate.Result != replay.Departed {
				if o.Refused++; o.Refused > most {
					return o, false
				}
				continue
			}
			if fate.Waited > 0 {
				o.Longest = max(o.Longest, fate.Waited)
				o.Line = max(o.Line, bucket.Line())
			}
		}
	}
	return o, true
}
