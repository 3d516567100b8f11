package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// In the scene one key sends a burst, and people beside it call again and again until the burst would be through.
const (
	fairLimits = "50/s depth 2000"
	fairBurst  = 1000
	fairPeople = 10
	fairCalls  = 5 // of each person

	// fairSpeed is how much faster than the clock the time of the scene runs.
	fairSpeed = 5
)

// burstKey is the key of the burst. The keys of people are from 1 to fairPeople.
const burstKey = 0

// A fairRun is what became of the requests of all keys in one kind of line.
type fairRun struct {
	begin   time.Time
	left    []departure // in the order in which they left
	refused int
}

// A departure is a request that has left.
type departure struct {
	key        int
	wanted, at time.Time
}

// waits returns how long requests of people, or of the burst, waited in the time of the scene, on average
// and at most.
func (r fairRun) waits(people bool) (mean, longest time.Duration) {
	n := 0
	for _, d := range r.left {
		if people == (d.key != burstKey) {
			n++
			wait := d.at.Sub(d.wanted) * fairSpeed
			mean += wait
			longest = max(longest, wait)
		}
	}
	return mean / time.Duration(max(n, 1)), longest
}

// fairSpan returns how long the burst takes alone, in the time of the scene.
func fairSpan(l shaper.Limits) time.Duration {
	return time.Duration(fairBurst / float64(l.Rate) * float64(time.Second))
}

// showFair sends a burst beside calls of ten people, through one line and through a line with fair queueing.
func showFair(ctx context.Context, t *terminal, c config) (status int, err error) {
	if newLimitsInfo(c.limits).unlimited {
		return exitFailed, fmt.Errorf("-fair needs a rate, and -limits %q have none", c.limits)
	}
	span := fairSpan(c.limits)
	t.say("%s\n", t.coloured(bold, "One rate for all, and one client that sends a burst."))
	printLimits(t, c.limits)
	t.say("  burst      %d requests of one key at once\n"+
		"  people     %d, each a key; one of them calls about every %s\n",
		fairBurst, fairPeople, limitwords.Seconds((span / (fairPeople * fairCalls)).Seconds()))
	most := fairBurst + fairPeople*fairCalls
	t.say("In one line and with fair queueing side by side, %d times as fast as the clock;\nthis takes about %s ...\n",
		fairSpeed, limitwords.Seconds(float64(most)/float64(c.limits.Rate)/fairSpeed))
	plain, fair, err := callBesideABurst(ctx, c.limits)
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", fairTable(t, plain, fair))
	return conclude(t, c, fairVerdict(plain, fair), judgeFair(plain, fair), func() string { return fairSVG(c.limits, plain, fair) })
}

// callBesideABurst sends the same requests through both kinds of line at once.
func callBesideABurst(ctx context.Context, l shaper.Limits) (plain, fair fairRun, err error) {
	scaled := l
	scaled.Rate *= fairSpeed
	scaled.MaxWait /= fairSpeed
	inOneLine, err := shaper.New(scaled)
	if err != nil {
		return plain, fair, err
	}
	defer inOneLine.Close()
	byTurns, err := shaper.New(scaled, shaper.WithFairQueue(nil))
	if err != nil {
		return plain, fair, err
	}
	defer byTurns.Close()
	var both sync.WaitGroup
	both.Go(func() { plain = runFair(ctx, inOneLine, fairSpan(scaled)) })
	both.Go(func() { fair = runFair(ctx, byTurns, fairSpan(scaled)) })
	both.Wait()
	return plain, fair, ctx.Err()
}

// runFair sends the burst and the calls of people, which are spread over the span, and waits for the end of all.
func runFair(ctx context.Context, s *shaper.Shaper, span time.Duration) fairRun {
	var mu sync.Mutex
	r := fairRun{begin: time.Now()}
	var all sync.WaitGroup
	send := func(key int, wanted time.Time) {
		all.Go(func() {
			sleep(ctx, time.Until(wanted))
			err := s.For(fmt.Sprint(key)).Do(ctx, 1, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				r.left = append(r.left, departure{key, wanted, time.Now()})
				return nil
			})
			if err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				r.refused++
			}
		})
	}
	for range fairBurst {
		send(burstKey, r.begin)
	}
	// Each in a part of the span of its own, but at no even distance: the same in both lines, and in each run.
	random := rand.New(rand.NewPCG(1, 2))
	const calls = fairPeople * fairCalls
	for i := range calls {
		part := span / calls
		send(1+i%fairPeople, r.begin.Add(part*time.Duration(i)+time.Duration(random.Int64N(int64(part)))))
	}
	all.Wait()
	slices.SortStableFunc(r.left, func(a, b departure) int { return a.at.Compare(b.at) })
	return r
}

// sceneTime returns the time of the scene at an instant.
func (r fairRun) sceneTime(at time.Time) time.Duration { return at.Sub(r.begin) * fairSpeed }

// end returns when the last request has left, in the time of the scene.
func (r fairRun) end() time.Duration {
	if len(r.left) == 0 {
		return 0
	}
	return r.sceneTime(r.left[len(r.left)-1].at)
}

// fairTable returns a table of waits, in the time of the scene.
func fairTable(t *terminal, plain, fair fairRun) string {
	b := newTable(t, "one line", "fair")
	row := func(name string, of func(fairRun) time.Duration) {
		b.row(name, limitwords.Seconds(of(plain).Seconds()), limitwords.Seconds(of(fair).Seconds()))
	}
	for _, who := range []struct {
		name   string
		people bool
	}{{"a person", true}, {"the burst", false}} {
		row("mean wait of "+who.name, func(r fairRun) time.Duration {
			mean, _ := r.waits(who.people)
			return mean
		})
		row("longest wait of "+who.name, func(r fairRun) time.Duration {
			_, longest := r.waits(who.people)
			return longest
		})
	}
	row("all have left after", fairRun.end)
	return b.String()
}

