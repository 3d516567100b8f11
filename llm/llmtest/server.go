// Package llmtest has providers of language models in memory, for tests of their callers:
// their limits, as each documents them, the fields of their responses, their refusals, and answers as JSON and
// as streams, with the usage where each reports it. A [Server] needs no network, and no clock but package
// time's. So it also works in a [testing/synctest] bubble, in which a minute takes no time.
//
//	server := llmtest.New(llmtest.Config{Dialect: llmtest.Bedrock, Quota: q})
//	t := llm.Transport(s, q, llm.Bedrock)
//	t.Base = server
//	client := &http.Client{Transport: t}
//
// It is only a model of the providers' documentation: providers change, and their pages do not tell everything. The
// comments name the sources, with their dates.
package llmtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"example.com/leakybucket/llm"
)

// A Dialect names the provider that a [Server] plays.
type Dialect string

// The providers.
const (
	// OpenAI has Chat Completions and Responses. It counts max(max_tokens, a quarter of the body's bytes) when a
	// call begins, gives nothing back, and counts refused requests too.
	OpenAI Dialect = "OpenAI"

	// Anthropic has Messages. It counts input when a call begins, and output as it is produced.
	Anthropic Dialect = "Anthropic"

	// Compatible has OpenAI's form without its rate-limit fields, as vLLM and Ollama have. It counts input when a call
	// begins, and output as it is produced.
	Compatible Dialect = "OpenAI-compatible"

	// Gemini has generateContent and streamGenerateContent. It counts input when a call begins, in each rolling minute.
	Gemini Dialect = "Gemini"

	// Bedrock has Converse and ConverseStream. It reserves the input and the most tokens of the
	// answer when a call begins, and gives back what was too much when the call ends.
	Bedrock Dialect = "Bedrock"
)

// A Config has the settings of a [Server].
type Config struct {
	Dialect Dialect

	// Quota has the limits. Each is a bucket of a minute's quota that drains evenly, and for Gemini a rolling minute.
	Quota llm.Quota

	// Minute is how long a minute of the Quota lasts, for tests that play a long time in a short one; 0: a minute.
	Minute time.Duration

	// OutputFactor is how many tokens Bedrock counts for a token of output when a call ends; 0 means 1.
	OutputFactor int

	// Answer says how a call goes; nil returns the zero Answer. It is called for each call that is
	// within the limits, one at a time.
	Answer func(Call) Answer

	// Cached returns how much of the input of a call is in a cache, so that it takes no room at Anthropic when the call
	// begins; nil: as much as CacheRead of its Answer, which comes back when it ends.
	Cached func(Call) int
}

// A Call is a request to a [Server].
type Call struct {
	N      int // of the calls that were within the limits, from 0
	Input  int // tokens: a quarter of the body's bytes, rounded up
	Most   int // tokens of the answer; 0: the request does not bound them
	Stream bool

	Model string // of a request of NewRequest; "" is "m"

	Responses bool // OpenAI: by Responses, and not by Chat Completions

	Header http.Header // of the request

	wantsUsage   bool // OpenAI: of a stream
	cached       int  // of Input, by Config.Cached
	outputFactor int
}

// An Answer is how a call goes.
type Answer struct {
	// Status is an error in place of an answer, such as 529 or 503, which counts towards no limit. 0 means that there
	// is an answer.
	Status int

	Input     int // tokens; 0 means as many as Call.Input
	CacheRead int // of Input, read from a cache
	Output    int // tokens; 0 means half of Call.Most, and at least 1

	First time.Duration // until the first token comes
	Took  time.Duration // until the last token has come

	Breaks bool // the connection breaks in the middle of the answer, before any usage
	Gzip   bool // the answer is compressed
}

// Stats are counts of a [Server].
type Stats struct {
	Answered  int // calls
	Refused   int // calls, with 429
	Failed    int // calls, with the status that an [Answer] had, or as not understood
	Abandoned int // calls that broke, or whose client had gone
	Used      llm.Usage
	Counted   llm.Quota // the usage of each limit by the calls
}

// A Server is a provider in memory. It is both an [http.Handler] and an [http.RoundTripper] whose
// requests it answers itself.
type Server struct {
	config Config

	mu     sync.Mutex
	limits limits
	calls  int
	stats  Stats
}

