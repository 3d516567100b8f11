package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// outboundTime is how long the callers call without the shaper, and again with
// it: long enough for two penalties of the API.
const outboundTime = 3 * time.Second

// A poolResult counts the answers that a pool of callers got from an API.
type poolResult struct {
	tally
	times    []time.Duration // of the calls that were served, from the call to the end of the response; sorted
	reached  []time.Time     // when calls reached the API, by its own record
	departed []time.Time     // when calls left the shaper, by its hook
}

// perSecond returns how many calls were served per second.
func (r poolResult) perSecond() float64 { return float64(r.served) / outboundTime.Seconds() }

// showOutbound lets many goroutines call a fragile API, directly and through a
// [shaper.Transport], and prints the answers. Unless -once is set, they then go
// on through the Transport until ctx ends.
func showOutbound(ctx context.Context, t *terminal, c config) (status int, err error) {
	info := newLimitsInfo(c.limits)
	interval := burstInterval(info)
	t.say("%s\n", t.coloured(bold, "Many callers, one fragile API."))
	printLimits(t, c.limits)
	t.say("  API        answers 429 to all requests for %s after two requests\n"+
		"             come within %s", seconds(penalty), seconds(interval))
	t.say("  callers    %d; each calls again as soon as it has its response,\n"+
		"             after a 429 when its Retry-After is over\n", c.callers)

	t.say("%d callers call the API directly; this takes %s ...", c.callers, seconds(outboundTime))
	direct, err := callFor(ctx, c, interval, false)
	if err != nil {
		return exitFailed, err
	}
	t.say("%d callers call it through one shaper.Transport; this takes %s ...\n", c.callers, seconds(outboundTime))
	shaped, err := callFor(ctx, c, interval, true)
	if err == nil && shaped.bunchedByMachine(interval) {
		// There is no third time: a program that tries until it succeeds proves nothing.
		t.say("  The API refused %d: this machine was late, so calls that had left the shaper\n"+
			"  at least %s apart reached the API within %s. Trying a second time ...\n", shaped.refused, quantile(gaps(shaped.departed), 0), seconds(interval))
		shaped, err = callFor(ctx, c, interval, true)
	}
	if err != nil {
		return exitFailed, err
	}
	t.say("%s", outboundTable(t, direct, shaped))
	status, err = conclude(t, c, fmt.Sprintf("Direct: %s by the API, %d served.\n  Through the Transport: none refused, %d served.",
		wereRefused(direct.refused), direct.served, shaped.served), judgeOutbound(info, interval, direct, shaped), nil)
	if c.once || err != nil {
		return status, err
	}
	return exitOK, callUntilInterrupted(ctx, t, c, interval)
}

// bunchedByMachine reports whether the API refused calls although all calls had
// left the shaper at least interval apart: then a busy machine delayed some of
// them between the shaper and the API.
func (r poolResult) bunchedByMachine(interval time.Duration) bool {
	between := gaps(r.departed)
	return r.refused > 0 && len(between) > 0 && between[0] >= interval
}

// callFor lets the callers call an API of their own for outboundTime, through a [shaper.Transport] if
// shape is set.
func callFor(ctx context.Context, c config, interval time.Duration, shape bool) (got poolResult, err error) {
	api := &burstIntolerantAPI{interval: interval, reached: &instants{}}
	var departed instants
	var limiter *shaper.Shaper
	if shape {
		limiter, err = shaper.New(c.limits, shaper.WithTrace(&shaper.Trace{
			Departed: func(_ context.Context, e shaper.Event) { departed.note(e.At) },
		}))
		if err != nil {
			return got, err
		}
		defer limiter.Close()
	}
	// The context is cancelled and has no deadline: with one, the shaper would at
	// once refuse each call that cannot leave before it.
	during, end := context.WithCancel(ctx)
	defer end()
	defer time.AfterFunc(outboundTime, end).Stop()
	err = callAPI(during, c.callers, api, limiter, func(r result) {
		got.add(r)
		if r.status == http.StatusOK {
			got.times = append(got.times, r.took)
		}
	})
	slices.Sort(got.times)
	got.reached, got.departed = api.reached.sorted(), departed.sorted()
	return got, cmp.Or(err, ctx.Err())
}

// callUntilInterrupted lets the callers call through a Transport until ctx ends. It
// keeps counts only: a program that runs for days must not remember each call.
func callUntilInterrupted(ctx context.Context, t *terminal, c config, interval time.Duration) error {
	s, err := shaper.New(c.limits)
	if err != nil {
		return err
	}
	defer s.Close()
	t.say("\nThe callers go on through the Transport until Ctrl-C.")
	start := time.Now()
	var got tally
	if err := callAPI(ctx, c.callers, &burstIntolerantAPI{interval: interval}, s, got.add); err != nil {
		return err
	}
	t.say("Stopped after %s: %d served, %d refused by the API.", seconds(time.Since(start)), got.served, got.refused)
	return nil
}

