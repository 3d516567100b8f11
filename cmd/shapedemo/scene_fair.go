package main

import (
	"cmp"
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

// A fairRun is what became of the requests of all keys in one kind of line. Its times are those of the scene.
type fairRun struct {
	left          []departure // in the order in which they left
	people, burst waits
	refused       int
}

// A departure is a request that has left.
type departure struct {
	key        int
	wanted, at time.Duration
}

// waits sum up how long n requests waited.
type waits struct {
	n              int
	total, longest time.Duration
}

func (w *waits) add(wait time.Duration) {
	w.n++
	w.total += wait
	w.longest = max(w.longest, wait)
}

func (w *waits) mean() time.Duration { return w.total / time.Duration(max(w.n, 1)) }

// end returns when the last request has left.
func (r fairRun) end() time.Duration {
	if len(r.left) == 0 {
		return 0
	}
	return r.left[len(r.left)-1].at
}

// fairSpan returns how long the burst takes alone, or a century where it takes longer: a [time.Duration] ends at 292 years.
func fairSpan(l shaper.Limits) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	return time.Duration(min(fairBurst/float64(l.Rate), century.Seconds()) * float64(time.Second))
}

// showFair sends a burst beside calls of ten people, through one line and through a line with fair queueing.
func showFair(ctx context.Context, t *terminal, c config) (status int, err error) {
	span := fairSpan(c.limits)
	t.say("%s\n", t.coloured(bold, "One rate for all, and one client that sends a burst."))
	printLimits(t, c.limits)
	t.say("  burst      %d requests of one key at once\n"+
		"  people     %d, each a key; one of them calls about every %s\n",
		fairBurst, fairPeople, seconds(span/(fairPeople*fairCalls)))
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
	var errPlain, errFair error
	var both sync.WaitGroup
	both.Go(func() { plain, errPlain = runFair(ctx, l) })
	both.Go(func() { fair, errFair = runFair(ctx, l, shaper.WithFairQueue(nil)) })
	both.Wait()
	return plain, fair, cmp.Or(errPlain, errFair, ctx.Err())
}

