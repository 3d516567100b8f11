// Package llm measures how callers of a language model keep to a quota of requests and tokens: how much
// of it they use, how often the provider refuses them, and how long they wait.
package llm

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	models "example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// Experiment is "llm".
var Experiment = run.Experiment{
	Name: "llm",
	What: "how much of a quota of a language model is used, and how often it refuses",
	Note: "In virtual time, at providers in memory (llm/llmtest) with 500 requests and 90,000 tokens a minute, for ten minutes. " +
		"Calls reserve 2,000 tokens and take about 700 in 2 to 8 s; each caller calls again when it has its answer. " +
		"Bedrock counts what a call has taken when it has ended; OpenAI counts max(max_tokens, input) when it begins, so there settling gains nothing, " +
		"and neither does it for a lone caller. More than 100 % is the bucket that was full at first. " +
		"backoff: no limiter. x-time-requests: one limiter, of requests. x-time-both: two in sequence, the second of estimates. " +
		"semaphore: 10 at once, which fits these calls and no others. cookbook: the rule of OpenAI's parallel processor. " +
		"unsettled: the shaper without settling. After refusals all but cookbook wait as long as they are told, or double their pause. " +
		"The longest wait is until the answer has come; the fewer calls of 200 callers leave, the longer each waits.",
	// Short, with -quick, the run has so many callers that they still ask for more than the quota.
	Groups: func(o run.Options) []run.Group {
		span, crowd := 10*time.Minute, 200
		if o.Quick {
			span, crowd = 90*time.Second, 40
		}
		var all []run.Case
		for _, p := range providers {
			for _, callers := range []int{crowd, 1} {
				for _, by := range ways {
					all = append(all, run.One(fmt.Sprintf("LLM/provider=%s/limiter=%s/callers=%d", p.name, by.name, callers), 1,
						func(t *testing.T) Outcome { return outcomeOf(t, p, by, callers, span) }))
				}
			}
		}
		return []run.Group{{Cases: all}}
	},
}

// The calls that are measured: each may take 2,000 tokens, and takes about 700 in some 5 seconds.
var (
	quota = models.Quota{Requests: 500, Tokens: 90_000}
	call  = llmtest.Call{Input: 500, Most: 1500}
)

const (
	estimate = 2000
	burst    = 20 * time.Second // of the quota, for each limiter that has one
	depth    = 10_000
	atOnce   = 10 // calls of the semaphore: 90,000 tokens a minute / 700 × 5 s, which has to be measured first
)

// A provider is one that calls go to.
type provider struct {
	name    string
	dialect llmtest.Dialect
	known   models.Provider
}

var providers = []provider{{"Bedrock", llmtest.Bedrock, models.Bedrock}, {"OpenAI", llmtest.OpenAI, models.OpenAI}}

// A world is a provider in memory, and the end of the run.
type world struct {
	provider
	server *llmtest.Server
	end    time.Time
	random *rand.Rand // Only answer uses it, which runs one call at a time.
}

func newWorld(p provider, span time.Duration) *world {
	w := &world{provider: p, end: time.Now().Add(span), random: rand.New(rand.NewPCG(1, 2))}
	w.server = llmtest.New(llmtest.Config{Dialect: p.dialect, Quota: quota, Answer: w.answer})
	return w
}

func (w *world) answer(llmtest.Call) llmtest.Answer {
	took := 2*time.Second + time.Duration(w.random.Int64N(int64(6*time.Second)))
	return llmtest.Answer{Output: 100 + w.random.IntN(200), First: took / 4, Took: took}
}

// send sends one request and reads the answer. It reports whether the provider has refused, and for how
// long it asks to hold back.
func (w *world) send(by http.RoundTripper) (refused bool, after time.Duration) {
	response := rivals.Must(by.RoundTrip(llmtest.NewRequest(context.Background(), w.dialect, call)))
	defer response.Body.Close()
	refused, after = response.StatusCode == http.StatusTooManyRequests, w.known.HoldFor(response)
	if w.dialect == llmtest.Bedrock {
		after = 0 // Its refusals do not say, and package llm's guess is not what callers do by themselves.
	}
	rivals.Must(io.Copy(io.Discard, response.Body))
	return refused, after
}

// A way is how callers keep to a quota. Its function makes the limiters that one run of callers shares, and returns the
// function of one call, which returns when the provider has taken the call, or the run has ended.
type way struct {
	name string
	make func(w *world) (one func())
}