// New returns a Server. It panics if there is no such Dialect.
func New(c Config) *Server {
	if dialects[c.Dialect] == nil {
		panic(fmt.Sprintf("llmtest: there is no Dialect %q", c.Dialect))
	}
	return &Server{config: c, limits: newLimits(c.Quota, cmp.Or(c.Minute, time.Minute), c.Dialect == Gemini)}
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// A dialect is how a provider speaks and counts.
type dialect interface {
	// parse reads a request; ok reports whether the dialect knows it.
	parse(r *http.Request, body []byte) (c Call, ok bool)

	// atStart returns the charge of a call when it begins.
	atStart(c Call) llm.Quota

	// perOutput returns the charge of tokens of the answer when they are produced.
	perOutput(tokens int) llm.Quota

	// atEnd returns the refund of a call when it ends.
	atEnd(c Call, u llm.Usage) llm.Quota

	// countsRefused reports whether a refused request counts towards the limit of requests.
	countsRefused() bool

	// header sets the rate-limit headers.
	header(h http.Header, l *limits, now time.Time)

	// refuse writes a refusal that asks to come back after wait; 0: coming back does not help.
	refuse(w http.ResponseWriter, wait time.Duration)

	// fail writes an error.
	fail(w http.ResponseWriter, status int)

	// answer writes an answer, piece by piece: next returns the tokens of each, 0 at last, when the call has been settled.
	answer(w *writer, r *http.Request, c Call, u llm.Usage, next func() int)
}

var dialects = map[Dialect]dialect{OpenAI: openAI{}, Compatible: compatible{}, Anthropic: anthropic{}, Gemini: gemini{}, Bedrock: bedrock{}}

// ServeHTTP answers a call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d := dialects[s.config.Dialect]
	body, err := io.ReadAll(r.Body)
	c, ok := Call{}, false
	if err == nil {
		c, ok = d.parse(r, body)
	}
	if !ok {
		s.mu.Lock()
		s.stats.Failed++
		s.mu.Unlock()
		d.fail(w, http.StatusBadRequest)
		return
	}
	c.Input, c.outputFactor, c.Header = (len(body)+3)/4, max(1, s.config.OutputFactor), r.Header
	a, wait, admitted := s.admit(d, &c)
	switch {
	case !admitted:
		s.mu.Lock()
		d.header(w.Header(), &s.limits, time.Now())
		s.mu.Unlock()
		d.refuse(w, wait)
		return
	case a.Status != 0:
		d.fail(w, a.Status)
		return
	}
	s.serve(d, w, r, c, a)
}

// admit decides about a call. If it is refused, wait is how long until it would fit.
func (s *Server) admit(d dialect, c *Call) (a Answer, wait time.Duration, admitted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.config.Cached != nil {
		c.cached = min(s.config.Cached(*c), c.Input)
	}
	start := d.atStart(*c)
	if wait, admitted = s.limits.fit(start, now); !admitted {
		s.stats.Refused++
		request := llm.Quota{Requests: 1}
		if _, fits := s.limits.fit(request, now); fits && d.countsRefused() {
			s.takeLocked(request, now)
		}
		return Answer{}, wait, false
	}
	c.N = s.calls
	s.calls++
	if s.config.Answer != nil {
		a = s.config.Answer(*c)
	}
	if a.Status != 0 {
		s.stats.Failed++
		return a, 0, true
	}
	if a.Input == 0 {
		a.Input = c.Input
	}
	if a.Output == 0 {
		a.Output = max(1, c.Most/2)
	}
	if c.Most > 0 {
		a.Output = min(a.Output, c.Most)
	}
	a.CacheRead = min(max(a.CacheRead, c.cached), a.Input)
	s.takeLocked(start, now)
	return a, 0, true
}

func (s *Server) takeLocked(q llm.Quota, now time.Time) {
	s.limits.take(q, now)
	c := &s.stats.Counted
	c.Requests += q.Requests
	c.Tokens += q.Tokens
	c.Input += q.Input
	c.Output += q.Output
}

// serve answers a call that has been admitted.
func (s *Server) serve(d dialect, w http.ResponseWriter, r *http.Request, c Call, a Answer) {
	u := llm.Usage{Input: a.Input - a.CacheRead, CacheRead: a.CacheRead}
	settled, whole := false, false
	settleLocked := func() {
		if settled {
			return
		}
		settled = true
		back := d.atEnd(c, u)
		s.takeLocked(llm.Quota{Requests: -back.Requests, Tokens: -back.Tokens, Input: -back.Input, Output: -back.Output}, time.Now())
		s.stats.Used.Input += u.Input
		s.stats.Used.Output += u.Output
		s.stats.Used.CacheRead += u.CacheRead
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		settleLocked()
		if whole {
			s.stats.Answered++
		} else {
			s.stats.Abandoned++
		}
	}()
	if !sleep(r.Context(), a.First) {
		return
	}
	s.mu.Lock()
	d.header(w.Header(), &s.limits, time.Now())
	s.mu.Unlock()

	const pieces = 8
	sent, piece := 0, 0
	next := func() int {
		if sent == a.Output {
			// Before the usage is told, as a client may act on that at once.
			s.mu.Lock()
			defer s.mu.Unlock()
			settleLocked()
			return 0
		}
		if a.Breaks && piece == pieces/2 {
			panic(http.ErrAbortHandler)
		}
		piece++
		upTo := max(sent+1, a.Output*piece/pieces)
		if piece > 1 && !sleep(r.Context(), (a.Took-a.First)/(pieces-1)) {
			panic(http.ErrAbortHandler)
		}
		n := min(upTo, a.Output) - sent
		sent += n
		s.mu.Lock()
		defer s.mu.Unlock()
		u.Output = sent
		s.takeLocked(d.perOutput(n), time.Now())
		return n
	}
	out := &writer{ResponseWriter: w, compressed: a.Gzip}
	d.answer(out, r, c, llm.Usage{Input: u.Input, CacheRead: u.CacheRead, Output: a.Output}, next)
	out.close()
	whole = true
}

// sleep sleeps, and reports whether the client is still there.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// writeJSON writes a document with a status.
func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encode(document)) // The client may have gone.
}

// object is a JSON object.
type object map[string]any

// parseJSON returns a body as an object, nil if it is none.
func parseJSON(body []byte) (o object) {
	if json.Unmarshal(body, &o) != nil {
		return nil
	}
	return o
}

// number returns a number of an object, 0 if there is none above 0.
func (o object) number(name string) int {
	n, _ := o[name].(float64)
	return max(0, int(min(n, 1e9)))
}

// in returns the object of a name, nil if there is none.
func (o object) in(name string) object {
	inner, _ := o[name].(map[string]any)
	return inner
}