// callAPI starts an API and lets n callers call it until ctx ends, through a
// [shaper.Transport] if limiter is not nil. It calls note for one call after the other.
func callAPI(ctx context.Context, n int, api *burstIntolerantAPI, limiter *shaper.Shaper, note func(result)) error {
	server, err := startLoopback(api)
	if err != nil {
		return err
	}
	defer server.close()
	client := newClient(n)
	if limiter != nil {
		client.Transport = &shaper.Transport{Limiter: limiter, Base: client.Transport}
	}
	defer client.CloseIdleConnections()
	callAll(ctx, n, client, server.url.String(), note)
	return nil
}

// callAll lets n callers call target until ctx ends, and notes what each call got.
// Each caller calls again as soon as it has its response. After a refusal it first
// waits for as long as the refusal asks it to, as well-behaved clients do. Calls in
// progress when ctx ends are not noted.
func callAll(ctx context.Context, n int, client *http.Client, target string, note func(result)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for range n {
		all.Go(func() {
			for {
				r := get(ctx, client, target)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				note(r)
				mu.Unlock()
				if r.status != http.StatusOK && r.retryAfter == 0 {
					r.retryAfter = 100 * time.Millisecond // A server that is broken is not called all the time.
				}
				sleep(ctx, r.retryAfter)
			}
		})
	}
	all.Wait()
}

// outboundTable returns a table of the callers' answers, directly and shaped.
func outboundTable(t *terminal, direct, shaped poolResult) string {
	b := newTable(t, "direct", "shaped")
	b.row("calls answered", direct.sent, shaped.sent)
	b.row("served", direct.served, shaped.served)
	b.row("refused by the API, with 429", direct.refused, shaped.refused)
	if shaped.rejected > 0 {
		b.row("refused by the shaper", "-", shaped.rejected)
	}
	if n, m := direct.failed+direct.other, shaped.failed+shaped.other; n+m > 0 {
		b.row("no response, or another", n, m)
	}
	b.row("served per second", formatDecimal(direct.perSecond()), formatDecimal(shaped.perSecond()))
	b.row("median time of a call served", quantile(direct.times, 0.5), quantile(shaped.times, 0.5))
	b.row("longest", quantile(direct.times, 1), quantile(shaped.times, 1))
	b.row("smallest gap at the API", quantile(gaps(direct.reached), 0), quantile(gaps(shaped.reached), 0))
	return b.String()
}

// judgeOutbound returns the faults of a demonstration. It has none if the API
// refused calls without the shaper and none with it, and if more calls were
// served with the shaper, but no more than the limits allow.
func judgeOutbound(info limitsInfo, interval time.Duration, direct, shaped poolResult) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if direct.refused == 0 {
		fault("the API refused no call without the shaper, so there is nothing to show: try more -callers or a slower -limits")
	}
	if shaped.refused > 0 {
		why := ""
		switch {
		case shaped.bunchedByMachine(interval):
			why = fmt.Sprintf(" that had left the shaper at least %s apart, in both tries: this machine is too busy; try a slower -limits", quantile(gaps(shaped.departed), 0))
		case info.unlimited || info.atOnce > 1:
			why = fmt.Sprintf(": %q lets requests leave together", info.limits)
		}
		fault("%s by the API behind the shaper, because two reached it within %s%s", wereRefused(shaped.refused), seconds(interval), why)
	}
	if n := direct.failed + direct.other + shaped.failed + shaped.other; n > 0 {
		fault("%s failed, or got a response that this program does not expect", countOf(n, "call"))
	}
	if shaped.served <= direct.served {
		fault("%d calls were served with the shaper, %d without it: there should be more with it", shaped.served, direct.served)
	}
	if info.unlimited {
		return faults
	}
	if most := math.Floor(float64(info.atOnce) + info.rate*(outboundTime+info.slack()).Seconds()); float64(shaped.served) > most {
		fault("%d calls were served in %s, but only %.0f may leave in that time", shaped.served, seconds(outboundTime), most)
	}
	return faults
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

// A burstIntolerantAPI is a server that does not tolerate bursts. When two requests come
// within interval, it answers 429 with a Retry-After to all requests during the
// penalty.
type burstIntolerantAPI struct {
	interval time.Duration
	reached  *instants // when each request reached it; nil: not recorded

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

// ServeHTTP serves a request, or refuses it during the penalty.
func (a *burstIntolerantAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if rest := a.penaltyLeft(); rest > 0 {
		seconds := (rest + time.Second - 1) / time.Second // Rounded up, so that no caller comes back too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		http.Error(w, "too many requests at once", http.StatusTooManyRequests)
		return
	}
	respond(w, "served by the fragile API\n")
}

// penaltyLeft records a request that comes now. It returns how long this and
// all further requests are refused: 0 or less if this one is served.
func (a *burstIntolerantAPI) penaltyLeft() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.reached.note(now)
	if !now.Before(a.penaltyEnd) && !a.last.IsZero() && now.Sub(a.last) < a.interval {
		a.penaltyEnd = now.Add(penalty)
	}
	a.last = now
	return a.penaltyEnd.Sub(now)
}
