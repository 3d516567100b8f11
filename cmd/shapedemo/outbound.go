package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// outboundTime is how long the callers call without the shaper, and again with
// it: long enough for two penalties of the API.
const outboundTime = 3 * time.Second

// A poolResult is what a pool of callers got from an API.
type poolResult struct {
	callStats
	departed []time.Time // when calls left the shaper, by its hook
	late     float64     // seconds in which none left because this machine was late, as the shaper reports
	reached  []time.Time // when calls reached the API, by its own record
}

// showOutbound lets many goroutines call a fragile API, directly and through a
// [shaper.Transport], and prints what they got. Unless -once is set, they then
// go on through the Transport until the first signal.
func showOutbound(stop *interrupts, t *terminal, c config) (status int, err error) {
	info := newLimitsInfo(c.limits)
	interval := burstInterval(info)
	t.say("%s\n", t.coloured(bold, "Many callers, one fragile API."))
	printLimits(t, c.limits)
	t.say("  API        answers 429 to all requests for %s after two requests\n"+
		"             come within %s", limitwords.Seconds(penalty.Seconds()), limitwords.Seconds(interval.Seconds()))
	t.say("  callers    %d; each calls again as soon as it has its response,\n"+
		"             after a 429 when its Retry-After is over\n", c.callers)

	t.say("%d callers call the API directly; this takes %s ...", c.callers, limitwords.Seconds(outboundTime.Seconds()))
	direct, err := callDirect(stop.graceful, c, interval)
	if err != nil {
		return exitFailed, err
	}
	t.say("%d callers call it through one shaper.Transport; this takes %s ...\n", c.callers, limitwords.Seconds(outboundTime.Seconds()))
	shaped, err := repeatIfMachineWasLate(t, info, interval, func() (poolResult, error) {
		return callShaped(stop.graceful, t, c, interval)
	})
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", outboundTable(t, direct, shaped))
	faults := judgeOutbound(info, interval, direct, shaped)
	t.say("%s", outboundVerdict(t, direct, shaped, faults))
	switch {
	case !c.once:
		return runUntilInterrupted(stop.graceful, t, c, interval)
	case len(faults) > 0:
		return exitFailed, nil
	}
	return exitOK, nil
}

// repeatIfMachineWasLate runs call a second time if the API refused calls that
// this machine, and not the shaper, brought together, or if this machine did not
// get round to let calls leave for a quarter of the time. There is no third time:
// a program that tries until it succeeds proves nothing. There is no second time
// either if calls left the shaper together, whatever else the machine did.
func repeatIfMachineWasLate(t *terminal, info limitsInfo, interval time.Duration, call func() (poolResult, error)) (poolResult, error) {
	r, err := call()
	if err != nil || r.bunchedByShaper(interval) {
		return r, err
	}
	if n, _ := r.leftTooFast(info); n > 0 {
		return r, nil
	}
	if r.late > outboundTime.Seconds()/4 {
		t.say("  This machine was late: for %s it let no call leave. Trying a second time ...\n", limitwords.Seconds(r.late))
		return call()
	}
	if !r.bunchedByMachine(interval) {
		return r, nil
	}
	t.say("  The API refused %d: this machine was late, so calls that had left the shaper\n"+
		"  at least %s apart reached the API within %s. Trying a second time ...\n", r.refused, limitwords.Seconds(r.smallestDepartureGap().Seconds()), limitwords.Seconds(interval.Seconds()))
	return call()
}

// leftTooFast returns how many calls left the shaper within some time, and that time, if
// they are more than the limits allow. It returns 0 if all kept to the limits. No machine
// that is late explains such calls: their instants are those of the shaper's own slots.
func (r poolResult) leftTooFast(info limitsInfo) (calls int, within time.Duration) {
	if info.unlimited {
		return 0, 0
	}
	// No time holds more than burst + rate × (time + slack) departures. So if each costs
	// 1 and time pays for them at the rate, from any departure on the debt never exceeds
	// burst + rate × slack.
	allowed := float64(max(info.limits.Burst, 1)) + info.rate*info.slack().Seconds() + 1e-6 // for what rounding may do
	debt := func(i int) float64 { return float64(i) - info.rate*r.departed[i].Sub(r.departed[0]).Seconds() }
	least := math.Inf(1)
	for last := range r.departed {
		least = min(least, debt(last))
		if debt(last)+1-least <= allowed {
			continue
		}
		first := last - 1 // of the shortest time with too many
		for debt(last)+1-debt(first) <= allowed {
			first--
		}
		return last + 1 - first, r.departed[last].Sub(r.departed[first])
	}
	return 0, 0
}

// bunchedByShaper reports whether the API refused calls and some had left the shaper
// less than interval apart: a second try has the same limits.
func (r poolResult) bunchedByShaper(interval time.Duration) bool {
	return r.refused > 0 && r.smallestDepartureGap() < interval
}

// bunchedByMachine reports whether the API refused calls although all calls had
// left the shaper at least interval apart: then a busy machine delayed some of
// them between the shaper and the API.
func (r poolResult) bunchedByMachine(interval time.Duration) bool {
	return r.refused > 0 && r.smallestDepartureGap() >= interval
}

