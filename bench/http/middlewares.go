package http

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/httprate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/shaper"
)

const (
	// bareHandler stands beside the middlewares: no middleware at all.
	bareHandler = "none"

	oursKeyed = "shaper-group"
	chi       = "chi-throttle"
	httpRate  = "httprate"
)

const (
	// fullLine is how many wait in our lines that refuse.
	fullLine = 100

	// slowPerSecond is three a day: no request leaves while this runs.
	slowPerSecond = 3. / (24 * 60 * 60)

	// perMinute is the rate of our lines in which requests wait: a request that would
	// leave after more than a year is refused.
	perMinute = 1. / 60

	manyRequests = 1 << 30 // a day
	aDay         = 24 * time.Hour
)

// An outcome is the fate of every request.
type outcome string

const (
	admitted outcome = "admitted" // at once
	refused  outcome = "refused"
	waits    outcome = "waits"
)

// A setup is the task of a middleware.
type setup struct {
	outcome outcome
	room    int  // how many can wait, if they do
	fields  bool // it adds the fields that tell clients how much they may still send
	next    http.Handler
}

// A guard is a middleware at work in front of a handler.
type guard struct {
	http.Handler
	stop func() // frees it
}

// openers has the middlewares that are compared, each in the best use that its
// documentation shows.
var openers = map[string]func(setup) (guard, error){
	bareHandler: func(s setup) (guard, error) { return guard{s.next, func() {}}, nil },
	rivals.Ours: openShaper,
	oursKeyed:   openGroup,
	chi:         openThrottle,
	httpRate:    openHTTPRate,
}

// limits returns the limits with which our middleware does its task, once begin has been called.
func (s setup) limits() shaper.Limits {
	switch s.outcome {
	case admitted:
		return shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}
	case refused:
		return shaper.Limits{Rate: slowPerSecond, Depth: fullLine}
	}
	return shaper.Limits{Rate: perMinute, Depth: s.room}
}

func (s setup) options() (opts []shaper.MiddlewareOption) {
	if s.fields {
		opts = append(opts, shaper.WithRateLimitHeaders())
	}
	return opts
}

func openShaper(s setup) (guard, error) {
	line := rivals.Must(shaper.New(s.limits()))
	g := guard{Handler: shaper.Middleware(line, s.options()...)(s.next)}
	var err error
	g.stop, err = s.begin(line.Wait, line.Allow, line.Close, func() int { return line.Stats().Waiting })
	return g, err
}

func openGroup(s setup) (guard, error) {
	const key = "key"
	lines := rivals.Must(shaper.NewGroup(func(string) (shaper.Limits, error) { return s.limits(), nil }))
	keyOf := func(*http.Request) (string, error) { return key, nil }
	g := guard{Handler: lines.Middleware(keyOf, s.options()...)(s.next)}
	var err error
	g.stop, err = s.begin(
		func(ctx context.Context) error { return lines.Wait(ctx, key) },
		func() bool { return lines.Allow(key) }, lines.Close,
		func() int { return lines.Stats().Waiting },
	)
	return g, err
}

// begin takes the units that may leave at once from a line in which requests are to wait, and fills
// one that is to refuse them.
func (s setup) begin(wait rivals.Wait, allow func() bool, closeLine func() error, waiting func() int) (stop func(), err error) {
	stop = func() { _ = closeLine() } // Close always returns nil.
	if s.outcome == admitted {
		return stop, nil
	}
	allow()
	if s.outcome == waits {
		return stop, nil
	}
	if _, err = measure.Gather(fullLine, func(int) { _ = wait(context.Background()) }); err != nil {
		return stop, err
	}
	if n := waiting(); n != fullLine {
		return stop, fmt.Errorf("%d wait in the line, not %d", n, fullLine)
	}
	return stop, nil
}

// openThrottle bounds how many requests are served at once. Requests wait while one is
// served that does not end, and are refused once the backlog is full.
func openThrottle(s setup) (guard, error) {
	if s.outcome == admitted {
		return guard{middleware.ThrottleBacklog(1, 1, aDay)(s.next), func() {}}, nil
	}
	stuck, stop := context.WithCancel(context.Background())
	endless := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck.Done() })
	g := guard{middleware.ThrottleBacklog(1, max(s.room, 1), aDay)(endless), stop}
	occupying := 1
	if s.outcome == refused {
		occupying = 2 // One is served and one waits.
	}
	request, err := http.NewRequestWithContext(stuck, http.MethodGet, "/", nil)
	if err != nil {
		return g, err
	}
	_, err = measure.Gather(occupying, func(int) { g.ServeHTTP(rivals.HeaderOnly{}, request) })
	return g, err
}

// openHTTPRate counts all requests under one key. Of its fields it keeps Retry-After,
// as ours does, where the others are not wanted.
func openHTTPRate(s setup) (guard, error) {
	perDay := manyRequests
	if s.outcome == refused {
		perDay = 1
	}
	var opts []httprate.Option
	if !s.fields {
		opts = append(opts, httprate.WithResponseHeaders(httprate.ResponseHeaders{RetryAfter: "Retry-After"}))
	}
	g := guard{httprate.LimitBy(perDay, aDay, httprate.Key("*"), opts...)(s.next), func() {}}
	request, err := http.NewRequest(http.MethodGet, "/", nil)
	if err == nil {
		g.ServeHTTP(rivals.HeaderOnly{}, request)
	}
	return g, err
}

// tellsRetryAfter reports whether a refusal of that middleware has a Retry-After.
func tellsRetryAfter(name string) bool {
	return slices.Contains([]string{rivals.Ours, oursKeyed, httpRate}, name)
}
