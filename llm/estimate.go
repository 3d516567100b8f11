package llm

import (
	"container/list"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// kept bounds the bytes of a request's body, and of one event of a response, that are parsed.
const kept = 1 << 20

// writesAnswer reports whether a request makes a model write: those that embed or rank texts, or judge them, write nothing.
func writesAnswer(r *http.Request) bool {
	return r.URL == nil || !slices.ContainsFunc([]string{"embed", "rerank", "moderations"}, func(part string) bool {
		return strings.Contains(strings.ToLower(r.URL.Path), part)
	})
}

// Peek reads the beginning of the body of a request, at most 1 MiB and a byte, and reports whether that is the whole body. Before
// each allocation it asks room for so many bytes, and stops reading if room returns false; a nil room allows all. The body can be
// read as before, and neither another Peek nor a [Provider] reads it again unless GetBody is set. A body that was not read to its
// end counts by ContentLength, or as 1 MiB if that is unknown. An error is the body's.
func Peek(r *http.Request, room func(bytes int) bool) (head []byte, whole bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true, nil
	}
	p := peek(r, room)
	return p.read, p.whole, p.err
}

// peek makes the body of a request a peeked, and returns it. A RoundTripper must not change a request. But the bytes
// that have been read must be put back, and nobody else may use the body until RoundTrip has returned.
func peek(r *http.Request, room func(bytes int) bool) *peeked {
	p, ok := r.Body.(*peeked)
	if !ok {
		p = readAhead(r.Body, kept+1, r.ContentLength, room)
		r.Body = p
	}
	return p
}

// A peeked is a body whose beginning has been read. It can be read from there.
type peeked struct {
	io.Closer
	read  []byte // of the beginning; nil once it has been read again, so that a call under way does not keep it
	next  int    // of read
	rest  io.Reader
	whole bool  // the body has ended, within the most bytes that are read
	err   error // that ended the reading

	mu     sync.Mutex // net/http may still send a body when its response has come
	scan   *scan      // of what has come; nil: nobody has asked for it
	coding string     // of the body
	length int64      // that has come
	bomb   error      // ErrBomb, or nil
}

// Read implements [io.Reader].
func (p *peeked) Read(to []byte) (n int, err error) {
	if p.next == len(p.read) {
		n, err = p.rest.Read(to)
		p.passed(to[:n], err)
		return n, err
	}
	n = copy(to, p.read[p.next:])
	if p.next += n; p.next == len(p.read) {
		p.read, p.next = nil, 0
	}
	return n, nil
}

// firstPiece is the size of the first allocation for a body. Its Content-Length alone is no reason for more.
const firstPiece = 4 << 10

// readAhead reads the first most bytes of a body, or all of a shorter one. said is the length by its sender, or below 0. For room
// see [Peek].
func readAhead(body io.ReadCloser, most int, said int64, room func(bytes int) bool) *peeked {
	p := &peeked{Closer: body, rest: body}
	for len(p.read) < most {
		if len(p.read) == cap(p.read) {
			next := min(max(2*cap(p.read), firstPiece), most)
			if said >= int64(len(p.read)) && said <= int64(next) {
				next = min(int(said)+1, most) // With room for a byte that shows that the length is not true.
			}
			if room != nil && !room(next-cap(p.read)) {
				return p
			}
			p.read = append(make([]byte, 0, next), p.read...)
		}
		n, err := body.Read(p.read[len(p.read):cap(p.read)])
		p.read = p.read[:len(p.read)+n]
		switch {
		case err == io.EOF:
			p.whole = len(p.read) < most
			return p
		case err != nil:
			p.err, p.rest = err, failed{err} // The body fails again where it has failed.
			return p
		}
	}
	return p
}

// failed is the rest of a body whose reading has failed.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// Rest returns the body of a request behind what [Peek] has returned, for a program that has that. When it has passed, Estimate of a
// [Provider] counts the whole body: see there.
func Rest(r *http.Request) io.ReadCloser {
	if p, ok := r.Body.(*peeked); ok {
		p.read, p.next = nil, 0
	}
	return r.Body
}