// smallestDepartureGap returns the shortest time between two departures from
// the shaper.
func (r poolResult) smallestDepartureGap() time.Duration {
	smallest, _, _ := gaps(r.departed)
	return smallest
}

func callDirect(ctx context.Context, c config, interval time.Duration) (poolResult, error) {
	return call(ctx, c, interval, func(base http.RoundTripper) http.RoundTripper { return base })
}

func callShaped(ctx context.Context, t *terminal, c config, interval time.Duration) (poolResult, error) {
	var left instants
	s, err := shaper.New(c.limits, shaper.WithTrace(&shaper.Trace{
		Departed: func(_ context.Context, e shaper.Event) { left.note(e.At) },
	}))
	if err != nil {
		return poolResult{}, err
	}
	left.start()
	defer s.Close()
	defer watchShaper(t, s, nil)()
	r, err := call(ctx, c, interval, func(base http.RoundTripper) http.RoundTripper {
		return &shaper.Transport{Limiter: s, Base: base}
	})
	r.departed = left.stop()
	r.late = s.Stats().Missed * newLimitsInfo(c.limits).interval
	return r, err
}

// call lets a pool of callers call an API of its own for outboundTime, through
// the RoundTripper that wrap makes of the pool's transport.
func call(ctx context.Context, c config, interval time.Duration, wrap func(http.RoundTripper) http.RoundTripper) (poolResult, error) {
	api, err := startBurstIntolerantAPI(interval)
	if err != nil {
		return poolResult{}, err
	}
	defer api.close()
	base := transportFor(c.callers)
	defer base.CloseIdleConnections()
	api.reached.start()
	// The context is cancelled and has no deadline: with one, the shaper would at
	// once refuse each call that cannot leave before it.
	during, end := context.WithCancel(ctx)
	defer time.AfterFunc(outboundTime, end).Stop()
	pool := &callers{count: c.callers, client: &http.Client{Transport: wrap(base)}, url: api.url.String()}
	saw := pool.run(during)
	end()
	return poolResult{callStats: saw, reached: api.reached.stop()}, ctx.Err()
}

// transportFor returns a Transport that keeps a connection for each of n callers.
func transportFor(n int) *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: n, DisableCompression: true}
}

// runUntilInterrupted lets the callers call through a Transport until ctx ends.
func runUntilInterrupted(ctx context.Context, t *terminal, c config, interval time.Duration) (status int, err error) {
	api, err := startBurstIntolerantAPI(interval)
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
	t.say("\nThe callers go on through the Transport until Ctrl-C.")
	stopStatus := watchShaper(t, s, nil)
	pool := &callers{
		count: c.callers, client: &http.Client{Transport: &shaper.Transport{Limiter: s, Base: base}}, url: api.url.String(), countsOnly: true,
	}
	saw := pool.run(ctx)
	stopStatus()
	t.say("Stopped after %s: %d served, %d refused by the API.", limitwords.Seconds(saw.duration.Seconds()), saw.served, saw.refused)
	return exitOK, nil
}

// outboundTable returns a table of what the callers got, directly and shaped.
func outboundTable(t *terminal, direct, shaped poolResult) string {
	var b strings.Builder
	row := func(name, one, other string) {
		fmt.Fprintf(&b, "  %-30s %10s %10s\n", name, one, other)
	}
	numbers := func(name string, one, other int) {
		row(name, strconv.Itoa(one), strconv.Itoa(other))
	}
	row("", "direct", "shaped")
	numbers("calls answered", direct.answered(), shaped.answered())
	numbers("served", direct.served, shaped.served)
	numbers("refused by the API, with 429", direct.refused, shaped.refused)
	if shaped.rejected > 0 {
		row("refused by the shaper", "-", strconv.Itoa(shaped.rejected))
	}
	if direct.failed+shaped.failed > 0 {
		numbers("no response, or another", direct.failed, shaped.failed)
	}
	row("served per second", formatDecimal(direct.perSecond()), formatDecimal(shaped.perSecond()))
	row("median time of a call served", quantileText(direct.times, 0.5), quantileText(shaped.times, 0.5))
	row("longest", quantileText(direct.times, 1), quantileText(shaped.times, 1))
	smallest, _ := gapTexts(direct.reached)
	shapedSmallest, _ := gapTexts(shaped.reached)
	row("smallest gap at the API", smallest, shapedSmallest)

	heading, rest, _ := strings.Cut(b.String(), "\n")
	return t.coloured(bold, heading) + "\n" + rest
}

// quantileText formats a quantile of times, which are sorted.
func quantileText(times []time.Duration, q float64) string {
	if len(times) == 0 {
		return "-"
	}
	return limitwords.Seconds(times[min(int(q*float64(len(times))), len(times)-1)].Seconds())
}