// runFair sends the burst and the calls of people, which are spread over the span of the burst, and waits for the
// end of all.
func runFair(ctx context.Context, l shaper.Limits, options ...shaper.Option) (r fairRun, err error) {
	span := fairSpan(l)
	s, err := shaper.New(hastened(l, fairSpeed), options...)
	if err != nil {
		return r, err
	}
	defer s.Close()
	begin := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	send := func(key int, wanted time.Duration) {
		all.Go(func() {
			sleep(ctx, time.Until(begin.Add(wanted/fairSpeed)))
			err := s.For(fmt.Sprint(key)).Do(ctx, 1, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				r.left = append(r.left, departure{key, wanted, time.Since(begin) * fairSpeed})
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
		send(burstKey, 0)
	}
	// Each in a part of the span of its own, but at no even distance: the same in both lines, and in each run.
	random := rand.New(rand.NewPCG(1, 2))
	const calls = fairPeople * fairCalls
	for i := range calls {
		part := span / calls
		send(1+i%fairPeople, part*time.Duration(i)+time.Duration(random.Int64N(int64(part))))
	}
	all.Wait()
	slices.SortStableFunc(r.left, func(a, b departure) int { return cmp.Compare(a.at, b.at) })
	for _, d := range r.left {
		if d.key == burstKey {
			r.burst.add(d.at - d.wanted)
		} else {
			r.people.add(d.at - d.wanted)
		}
	}
	return r, nil
}

// fairTable returns a table of waits.
func fairTable(t *terminal, plain, fair fairRun) string {
	b := newTable(t, "one line", "fair")
	b.row("mean wait of a person", seconds(plain.people.mean()), seconds(fair.people.mean()))
	b.row("longest wait of a person", seconds(plain.people.longest), seconds(fair.people.longest))
	b.row("mean wait of the burst", seconds(plain.burst.mean()), seconds(fair.burst.mean()))
	b.row("longest wait of the burst", seconds(plain.burst.longest), seconds(fair.burst.longest))
	b.row("all have left after", seconds(plain.end()), seconds(fair.end()))
	return b.String()
}

// judgeFair returns what is wrong with a demonstration.
func judgeFair(plain, fair fairRun) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if n := plain.refused + fair.refused; n > 0 {
		fault("%s: use -limits with a longer line", wereRefused(n))
		return faults
	}
	if 10*fair.people.mean() > plain.people.mean() {
		fault("a person waited %s on average with fair queueing, which is more than a tenth of the %s in one line",
			seconds(fair.people.mean()), seconds(plain.people.mean()))
	}
	if fair.people.longest > plain.people.mean() {
		fault("a person waited %s with fair queueing, which is more than the mean of %s in one line",
			seconds(fair.people.longest), seconds(plain.people.mean()))
	}
	return faults
}

// fairVerdict returns in a sentence what a demonstration without a fault showed.
func fairVerdict(plain, fair fairRun) string {
	return fmt.Sprintf("A person waits %s in place of %s, and the burst is through after\n  %s in place of %s.",
		seconds(fair.people.mean()), seconds(plain.people.mean()), seconds(fair.burst.longest), seconds(plain.burst.longest))
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
	arrivalsBase := fairTop + fairPeople*fairRow
	foot := arrivalsBase + 2*fairComb
	d := newDrawing(foot+52, "tspan{stroke:none}.o{stroke-linecap:round;stroke-width:5.5}",
		"With limits %s, a burst of %d beside %d people: a person waits %s on average in one line, %s with fair queueing",
		l, fairBurst, fairPeople, seconds(plain.people.mean()), seconds(fair.people.mean()))
	length := max(plain.end(), fair.end())
	x := func(at time.Duration) float64 { return svgLeft + at.Seconds()/length.Seconds()*(svgRight-svgLeft) }

	d.add(`<text x="%d" y="16"><tspan class="a">A burst of %d comes at once</tspan>, and beside it <tspan class="r">calls of %d people</tspan>, one row each</text>`,
		svgLeft, fairBurst, fairPeople)
	d.add(`<path class="a" stroke-width="6" d="M%d %.0fV%.0f"/>`, svgLeft, fairTop-fairRow, arrivalsBase)
	var arrivals strings.Builder
	for _, r := range fair.left {
		if r.key != burstKey {
			fmt.Fprintf(&arrivals, "M%.1f %.1fh0", x(r.wanted), fairTop+float64(r.key-1)*fairRow)
		}
	}
	d.add(`<path class="r o" d="%s"/>`, arrivals.String())
	d.ground(arrivalsBase)

	for i, run := range []fairRun{plain, fair} {
		title := []string{"They leave one line", "They leave with fair queueing"}[i]
		base := arrivalsBase + float64(i+1)*fairComb
		d.text("t", svgLeft, base-fairToothLong-12, "%s: a person waits %s on average", title, seconds(run.people.mean()))
		var burst, people []time.Duration
		var tops strings.Builder
		for _, r := range run.left {
			if r.key == burstKey {
				burst = append(burst, r.at)
				continue
			}
			people = append(people, r.at)
			fmt.Fprintf(&tops, "M%.1f %.1fh0", x(r.at), base-fairToothLong)
		}
		d.add(`<path class="a" stroke-width="0.35" d="%s"/>`, ticks(burst, x, base, fairToothShort))
		d.add(`<path class="r" stroke-width="1.2" d="%s"/><path class="r o" d="%s"/>`, ticks(people, x, base, fairToothLong), tops.String())
		d.ground(base)
	}
	d.times(foot, length.Seconds())
	d.text("m", svgLeft, foot+42, "short teeth: requests of the burst; long teeth with a head: requests of people")
	return d.end()
}