// ways are compared. Ways that do not keep to the provider's counts come back after refusals by backoff.
var ways = []way{
	{"backoff", func(w *world) func() { return func() { w.backOff(func() {}) } }},
	{"x-time-requests", func(w *world) func() {
		requests := bucketOf(quota.Requests, burst)
		return func() { w.backOff(func() { wait(requests, 1) }) }
	}},
	{"x-time-both", func(w *world) func() {
		requests, tokens := bucketOf(quota.Requests, burst), bucketOf(quota.Tokens, burst)
		return func() {
			w.backOff(func() {
				wait(requests, 1)
				wait(tokens, estimate)
			})
		}
	}},
	{"semaphore", func(w *world) func() {
		seats := make(chan struct{}, atOnce) // A seat for each call at a time; the others wait for one.
		return func() {
			seats <- struct{}{}
			defer func() { <-seats }()
			w.backOff(func() {})
		}
	}},
	{"cookbook", func(w *world) func() { return newCookbook(w).one }},
	{"unsettled", func(w *world) func() {
		p := w.known
		p.Usage = nil
		return w.paced(p)
	}},
	{"shaper", func(w *world) func() { return w.paced(w.known) }},
}

// paced is this library's way.
func (w *world) paced(p models.Provider) (one func()) {
	s := rivals.Must(shaper.New(rivals.Must(quota.Limits(burst, depth))))
	t := models.Transport(s, quota, p)
	t.Base = w.server
	return func() { w.retry(func() {}, t) }
}

func (w *world) backOff(wait func()) { w.retry(wait, w.server) }

// retry sends a call until it is not refused: after the time that a refusal asks for, else after one that doubles
// from half a second to a minute, by chance between half and all of it.
func (w *world) retry(wait func(), by http.RoundTripper) {
	for pause := time.Second / 2; time.Now().Before(w.end); pause = min(2*pause, time.Minute) {
		wait()
		refused, after := w.send(by)
		if !refused {
			return
		}
		if after == 0 {
			after = pause/2 + time.Duration(rand.Int64N(int64(pause/2)))
		}
		time.Sleep(after)
	}
}

func bucketOf(perMinute int, holds time.Duration) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perMinute)/60, int(int64(perMinute)*int64(holds)/int64(time.Minute)))
}

func wait(l *rate.Limiter, n int) {
	if err := l.WaitN(context.Background(), n); err != nil {
		panic(err)
	}
}

// A cookbook works like OpenAI's example api_request_parallel_processor.py (github.com/openai/openai-cookbook, examples, read
// in 2026-11): capacities of requests and of tokens that begin at a minute's and refill evenly, a call that takes its estimate of
// both, and after a refusal a pause of 15 seconds for all.
type cookbook struct {
	w *world

	requests, tokens *rate.Limiter

	mu     sync.Mutex
	paused time.Time // until then
}

func newCookbook(w *world) *cookbook {
	return &cookbook{w: w, requests: bucketOf(quota.Requests, time.Minute), tokens: bucketOf(quota.Tokens, time.Minute)}
}

func (c *cookbook) one() {
	for time.Now().Before(c.w.end) {
		for !c.take() {
			time.Sleep(time.Second / 10) // The example looks every millisecond, for all calls at once.
		}
		if refused, _ := c.w.send(c.w.server); !refused {
			return
		}
		c.mu.Lock()
		c.paused = time.Now().Add(15 * time.Second)
		c.mu.Unlock()
	}
}

func (c *cookbook) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.paused) || c.requests.Tokens() < 1 || c.tokens.Tokens() < estimate {
		return false
	}
	return c.requests.Allow() && c.tokens.AllowN(time.Now(), estimate)
}

// An Outcome counts how the calls of one run fared.
type Outcome struct {
	Used    float64       `unit:"quota-%"`    // of the tokens that the quota allows in that time, by the provider's count
	Calls   float64       `unit:"calls/min"`  // that the provider took
	Refused float64       `unit:"429s/min"`   // by the provider
	Longest time.Duration `unit:"longest-ns"` // from wanting to call until the answer had come
}

// outcomeOf lets callers call, one call after the other each, for a span of virtual time.
func outcomeOf(t *testing.T, p provider, by way, callers int, span time.Duration) (found Outcome) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(p, span)
		one := by.make(w)
		var mu sync.Mutex
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for time.Now().Before(w.end) {
					start := time.Now()
					one()
					mu.Lock()
					found.Longest = max(found.Longest, min(time.Since(start), w.end.Sub(start)))
					mu.Unlock()
				}
			})
		}
		time.Sleep(span)
		st := w.server.Stats()
		all.Wait()
		found.Used = 100 * float64(st.Counted.Tokens) / (float64(quota.Tokens) * span.Minutes())
		found.Calls, found.Refused = float64(st.Answered)/span.Minutes(), float64(st.Refused)/span.Minutes()
	})
	return found
}