// judgeOutbound returns what is wrong with a demonstration. Nothing is wrong if
// the API refused calls without the shaper and none with it, and if more calls
// were served with the shaper, but no more than the limits allow.
func judgeOutbound(info limitsInfo, interval time.Duration, direct, shaped poolResult) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if direct.refused == 0 {
		fault("the API refused no call without the shaper, so there is nothing to show: try more -callers or a slower -limits")
	}
	if n, within := shaped.leftTooFast(info); n > 0 {
		fault("%d calls left the shaper within %s: more than %q allows", n, limitwords.Seconds(within.Seconds()), info.limits)
	}
	switch refusals := wereRefused(shaped.refused); {
	case shaped.bunchedByMachine(interval):
		fault("%s by the API behind the shaper, because two reached it within %s that had left the shaper at least %s apart, in both tries: this machine is too busy; try a slower -limits",
			refusals, limitwords.Seconds(interval.Seconds()), limitwords.Seconds(shaped.smallestDepartureGap().Seconds()))
	case shaped.refused > 0 && (info.unlimited || info.atOnce > 1):
		fault("%s by the API behind the shaper, because two reached it within %s: %q lets requests leave together", refusals, limitwords.Seconds(interval.Seconds()), info.limits)
	case shaped.refused > 0:
		fault("%s by the API behind the shaper, because two reached it within %s", refusals, limitwords.Seconds(interval.Seconds()))
	}
	if n := direct.failed + shaped.failed; n > 0 {
		fault("%s failed, or got a response that this program does not expect", countOf(n, "call"))
	}
	if shaped.served <= direct.served {
		fault("%d calls were served with the shaper, %d without it: there should be more with it", shaped.served, direct.served)
	}
	if info.unlimited {
		return faults
	}
	if maximum := int(float64(info.atOnce) + info.rate*(shaped.duration+info.slack()).Seconds()); shaped.served > maximum {
		fault("%d calls were served in %s, but only %d may leave in that time", shaped.served, limitwords.Seconds(shaped.duration.Seconds()), maximum)
	}
	return faults
}

// outboundVerdict returns in a sentence or two what the demonstration showed.
func outboundVerdict(t *terminal, direct, shaped poolResult, faults []string) string {
	if len(faults) == 0 {
		return fmt.Sprintf("%s Direct: %s by the API, %d served.\n  Through the Transport: none refused, %d served.",
			t.coloured(green, "✓"), wereRefused(direct.refused), direct.served, shaped.served)
	}
	lines := make([]string, len(faults))
	for i, fault := range faults {
		lines[i] = t.coloured(red, "✗") + " " + fault
	}
	return strings.Join(lines, "\n")
}

func wereRefused(n int) string {
	if n == 1 {
		return "1 call was refused"
	}
	return fmt.Sprintf("%d calls were refused", n)
}

// penalty is how long a burstIntolerantAPI refuses all requests after a burst.
// Real APIs of this kind refuse for a minute or more; with one second a run stays
// short. Retry-After can express whole seconds only, so penalty is a multiple of
// one second.
const penalty = time.Second

// A burstIntolerantAPI is a real HTTP server on loopback. When two requests come
// within interval, it answers 429 with a Retry-After to all requests during the
// penalty. It records when each request reached it.
type burstIntolerantAPI struct {
	loopback
	interval time.Duration
	reached  instants

	mu         sync.Mutex
	last       time.Time // when the latest request came, whether served or refused
	penaltyEnd time.Time // zero before the first penalty
}

// burstInterval returns the interval within which two requests are a burst for an
// API called with these limits: a quarter of the time between departures. It must
// be that much shorter because the machine delays some requests between the
// shaper and the API, and these must not look like a burst.
func burstInterval(info limitsInfo) time.Duration {
	if info.unlimited {
		return 5 * time.Millisecond
	}
	return time.Duration(info.interval / 4 * float64(time.Second))
}

// startBurstIntolerantAPI starts an API on a free port. The caller must close it.
func startBurstIntolerantAPI(interval time.Duration) (*burstIntolerantAPI, error) {
	a := &burstIntolerantAPI{interval: interval}
	var err error
	a.loopback, err = startLoopback(a)
	return a, err
}

// ServeHTTP serves a request, or refuses it during the penalty.
func (a *burstIntolerantAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	a.reached.note(now)
	if rest := a.penaltyLeft(now); rest > 0 {
		seconds := (rest + time.Second - 1) / time.Second // Rounded up, so that no caller comes back too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		http.Error(w, "too many requests at once", http.StatusTooManyRequests)
		return
	}
	_, _ = io.WriteString(w, "served by the fragile API\n")
}

// penaltyLeft records a request that has come now. It returns how long this and
// all further requests are refused: 0 or less if this one is served.
func (a *burstIntolerantAPI) penaltyLeft(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The first request to get the lock need not have read the clock first. If now
	// lies before last, the two came at the same time, which is a burst too.
	if !now.Before(a.penaltyEnd) && !a.last.IsZero() && now.Sub(a.last) < a.interval {
		a.penaltyEnd = now.Add(penalty)
	}
	if now.After(a.last) {
		a.last = now
	}
	return a.penaltyEnd.Sub(now)
}
