package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
)

// The upstream of the scene bears the rate of -limits, then 30 % of it, and then all of it again.
const (
	adaptLimits  = "100/s depth 200"
	adaptCallers = 150
	adaptFall    = 12 * time.Second
	adaptRise    = 22 * time.Second
	adaptEnd     = 46 * time.Second
	adaptSlice   = 500 * time.Millisecond // the picture counts calls in such slices
)

// An adaptRun has the figures of callers in one way of calling the upstream.
type adaptRun struct {
	served, refused, failed int
	slices                  [adaptEnd / adaptSlice]struct {
		served, refused int
		rate            float64 // that was in force at the end of the slice
	}
	stats adapt.Stats // of the Controller; zero with a fixed rate
}

// showAdapt lets callers call an upstream whose capacity falls and rises again, at a fixed rate and at one that adapts.
func showAdapt(ctx context.Context, t *terminal, c config) (status int, err error) {
	t.say("%s\n", t.coloured(bold, "An upstream that for a time bears less than it did."))
	printLimits(t, c.limits)
	t.say("  upstream   bears %g/s, from %s on 30 %% of that, and from %s on all of it;\n"+
		"             answers 429 to what is above\n"+
		"  callers    %d; each calls again as soon as it has its answer\n", float64(c.limits.Rate), seconds(adaptFall), seconds(adaptRise), adaptCallers)
	t.say("At this rate, and at one that adapts below %g/s, side by side; this takes %s ...\n", 2*float64(c.limits.Rate), seconds(adaptEnd))
	fixed, adaptive, err := callWhatFalls(ctx, c.limits)
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", adaptTable(t, c.limits, fixed, adaptive))
	shown := fmt.Sprintf("With a rate that adapts, %d calls were refused in place of %d.", adaptive.refused, fixed.refused)
	return conclude(t, c, shown, judgeAdapt(c.limits, fixed, adaptive), func() string { return adaptSVG(c.limits, fixed, adaptive) })
}

// callWhatFalls calls in both ways at once, each an upstream of its own.
func callWhatFalls(ctx context.Context, l shaper.Limits) (fixed, adaptive adaptRun, err error) {
	var errFixed, errAdaptive error
	var both sync.WaitGroup
	both.Go(func() { fixed, errFixed = runAdapt(ctx, l, false) })
	both.Go(func() { adaptive, errAdaptive = runAdapt(ctx, l, true) })
	both.Wait()
	return fixed, adaptive, cmp.Or(errFixed, errAdaptive, ctx.Err())
}

// runAdapt lets callers call until the end of the scene.
func runAdapt(ctx context.Context, l shaper.Limits, adapts bool) (r adaptRun, err error) {
	s, err := shaper.New(l)
	if err != nil {
		return r, err
	}
	defer s.Close()
	upstream := newFallingUpstream(float64(l.Rate))
	client := &http.Client{Transport: &shaper.Transport{Limiter: s, Base: upstream}}
	var finder *adapt.Controller
	if adapts {
		if finder, err = adapt.New(s, adapt.Config{Max: 2 * l.Rate, Start: l.Rate / 5}); err != nil {
			return r, err
		}
		client.Transport = &shaper.Transport{Limiter: s, Base: finder.RoundTripper(upstream)}
	}
	// The context has no deadline, because the shaper would refuse each call that can't leave before it.
	during, end := context.WithCancel(ctx)
	defer end()
	defer time.AfterFunc(adaptEnd, end).Stop()
	begin := time.Now()
	callAll(during, adaptCallers, client, "http://upstream.example/", func(got result) {
		slice := &r.slices[min(int(time.Since(begin)/adaptSlice), len(r.slices)-1)]
		slice.rate = float64(s.Limits().Rate)
		switch got.status {
		case http.StatusOK:
			r.served++
			slice.served++
		case http.StatusTooManyRequests:
			r.refused++
			slice.refused++
		default:
			r.failed++
		}
	})
	if adapts {
		r.stats = finder.Stats()
	}
	return r, nil
}

