package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// The API of the scene lets 90,000 tokens pass a minute, and its bucket holds as many. A call reserves the
// tokens that it may take, and gives back the rest when it has ended, as some APIs of language models do.
const (
	tokensLimits   = "1500/s burst 24000 depth 1000" // 90,000 a minute
	tokensAPI      = 90_000
	tokensEstimate = 2000
	tokensCallers  = 100
	tokensSpan     = 2 * time.Minute // in the time of the scene

	// tokensSpeed is how much faster than the clock the time of the scene runs.
	tokensSpeed = 30
)

// A tokenRun has the figures of callers in one way of calling the API.
type tokenRun struct {
	served, refused int           // calls
	used            int           // tokens of the calls that were served
	longest         time.Duration // from wanting to call until the API took the call
	departed        []time.Time   // when calls left the shaper
	levels          []levelSample
	begin           time.Time
}

// A levelSample is the level of a bucket at an instant, and how much of it is no open reservation.
type levelSample struct {
	at             time.Time
	level, settled float64
}

// perMinute returns how many calls were served in a minute of the scene.
func (r tokenRun) perMinute() float64 { return float64(r.served) / tokensSpan.Minutes() }

// showTokens lets callers call an API that counts tokens in three ways side by side: by backoff, through a shaper that is
// told estimates, and through one that is told what calls have taken as well.
func showTokens(ctx context.Context, t *terminal, c config) (status int, err error) {
	t.say("%s\n", t.coloured(bold, "An API that counts tokens, and calls that take less than they may."))
	t.say("  limits     %s, of tokens", c.limits)
	t.say("  API        90,000 tokens a minute, all of them at first; answers 429\n"+
		"             when they are used up\n"+
		"  calls      may take %d tokens, take some 700, and last 2 to 8 s\n"+
		"  callers    %d; each calls again as soon as it has its answer\n", tokensEstimate, tokensCallers)
	t.say("Two minutes, %d times as fast as the clock; this takes %s ...\n", tokensSpeed, seconds(tokensSpan/tokensSpeed))
	direct, unsettled, settled, err := callForTokens(ctx, c.limits)
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", tokensTable(t, direct, unsettled, settled))
	return conclude(t, c, fmt.Sprintf("Settled, %s calls a minute leave in place of %s, and the API refuses none.",
		formatDecimal(settled.perMinute()), formatDecimal(unsettled.perMinute())), judgeTokens(direct, unsettled, settled),
		func() string { return tokensSVG(c.limits, unsettled, settled) })
}

// callForTokens calls in the three ways at once, each at an API of its own.
func callForTokens(ctx context.Context, l shaper.Limits) (direct, unsettled, settled tokenRun, err error) {
	var shapers [2]*shaper.Shaper
	for i := range shapers {
		if shapers[i], err = shaper.New(hastened(l, tokensSpeed)); err != nil {
			return direct, unsettled, settled, err
		}
		defer shapers[i].Close()
	}
	var all sync.WaitGroup
	all.Go(func() { direct = runTokens(ctx, nil, false) })
	all.Go(func() { unsettled = runTokens(ctx, shapers[0], false) })
	all.Go(func() { settled = runTokens(ctx, shapers[1], true) })
	all.Wait()
	return direct, unsettled, settled, ctx.Err()
}

// runTokens lets callers call for the span of the scene, through s if it is not nil.
func runTokens(ctx context.Context, s *shaper.Shaper, settle bool) tokenRun {
	ctx, end := context.WithCancel(ctx)
	defer end()
	r := tokenRun{begin: time.Now()}
	defer time.AfterFunc(tokensSpan/tokensSpeed, end).Stop()
	api := &tokenAPI{}
	var mu sync.Mutex
	note := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			f()
		}
	}
	var all sync.WaitGroup
	if s != nil {
		all.Go(func() {
			for ctx.Err() == nil {
				st := s.Stats()
				note(func() {
					r.levels = append(r.levels, levelSample{time.Now(), st.Level, max(0, st.Level-float64(st.Reserved))})
				})
				sleep(ctx, tokensSpan/tokensSpeed/400)
			}
		})
	}
	// call calls the API until it takes the call, and returns the tokens of the answer.
	call := func(ctx context.Context, wanted time.Time) (used int, err error) {
		note(func() { r.departed = append(r.departed, time.Now()) })
		for pause := time.Second / 2 / tokensSpeed; !api.take(tokensEstimate); pause = min(2*pause, time.Minute/tokensSpeed) {
			note(func() { r.refused++ })
			if sleep(ctx, pause/2+rand.N(pause)); ctx.Err() != nil {
				return -1, ctx.Err()
			}
		}
		note(func() { r.longest = max(r.longest, time.Since(wanted)*tokensSpeed) })
		used = 600 + rand.IntN(201)
		sleep(ctx, (2*time.Second+rand.N(6*time.Second))/tokensSpeed)
		api.take(used - tokensEstimate)
		note(func() {
			r.served++
			r.used += used
		})
		return used, nil
	}
	for range tokensCallers {
		all.Go(func() {
			wanted := time.Now()
			one := func(ctx context.Context) (used int, err error) { return call(ctx, wanted) }
			for ctx.Err() == nil {
				unsettled := func(ctx context.Context) error {
					_, err := one(ctx)
					return err
				}
				var err error
				switch {
				case s == nil:
					err = unsettled(ctx)
				case settle:
					err = s.Spend(ctx, tokensEstimate, one)
				default:
					err = s.Do(ctx, tokensEstimate, unsettled)
				}
				if refusal, ok := errors.AsType[*shaper.RejectError](err); ok {
					sleep(ctx, max(refusal.RetryAfter, time.Millisecond)) // Until then the same call would be refused again.
				} else {
					wanted = time.Now()
				}
			}
		})
	}
	all.Wait()
	return r
}

