package llm

import (
	"container/list"
	"math"
	"sync"
)

// Estimates learn what calls take: for each team and model the input that the provider counts for a byte of the body, and the
// output of an answer. Callers ask for much more than they get: a coding agent sends max_tokens 32,000 with each call, and its
// answers have some hundred tokens. Where a provider does not count what is asked for, an estimate that does holds
// the line up for nothing.
//
// Each of the sums over calls is multiplied by 0.9 before a call is added. So the latest ten calls matter most, and a team whose
// answers become longer is known after as many. Estimates remember the 10,000 pairs of team and model that were used last. The
// zero value is ready for use, and safe for concurrent use.
type Estimates struct {
	mu    sync.Mutex
	pairs map[pair]*list.Element
	used  list.List // of *learned, the one that was used last at the front
}

const (
	// mostPairs bounds the memory of Estimates: callers choose the names of models.
	mostPairs = 10_000

	// decay is what is left of a sum when a call is added. From 0.8 to 0.98 all give the same use of a quota.
	decay = 0.9

	// usualOutput is the estimate of an answer before the first has come. From 100 to 4,000 all give the same.
	usualOutput = 1000
)

type pair struct{ team, model string }

// learned are the sums of a pair. Those of input are over what the provider counted, and over the estimates of the same
// input by its length, in which pictures count by their kind.
type learned struct {
	pair
	input, asked  float64
	output, calls float64
	told, text    float64 // output of the calls whose text was seen, in tokens and in bytes
}

// Estimate returns what a call of a team and a model is likely to take that asks for so much. Before the first answer it is the
// input that is asked, and an output of 1,000; never more output than a call asks for.
func (e *Estimates) Estimate(team, model string, asked Usage) Usage {
	if asked.Output <= 0 {
		asked.Output = math.MaxInt
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findLocked(pair{team, model})
	if l == nil || l.calls == 0 {
		return Usage{Input: asked.Input, Output: min(usualOutput, asked.Output)}
	}
	estimate := Usage{Input: asked.Input, Output: min(max(1, ceil(l.output/l.calls)), asked.Output)}
	if l.asked > 0 {
		estimate.Input = ceil(float64(asked.Input) * l.input / l.asked)
	}
	return estimate
}

// Learn adds a call that has ended: what it asked for, what the provider counted, and the bytes of text in its answer, 0 if
// they are unknown.
func (e *Estimates) Learn(team, model string, asked, counted Usage, text int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := pair{team, model}
	l := e.findLocked(key)
	if l == nil {
		if e.pairs == nil {
			e.pairs = map[pair]*list.Element{}
		}
		for len(e.pairs) >= mostPairs {
			delete(e.pairs, e.used.Remove(e.used.Back()).(*learned).pair)
		}
		l = &learned{pair: key}
		e.pairs[key] = e.used.PushFront(l)
	}
	add := func(sum *float64, n int) { *sum = *sum*decay + float64(max(n, 0)) }
	add(&l.input, sum(counted.Input, counted.CacheRead, counted.CacheWrite))
	add(&l.asked, asked.Input)
	add(&l.output, counted.Output)
	add(&l.calls, 1)
	if text > 0 && counted.Output > 0 {
		add(&l.told, counted.Output)
		add(&l.text, text)
	}
}

// findLocked returns the sums of a pair; nil if there are none.
func (e *Estimates) findLocked(key pair) *learned {
	at := e.pairs[key]
	if at == nil {
		return nil
	}
	e.used.MoveToFront(at)
	return at.Value.(*learned)
}

// ceil returns a number rounded up, at most the largest int32: no call has so many tokens.
func ceil(n float64) int { return int(math.Ceil(min(n, math.MaxInt32))) }
