package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// outboundTime is for how long the callers call, each way: long enough to serve
// out a punishment twice.
const outboundTime = 3 * time.Second

// An outing is what came of a pool of callers and an API.
type outing struct {
	experience
	left    []time.Time // the shaper, as its hook was told
	reached []time.Time // the API, as it wrote down itself
}

// showOutbound lets many goroutines call a fragile API, straight and through a
// shaper.Transport, and shows what they got. Unless that is to be shown once,
// they then go on through the Transport until the first signal.
func showOutbound(stop *interrupts, t *terminal, c config) (status int, err error) {
	m := meaningOf(c.limits)
	interval := intervalOf(m)
	t.say("%s\n", t.in(bold, "Many callers, one fragile API."))
	sayLimits(t, m, m.pace())
	t.say("  API        refuses everybody for %s, with 429, when two requests come\n"+
		"             within %s", humane(punishment.Seconds()), humane(interval.Seconds()))
	t.say("  callers    %d; each calls again when it has its answer, or when its\n"+
		"             Retry-After is over\n", c.callers)

	t.say("%d callers straight at the API; this takes %s ...", c.callers, humane(outboundTime.Seconds()))
	straight, err := callStraight(stop.first, c, interval)
	if err != nil {
		return exitFailed, err
	}
	t.say("%d callers through one shaper.Transport; this takes %s ...\n", c.callers, humane(outboundTime.Seconds()))
	shaped, err := onceMoreIfCrowded(t, interval, func() (outing, error) {
		return callShaped(stop.first, t, c, interval)
	})
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", outboundTable(t, straight, shaped))
	faults := judgeOutbound(m, interval, straight, shaped)
	t.say("%s", outboundVerdict(t, straight, shaped, faults))
	switch {
	case !c.once:
		return goOn(stop.first, t, c, interval)
	case len(faults) > 0:
		return exitFailed, nil
	}
	return exitOK, nil
}

// onceMoreIfCrowded calls the API once more if the machine, and not the shaper,
// has brought calls together: once, as a program that is let try until it
// succeeds proves nothing.
func onceMoreIfCrowded(t *terminal, interval time.Duration, call func() (outing, error)) (outing, error) {
	o, err := call()
	if err != nil || !o.crowdedUnderway(interval) {
		return o, err
	}
	t.say("  The API refused %d: calls that had left the shaper %s apart or more came to\n"+
		"  it within %s, as this machine was late. Once more ...\n", o.refused, humane(o.apart().Seconds()), humane(interval.Seconds()))
	return call()
}

// crowdedUnderway says whether calls were refused that had left the shaper an
// interval apart, all of them: then it was between the two that they were held
// up, by a machine with other things to do.
func (o outing) crowdedUnderway(interval time.Duration) bool {
	return o.refused > 0 && o.apart() >= interval
}

// apart is the shortest time between two departures from the shaper.
func (o outing) apart() time.Duration {
	smallest, _, _ := gaps(o.left)
	return smallest
}

func callStraight(ctx context.Context, c config, interval time.Duration) (outing, error) {
	return call(ctx, c, interval, func(base http.RoundTripper) http.RoundTripper { return base })
}

func callShaped(ctx context.Context, t *terminal, c config, interval time.Duration) (outing, error) {
	var left instants
	s, err := shaper.New(c.limits, shaper.WithTrace(&shaper.Trace{
		Departed: func(_ context.Context, e shaper.Event) { left.note(e.At) },
	}))
	if err != nil {
		return outing{}, err
	}
	left.start()
	defer s.Close()
	defer watchShaper(t, s, nil)()
	o, err := call(ctx, c, interval, func(base http.RoundTripper) http.RoundTripper {
		return &shaper.Transport{Limiter: s, Base: base}
	})
	o.left = left.stop()
	return o, err
}

// call lets the callers call an API of their own for outboundTime, by a
// transport of their own that is wrapped.
func call(ctx context.Context, c config, interval time.Duration, wrap func(http.RoundTripper) http.RoundTripper) (outing, error) {
	api, err := startPunisher(interval)
	if err != nil {
		return outing{}, err
	}
	defer api.close()
	base := transportFor(c.callers)
	defer base.CloseIdleConnections()
	api.reached.start()
	// Not by a deadline in the context: the shaper would refuse, at once, all that
	// it can't let leave before it, which is not what is to be shown.
	during, end := context.WithCancel(ctx)
	defer time.AfterFunc(outboundTime, end).Stop()
	pool := &callers{number: c.callers, client: &http.Client{Transport: wrap(base)}, url: api.url.String()}
	saw := pool.run(during)
	end()
	return outing{experience: saw, reached: api.reached.stop()}, ctx.Err()
}

// transportFor keeps a connection for each of n callers.
func transportFor(n int) *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: n, DisableCompression: true}
}