// judgeFair returns what is wrong with a demonstration.
func judgeFair(plain, fair fairRun) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if n := plain.refused + fair.refused; n > 0 {
		fault("%s: use -limits with a longer line", wereRefused(n))
		return faults
	}
	inOneLine, _ := plain.waits(true)
	byTurns, longest := fair.waits(true)
	if 10*byTurns > inOneLine {
		fault("a person waited %s on average with fair queueing, which is more than a tenth of the %s in one line",
			limitwords.Seconds(byTurns.Seconds()), limitwords.Seconds(inOneLine.Seconds()))
	}
	if longest > inOneLine {
		fault("a person waited %s with fair queueing, which is more than the mean of %s in one line",
			limitwords.Seconds(longest.Seconds()), limitwords.Seconds(inOneLine.Seconds()))
	}
	return faults
}

// fairVerdict returns in a sentence what a demonstration without a fault showed.
func fairVerdict(plain, fair fairRun) string {
	inOneLine, _ := plain.waits(true)
	byTurns, _ := fair.waits(true)
	_, alone := plain.waits(false)
	_, shared := fair.waits(false)
	return fmt.Sprintf("A person waits %s in place of %s, and the burst is through after\n  %s in place of %s.",
		limitwords.Seconds(byTurns.Seconds()), limitwords.Seconds(inOneLine.Seconds()), limitwords.Seconds(shared.Seconds()), limitwords.Seconds(alone.Seconds()))
}

// The dimensions of the picture of the scene, in pixels.
const (
	fairTop        = 44.0 // y of the row of the first person
	fairRow        = 8.0  // from the row of one person to that of the next
	fairComb       = 78.0 // from one comb to the next
	fairToothLong  = 30.0 // of a person, so that colour is not all that tells it from the burst's
	fairToothShort = 14.0
)

// fairSVG draws arrivals above, one row for each person, and below which of them left when: in one line, and with fair queueing.
func fairSVG(l shaper.Limits, plain, fair fairRun) string {
	var b drawing
	length := max(plain.end(), fair.end()).Seconds()
	x := func(r fairRun, at time.Time) float64 {
		return svgLeft + r.sceneTime(at).Seconds()/length*(svgRight-svgLeft)
	}
	arrivalsBase := fairTop + fairPeople*fairRow
	inOneLine, _ := plain.waits(true)
	byTurns, _ := fair.waits(true)
	height := arrivalsBase + 2*fairComb + 52
	b.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-label="With limits %s, a burst of %d beside %d people: a person waits %s on average in one line, %s with fair queueing"><style>%stspan{stroke:none}.o{stroke-linecap:round;stroke-width:5.5}</style>`,
		svgWidth, height, l, fairBurst, fairPeople, limitwords.Seconds(inOneLine.Seconds()), limitwords.Seconds(byTurns.Seconds()), svgStyle)

	b.add(`<text x="%d" y="16"><tspan class="a">A burst of %d comes at once</tspan>, and beside it <tspan class="r">calls of %d people</tspan>, one row each</text>`,
		svgLeft, fairBurst, fairPeople)
	b.add(`<path class="a" stroke-width="6" d="M%d %.0fV%.0f"/>`, svgLeft, fairTop-fairRow, arrivalsBase)
	var arrivals strings.Builder
	for _, d := range fair.left {
		if d.key != burstKey {
			fmt.Fprintf(&arrivals, "M%.1f %.1fh0", x(fair, d.wanted), fairTop+float64(d.key-1)*fairRow)
		}
	}
	b.add(`<path class="r o" d="%s"/>`, arrivals.String())
	b.add(`<path class="l" d="M%d %.1fH%d"/>`, svgLeft-4, arrivalsBase+0.5, svgRight+4)

	for i, comb := range []struct {
		title string
		run   fairRun
		wait  time.Duration
	}{{"They leave one line", plain, inOneLine}, {"They leave with fair queueing", fair, byTurns}} {
		base := arrivalsBase + float64(i+1)*fairComb
		b.add(`<text class="t" x="%d" y="%.0f">%s: a person waits %s on average</text>`,
			svgLeft, base-fairToothLong-12, comb.title, limitwords.Seconds(comb.wait.Seconds()))
		var burst, people []time.Time
		var tops strings.Builder
		for _, d := range comb.run.left {
			if d.key == burstKey {
				burst = append(burst, d.at)
				continue
			}
			people = append(people, d.at)
			fmt.Fprintf(&tops, "M%.1f %.1fh0", x(comb.run, d.at), base-fairToothLong)
		}
		along := func(at time.Time) float64 { return x(comb.run, at) }
		b.add(`<path class="a" stroke-width="0.35" d="%s"/>`, ticks(burst, along, base, fairToothShort))
		b.add(`<path class="r" stroke-width="1.2" d="%s"/><path class="r o" d="%s"/>`, ticks(people, along, base, fairToothLong), tops.String())
		b.add(`<path class="l" d="M%d %.1fH%d"/>`, svgLeft-4, base+0.5, svgRight+4)
	}
	base := arrivalsBase + 2*fairComb
	b.times(base, length)
	b.add(`<text class="m" x="%d" y="%.0f">short teeth: requests of the burst; long teeth with a head: requests of people</text>`, svgLeft, base+42)
	return b.String() + "</svg>\n"
}