// times returns a·b, at most the largest int. A b of 0 counts as 1.
func times(a, b ceiling) int {
	if b = max(b, 1); a > math.MaxInt/b {
		return math.MaxInt
	}
	return int(a * b)
}

// Estimates learn what calls take: for each team and model the input that the provider counts for a byte of the body, and the
// output of an answer. Callers ask for much more than they get: a coding agent sends max_tokens 32,000 with each call, and its
// answers have some hundred tokens. Where a provider does not count what is asked for, an estimate that does holds
// the line up for nothing.
//
// Each of the sums over calls is multiplied by 0.9 before a call is added. So the latest ten calls matter most, and a team whose
// answers become longer is known after as many. A team that is new to a model is estimated by all calls of the model. Estimates
// remember the 10,000 pairs of team and model that were used last. The zero value is ready for use, and safe for concurrent use.
type Estimates struct {
	mu     sync.Mutex
	pairs  sums // by team and model
	models sums // by model alone
}

const (
	// mostPairs bounds the memory of Estimates: callers choose the names of models.
	mostPairs = 10_000

	// decay is what is left of a sum when a call is added. From 0.8 to 0.98 all give the same use of a quota.
	decay = 0.9

	// usualOutput is the estimate of an answer before the first has come. From 100 to 4,000 all give the same.
	usualOutput = 1000

	// bytesOfToken is the usual number of bytes of text in a token.
	bytesOfToken = 4
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

// sums returns the sums, in the order in which they are saved.
func (l *learned) sums() [6]*float64 {
	return [...]*float64{&l.input, &l.asked, &l.output, &l.calls, &l.told, &l.text}
}

// savedVersion is the version of saved Estimates.
const savedVersion = 1

// savedEstimates are Estimates as JSON, the ones that were used last first.
type savedEstimates struct {
	Version int          `json:"version"`
	Models  []savedEntry `json:"models"`
	Pairs   []savedEntry `json:"pairs"`
}

type savedEntry struct {
	Team  string     `json:"team,omitempty"`
	Model string     `json:"model"`
	Sums  [6]float64 `json:"sums"` // of learned
}

// Save returns the Estimates as JSON for [Estimates.Restore] in another process: so many bytes at most, in which those that were
// used last have room first.
func (e *Estimates) Save(most int) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	saved := savedEstimates{savedVersion, []savedEntry{}, []savedEntry{}}
	text, _ := json.Marshal(saved) // There is nothing in it that JSON can't hold.
	most -= len(text)
	saved.Models, most = e.models.saved(most)
	saved.Pairs, _ = e.pairs.saved(most)
	text, _ = json.Marshal(saved)
	return text
}

// saved returns the entries for which so many bytes have room, and what is left of those.
func (s *sums) saved(most int) (entries []savedEntry, rest int) {
	entries = []savedEntry{}
	for at := s.used.Front(); at != nil; at = at.Next() {
		l := at.Value.(*learned)
		entry := savedEntry{Team: l.team, Model: l.model}
		for i, sum := range l.sums() {
			entry.Sums[i] = *sum
		}
		text, _ := json.Marshal(entry)
		if most -= len(text) + 1; most < 0 {
			break
		}
		entries = append(entries, entry)
	}
	return entries, max(most, 0)
}