// A fallingUpstream bears so many calls a second, with a burst of ten, and refuses the others. Its answer takes 40 to 60 ms.
type fallingUpstream struct {
	rate  float64
	begin time.Time

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func newFallingUpstream(rate float64) *fallingUpstream {
	now := time.Now()
	return &fallingUpstream{rate: rate, begin: now, tokens: 10, at: now}
}

// adaptCapacity returns what the upstream bears at a time after the begin, as a part of its rate.
func adaptCapacity(at time.Duration) float64 {
	if at >= adaptFall && at < adaptRise {
		return 0.3
	}
	return 1
}

// adaptBorne returns how many calls the upstream bears in the whole scene.
func adaptBorne(rate float64) float64 {
	return rate * (adaptFall + (adaptRise-adaptFall)*3/10 + adaptEnd - adaptRise).Seconds()
}

// RoundTrip serves a call, or refuses it.
func (u *fallingUpstream) RoundTrip(r *http.Request) (*http.Response, error) {
	sleep(r.Context(), 40*time.Millisecond+rand.N(20*time.Millisecond))
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	status := http.StatusOK
	if !u.take() {
		status = http.StatusTooManyRequests
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func (u *fallingUpstream) take() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.tokens = min(u.tokens+now.Sub(u.at).Seconds()*u.rate*adaptCapacity(now.Sub(u.begin)), 10)
	u.at = now
	if u.tokens < 1 {
		return false
	}
	u.tokens--
	return true
}

// share returns a part of a whole in percent.
func share(part, whole float64) string { return fmt.Sprintf("%.1f %%", 100*part/max(whole, 1)) }

func adaptTable(t *terminal, l shaper.Limits, fixed, adaptive adaptRun) string {
	b := newTable(t, "fixed", "adaptive")
	b.row("calls served", fixed.served, adaptive.served)
	borne := adaptBorne(float64(l.Rate))
	b.row("of what the upstream bore", share(float64(fixed.served), borne), share(float64(adaptive.served), borne))
	b.row("refused by it, with 429", fixed.refused, adaptive.refused)
	b.row("of all calls", share(float64(fixed.refused), float64(fixed.refused+fixed.served)), share(float64(adaptive.refused), float64(adaptive.refused+adaptive.served)))
	b.row("decreases of the rate", "-", adaptive.stats.Decreases)
	return b.String()
}

// judgeAdapt returns what is wrong with a demonstration.
func judgeAdapt(l shaper.Limits, fixed, adaptive adaptRun) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if fixed.refused == 0 {
		fault("the upstream refused no call at the fixed rate, so there is nothing to show")
	}
	if 10*adaptive.refused > fixed.refused {
		fault("%s at the rate that adapts, which is more than a tenth of the %d at the fixed one", wereRefused(adaptive.refused), fixed.refused)
	}
	if borne := adaptBorne(float64(l.Rate)); 3*float64(adaptive.served) < 2*borne {
		fault("%d calls were served at the rate that adapts, which is less than two thirds of the %.0f that the upstream bore", adaptive.served, borne)
	}
	if n := fixed.failed + adaptive.failed; n > 0 {
		fault("%s failed", countOf(n, "call"))
	}
	return faults
}

// adaptSVG draws for both ways how many calls were served and refused in each slice, below the line of what the upstream bore.
func adaptSVG(l shaper.Limits, fixed, adaptive adaptRun) string {
	const panel, height = 150.0, 100.0
	top := 2 * float64(l.Rate) * adaptSlice.Seconds()
	d := newDrawing(2*panel+52, ".s{fill:#00785a;fill-opacity:.35}.x{fill:#b84f00}.c{fill:none;stroke:#656d76;stroke-dasharray:4 3}.w{fill:none;stroke-width:1.6}",
		"With a capacity that falls from %g to %g per second and rises again, %d calls are refused at a fixed rate, and %d at one that adapts",
		float64(l.Rate), 0.3*float64(l.Rate), fixed.refused, adaptive.refused)
	x := func(at time.Duration) float64 { return svgLeft + at.Seconds()/adaptEnd.Seconds()*(svgRight-svgLeft) }
	width := x(adaptSlice) - svgLeft
	for i, run := range []adaptRun{fixed, adaptive} {
		base := float64(i)*panel + 26 + height
		y := func(calls float64) float64 { return base - min(1, calls/top)*height }
		d.text("t", svgLeft, base-height-10, "%s: %d of %.0f calls served that the upstream bore, %d refused",
			[]string{"A fixed rate", "A rate that adapts"}[i], run.served, adaptBorne(float64(l.Rate)), run.refused)
		var served, refused, rate strings.Builder
		for n, slice := range slices.All(run.slices[:]) {
			left := x(time.Duration(n) * adaptSlice)
			middle := y(float64(slice.served))
			fmt.Fprintf(&served, "M%.1f %.1fV%.1fh%.1fV%.1fZ", left, base, middle, width-0.8, base)
			if slice.refused > 0 {
				fmt.Fprintf(&refused, "M%.1f %.1fV%.1fh%.1fV%.1fZ", left, middle, y(float64(slice.served+slice.refused)), width-0.8, middle)
			}
			if slice.rate > 0 {
				fmt.Fprintf(&rate, "L%.1f %.1f", left+width, y(slice.rate*adaptSlice.Seconds()))
			}
		}
		d.add(`<path class="s" d="%s"/><path class="x" d="%s"/>`, served.String(), refused.String())
		capacity := func(at time.Duration) float64 { return y(float64(l.Rate) * adaptSlice.Seconds() * adaptCapacity(at)) }
		d.add(`<path class="c" d="M%d %.1fH%.1fV%.1fH%.1fV%.1fH%d"/>`, svgLeft, capacity(0), x(adaptFall), capacity(adaptFall), x(adaptRise), capacity(adaptRise), svgRight)
		if i == 1 && rate.Len() > 0 {
			d.add(`<path class="a w" d="M%s"/>`, rate.String()[1:])
		}
		d.ground(base)
	}
	foot := 2*panel - 24
	d.times(foot, adaptEnd.Seconds())
	d.add(`<text x="%d" y="%.0f"><tspan class="d" style="stroke:none">served</tspan>, <tspan class="r" style="stroke:none">refused</tspan>, <tspan class="m">dashes: what the upstream bears</tspan>, <tspan class="a" style="stroke:none">line: the rate</tspan></text>`,
		svgLeft, foot+44)
	return d.end()
}