// A tokenAPI is a bucket of tokens in the time of the scene.
type tokenAPI struct {
	mu    sync.Mutex
	level float64 // tokens
	at    time.Time
}

// take takes tokens, or gives back a negative number. It reports whether they fit.
func (a *tokenAPI) take(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.level = max(0, a.level-now.Sub(a.at).Minutes()*tokensAPI*tokensSpeed)
	a.at = now
	if n > 0 && a.level+float64(n) > tokensAPI {
		return false
	}
	a.level = max(0, a.level+float64(n))
	return true
}

// tokensTable returns a table of the callers' answers.
func tokensTable(t *terminal, direct, unsettled, settled tokenRun) string {
	b := newTable(t, "backoff", "unsettled", "settled")
	row := func(name string, of func(tokenRun) any) { b.row(name, of(direct), of(unsettled), of(settled)) }
	row("calls served a minute", func(r tokenRun) any { return formatDecimal(r.perMinute()) })
	row("of the tokens allowed, used", func(r tokenRun) any {
		return fmt.Sprintf("%.0f %%", 100*float64(r.used)/(tokensAPI*tokensSpan.Minutes()))
	})
	row("refused by the API, with 429", func(r tokenRun) any { return r.refused })
	row("longest wait for the API", func(r tokenRun) any { return seconds(r.longest) })
	return b.String()
}

// judgeTokens returns the faults of a demonstration.
func judgeTokens(direct, unsettled, settled tokenRun) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if direct.refused == 0 {
		fault("the API refused no call without a shaper, so there is nothing to show")
	}
	if n := unsettled.refused + settled.refused; n > 0 {
		fault("%s by the API behind a shaper", wereRefused(n))
	}
	if settled.served < max(2*unsettled.served, 1) {
		fault("%d calls were served with settling, %d without it: there should be twice as many with it; try a larger burst in -limits", settled.served, unsettled.served)
	}
	return faults
}

// The dimensions of the picture of the scene, in pixels.
const (
	tokensPanelHeight = 150.0
	tokensLevelHeight = 92.0 // of a full bucket
	tokensTickHeight  = 12.0
)

// tokensSVG draws the level of the bucket without and with settling: reservations that are not settled are
// hatched, and departures are ticks below.
func tokensSVG(l shaper.Limits, unsettled, settled tokenRun) string {
	d := newDrawing(2*tokensPanelHeight+40, ".h{stroke-width:1}.f{fill-opacity:.18;stroke:none}",
		"With limits %s, calls that may take %d tokens and take some 700: %s calls a minute leave without settling, %s with it",
		l, tokensEstimate, formatDecimal(unsettled.perMinute()), formatDecimal(settled.perMinute()))
	d.add(`<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="a h" d="M0 0v6"/></pattern></defs>`)
	for i, run := range []tokenRun{unsettled, settled} {
		title := []string{"Without settling, a call costs what it may take", "With settling, what a call has not taken comes back when it ends"}[i]
		top := float64(i) * tokensPanelHeight
		base := top + 26 + tokensLevelHeight
		x := func(at time.Time) float64 {
			return svgLeft + at.Sub(run.begin).Seconds()*tokensSpeed/tokensSpan.Seconds()*(svgRight-svgLeft)
		}
		line := func(levels iter.Seq2[int, levelSample], of func(levelSample) float64) string {
			var b strings.Builder
			for _, sample := range levels {
				fmt.Fprintf(&b, "L%.1f %.1f", x(sample.at), base-min(1, of(sample)/float64(l.Burst))*tokensLevelHeight)
			}
			return b.String()
		}
		d.text("t", svgLeft, top+16, "%s: %s calls a minute", title, formatDecimal(run.perMinute()))
		d.ground(base)
		if n := len(run.levels); n > 0 {
			level := line(slices.All(run.levels), func(s levelSample) float64 { return s.level })[1:]
			settled := func(s levelSample) float64 { return s.settled }
			d.add(`<path class="f" style="fill:#0072b2" d="M%.1f %.1f%sL%.1f %.1fZ"/>`,
				x(run.levels[0].at), base, line(slices.All(run.levels), settled), x(run.levels[n-1].at), base)
			d.add(`<path style="fill:url(#hatch)" d="M%s%sZ"/>`, level, line(slices.Backward(run.levels), settled))
			d.add(`<path class="a" stroke-width="1.4" d="M%s"/>`, level)
		}
		d.add(`<path class="d" stroke-width="1.2" d="%s"/>`, ticks(run.departed, x, base+4+tokensTickHeight, tokensTickHeight))
	}
	foot := 2*tokensPanelHeight - 2
	for seconds := 0; seconds <= int(tokensSpan.Seconds()); seconds += 20 {
		at := svgLeft + float64(seconds)/tokensSpan.Seconds()*(svgRight-svgLeft)
		d.add(`<text class="m" x="%.0f" y="%.0f" text-anchor="middle">%d s</text>`, at, foot+14, seconds)
	}
	d.text("m", svgLeft, foot+34, "line: level of the bucket, at most %d tokens; hatched: reserved, not settled; ticks: departures", l.Burst)
	return d.end()
}