// Restore adds what another process has learned ([Estimates.Save]), in place of what these Estimates have learned of the same teams
// and models. If the data are damaged, or have an unknown version, it returns an error and changes nothing.
func (e *Estimates) Restore(data []byte) error {
	var saved savedEstimates
	if err := json.Unmarshal(data, &saved); err != nil {
		return fmt.Errorf("llm: the saved estimates are damaged: %w", err)
	}
	if saved.Version != savedVersion {
		return fmt.Errorf("llm: the saved estimates have version %d, must have %d", saved.Version, savedVersion)
	}
	for _, entry := range slices.Concat(saved.Models, saved.Pairs) {
		for _, sum := range entry.Sums {
			if sum < 0 || sum > math.MaxInt32/(1-decay) {
				return fmt.Errorf("llm: the saved estimates are damaged: a sum of the model %.60q is %v", entry.Model, sum)
			}
		}
		if len(entry.Model) > longestModel {
			return fmt.Errorf("llm: the saved estimates are damaged: the model %.60q… has %d bytes, may have %d", entry.Model, len(entry.Model), longestModel)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models.restore(saved.Models)
	e.pairs.restore(saved.Pairs)
	return nil
}

// restore adds entries, of which the first was used last.
func (s *sums) restore(entries []savedEntry) {
	for _, entry := range slices.Backward(entries) {
		l := s.of(pair{entry.Team, entry.Model})
		for i, sum := range l.sums() {
			*sum = entry.Sums[i]
		}
	}
}

// Estimate returns what a call of a team and a model is likely to take that asks for so much. Before the first answer of the model
// it is the input that is asked, and an output of 1,000; never more output than a call asks for.
func (e *Estimates) Estimate(team, model string, asked Usage) Usage {
	if asked.Output <= 0 {
		asked.Output = math.MaxInt
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findLocked(team, model)
	if l == nil {
		return Usage{Input: asked.Input, Output: min(usualOutput, asked.Output)}
	}
	estimate := Usage{Input: asked.Input, Output: min(usualOutput, asked.Output)}
	if l.calls > 0 {
		estimate.Output = min(max(1, ceil(l.output/l.calls)), asked.Output)
	}
	if l.asked > 0 {
		estimate.Input = ceil(float64(asked.Input) * l.input / l.asked)
	}
	return estimate
}

// begun notes what a call of a model has taken of input, as its answer reports at the start. That counts until the first call of the
// model has ended, which may take long: meanwhile each call would be taken to have none of its input in a cache.
func (e *Estimates) begun(model string, asked, counted Usage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.models.find(pair{model: model}) == nil {
		l := e.models.of(pair{model: model})
		l.input, l.asked = float64(sum(counted.Input, counted.CacheRead, counted.CacheWrite)), float64(asked.Input)
	}
}

// Learn adds a call that has ended: what it asked for, what the provider counted, and the bytes of text in its answer, 0 if
// they are unknown.
func (e *Estimates) Learn(team, model string, asked, counted Usage, text int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range []*learned{e.pairs.of(pair{team, model}), e.models.of(pair{model: model})} {
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
}

// tokensOf returns how many tokens a text of so many bytes is likely to be. Before the first answer it is a quarter.
func (e *Estimates) tokensOf(team, model string, text int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.findLocked(team, model); l != nil && l.text > 0 {
		return ceil(float64(text) * l.told / l.text)
	}
	return ceil(float64(text) / bytesOfToken)
}

// findLocked returns the sums of a pair, or else of its model; nil if there are none.
func (e *Estimates) findLocked(team, model string) *learned {
	if l := e.pairs.find(pair{team, model}); l != nil {
		return l
	}
	return e.models.find(pair{model: model})
}

// sums have the learned of the pairs that were used last. The zero value is ready for use.
type sums struct {
	by   map[pair]*list.Element
	used list.List // of *learned, the one that was used last at the front
}

// find returns the learned of a pair; nil if there is none.
func (s *sums) find(key pair) *learned {
	at := s.by[key]
	if at == nil {
		return nil
	}
	s.used.MoveToFront(at)
	return at.Value.(*learned)
}

// of is find, and makes what there is not.
func (s *sums) of(key pair) *learned {
	if l := s.find(key); l != nil {
		return l
	}
	if s.by == nil {
		s.by = map[pair]*list.Element{}
	}
	if len(s.by) >= mostPairs {
		delete(s.by, s.used.Remove(s.used.Back()).(*learned).pair)
	}
	l := &learned{pair: key}
	s.by[key] = s.used.PushFront(l)
	return l
}

// ceil returns a number rounded up, at most the largest int32: no call has so many tokens.
func ceil(n float64) int { return int(math.Ceil(min(n, math.MaxInt32))) }
