package main

import (
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A scene is a demonstration that judges itself. With -once the program shows one and
// exits with the status that show returns. Each scene has a file of its own, and a
// line in [scenes]; nothing else knows it.
type scene struct {
	flag   string   // asks for the scene; "" for the scene that is shown without such a flag
	limits string   // default of -limits
	flags  []string // flags that the scene follows, beside -limits and -once

	// show returns the exit status. It ends early, with the error of ctx, if ctx ends.
	show func(ctx context.Context, t *terminal, c config) (status int, err error)

	// alone is set if the program ends after the scene. Otherwise it serves the proxy,
	// unless -once is set.
	alone bool
}

// scenes are all scenes. The first one is shown if no flag asks for another.
var scenes = []scene{
	{limits: defaultLimits, flags: []string{"addr", "inspect", "burst", "vanish", "upstream", "svg"}, show: showBurst},
	{flag: "outbound", limits: outboundLimits, flags: []string{"callers"}, show: showOutbound, alone: true},
	{flag: "tokens", limits: tokensLimits, flags: []string{"svg"}, show: showTokens, alone: true},
	{flag: "fair", limits: fairLimits, flags: []string{"svg"}, show: showFair, alone: true},
}

// limitsInfo has the consequences of limits for requests of cost 1.
type limitsInfo struct {
	limits    shaper.Limits
	unlimited bool    // rate.Inf: only InFlight can make a request wait
	rate      float64 // departures per second; 0 if unlimited
	interval  float64 // seconds between departures; 0 if unlimited
	atOnce    int     // how many may leave at once while the bucket is empty
	mayWait   int     // how many more of a simultaneous burst may wait
	fits      int     // how many of a simultaneous burst are admitted
}

// newLimitsInfo computes the info of limits, which must be valid.
func newLimitsInfo(l shaper.Limits) limitsInfo {
	b := limitwords.BurstOf(l)
	info := limitsInfo{limits: l, atOnce: b.AtOnce, mayWait: b.Waiting, fits: b.Admitted()}
	// In Limits, rate.Inf is the largest float64.
	if info.unlimited = float64(l.Rate) == math.MaxFloat64; !info.unlimited {
		info.rate, info.interval = float64(l.Rate), 1/float64(l.Rate)
	}
	return info
}

// slack returns the lateness that the shaper makes up for.
func (i limitsInfo) slack() time.Duration {
	if i.limits.Slack == 0 {
		return shaper.DefaultSlack
	}
	return i.limits.Slack
}

// printLimits prints the limits, and below them their meaning, line by line.
func printLimits(t *terminal, l shaper.Limits) {
	const indent = "\n             "
	t.say("  limits     %s:%s%s", l, indent, strings.Join(limitwords.Of(l), indent))
}

// verdict prints the faults of a scene, or, if there are none, its result. It returns the exit
// status.
func verdict(t *terminal, shown string, faults []string) (status int) {
	for _, fault := range faults {
		t.say("%s %s", t.coloured(red, "✗"), fault)
	}
	if len(faults) > 0 {
		return exitFailed
	}
	t.say("%s %s", t.coloured(green, "✓"), shown)
	return exitOK
}

// A loopback is a real HTTP server on a free port of 127.0.0.1. Only this
// program calls it.
type loopback struct {
	url *url.URL

	server *http.Server
	done   chan struct{} // closed when the server has ended
}

// startLoopback starts a server for a handler. The caller must close it.
func startLoopback(h http.Handler) (loopback, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return loopback{}, err
	}
	b := loopback{url: &url.URL{Scheme: "http", Host: l.Addr().String()}, done: make(chan struct{})}
	b.server = &http.Server{
		Handler: h,
		// On a busy machine this program may come to write a request, or to read it, late.
		ReadHeaderTimeout: 30 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
	}
	go func() {
		defer close(b.done)
		// Serve returns when the server is closed. If its listener fails before that,
		// the calls fail, and the results show it.
		_ = b.server.Serve(l)
	}()
	return b, nil
}

// close ends the server at once and waits until it has ended.
func (b loopback) close() {
	_ = b.server.Close()
	<-b.done
}

// instants records when something happened. A nil instants records nothing: a server
// that runs for days must not remember each request.
type instants struct {
	mu  sync.Mutex
	all []time.Time
}

func (i *instants) note(at time.Time) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, at)
}

// sorted returns the instants so far in order. They need sorting, because the first
// goroutine to get the lock need not have read the clock first.
func (i *instants) sorted() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.SortedFunc(slices.Values(i.all), time.Time.Compare)
}

// gaps returns the times between successive instants of at, which is in order,
// from the shortest to the longest.
func gaps(at []time.Time) []time.Duration {
	var between []time.Duration
	for i := 1; i < len(at); i++ {
		between = append(between, at[i].Sub(at[i-1]))
	}
	slices.Sort(between)
	return between
}

// quantile returns the text of a quantile of times, which are sorted.
func quantile(times []time.Duration, q float64) string {
	if len(times) == 0 {
		return "-"
	}
	return limitwords.Seconds(times[min(int(q*float64(len(times))), len(times)-1)].Seconds())
}

// respond answers a request with a text.
func respond(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}