// goOn lets the callers call through a Transport until ctx ends.
func goOn(ctx context.Context, t *terminal, c config, interval time.Duration) (status int, err error) {
	api, err := startPunisher(interval)
	if err != nil {
		return exitFailed, err
	}
	defer api.close()
	s, err := shaper.New(c.limits)
	if err != nil {
		return exitFailed, err
	}
	defer s.Close()
	base := transportFor(c.callers)
	defer base.CloseIdleConnections()
	t.say("\nThey go on through the Transport until Ctrl-C.")
	unwatch := watchShaper(t, s, nil)
	pool := &callers{
		number: c.callers, client: &http.Client{Transport: &shaper.Transport{Limiter: s, Base: base}}, url: api.url.String(), brief: true,
	}
	saw := pool.run(ctx)
	unwatch()
	t.say("Stopped after %s: %d served, %d refused by the API.", humane(saw.span.Seconds()), saw.served, saw.refused)
	return exitOK, nil
}

// outboundTable sets what the callers got side by side.
func outboundTable(t *terminal, straight, shaped outing) string {
	var b strings.Builder
	row := func(name, one, other string) {
		fmt.Fprintf(&b, "  %-30s %10s %10s\n", name, one, other)
	}
	numbers := func(name string, one, other int) {
		row(name, strconv.Itoa(one), strconv.Itoa(other))
	}
	row("", "straight", "shaped")
	numbers("calls answered", straight.answers(), shaped.answers())
	numbers("served", straight.served, shaped.served)
	numbers("refused by the API, with 429", straight.refused, shaped.refused)
	if shaped.turned > 0 {
		row("refused by the shaper", "-", strconv.Itoa(shaped.turned))
	}
	if straight.failed+shaped.failed > 0 {
		numbers("no answer, or another", straight.failed, shaped.failed)
	}
	row("served per second", decimal(straight.perSecond()), decimal(shaped.perSecond()))
	row("median time of a call served", timeAt(straight.times, 0.5), timeAt(shaped.times, 0.5))
	row("longest", timeAt(straight.times, 1), timeAt(shaped.times, 1))
	smallest, _ := gapTexts(straight.reached)
	shapedSmallest, _ := gapTexts(shaped.reached)
	row("smallest gap at the API", smallest, shapedSmallest)

	heading, rest, _ := strings.Cut(b.String(), "\n")
	return t.in(bold, heading) + "\n" + rest
}

// timeAt is the time, for people, than which so large a part of them, which are
// in order, is no longer.
func timeAt(times []time.Duration, part float64) string {
	if len(times) == 0 {
		return "-"
	}
	return humane(times[min(int(part*float64(len(times))), len(times)-1)].Seconds())
}

// judgeOutbound says what is wrong with a demonstration: nothing, if the API
// refused calls without the shaper, and behind it none, while more were served,
// but no more than the limits allow.
func judgeOutbound(m meaning, interval time.Duration, straight, shaped outing) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if straight.refused == 0 {
		fault("the API refused nobody without the shaper, so there is nothing to show: try more -callers or a slower -limits")
	}
	switch refusals := wereRefused(shaped.refused); {
	case shaped.crowdedUnderway(interval):
		fault("%s by the API behind the shaper, as two came within %s that had left it at least %s apart, twice: this machine is too busy; a slower -limits bears more",
			refusals, humane(interval.Seconds()), humane(shaped.apart().Seconds()))
	case shaped.refused > 0 && (m.endless || m.atOnce > 1):
		fault("%s by the API behind the shaper, as two came within %s: %q lets requests leave together", refusals, humane(interval.Seconds()), m.limits)
	case shaped.refused > 0:
		fault("%s by the API behind the shaper, as two came within %s", refusals, humane(interval.Seconds()))
	}
	if n := straight.failed + shaped.failed; n > 0 {
		fault("%s got no answer that this program expects", counted(n, "call"))
	}
	if shaped.served <= straight.served {
		fault("the shaper served %d, without it %d were served", shaped.served, straight.served)
	}
	if m.endless {
		return faults
	}
	if most := int(float64(m.atOnce) + m.rate*(shaped.span+m.slack()).Seconds()); shaped.served > most {
		fault("%d were served in %s, but only %d may leave in that time", shaped.served, humane(shaped.span.Seconds()), most)
	}
	return faults
}

// outboundVerdict says in a sentence or two what the demonstration has shown.
func outboundVerdict(t *terminal, straight, shaped outing, faults []string) string {
	if len(faults) == 0 {
		return fmt.Sprintf("%s Straight, %s by the API and %d served. Through the\n  Transport none was refused and %d were served.",
			t.in(green, "✓"), wereRefused(straight.refused), straight.served, shaped.served)
	}
	lines := make([]string, len(faults))
	for i, fault := range faults {
		lines[i] = t.in(red, "✗") + " " + fault
	}
	return strings.Join(lines, "\n")
}

func wereRefused(n int) string {
	if n == 1 {
		return "1 call was refused"
	}
	return fmt.Sprintf("%d calls were refused", n)
}
