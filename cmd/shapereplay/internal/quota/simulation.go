// Package quota tells how the calls of a gateway of language models would have fared under a quota:
// which teams would have waited, how long, and how much of the quota would have been used.
//
// The decisions are those of the gateway, in virtual time: a call waits for the cost of its
// estimate ([llm.Quota.Cost]), teams take turns by their weights, and when a call has ended it settles with the cost of
// what it has taken. Package internal/replay of the root module computes them, and its tests
// hold it to a Shaper. What a usage log does not tell is not simulated:
//
//   - A call takes as long as it took then, from when it leaves the line, and the bucket is full at the
//     beginning of the log.
//   - A call that was refused then, or whose client went, did not run: nobody knows how long it would
//     have taken. It is replayed with its estimate, and ends at once, so its estimate stands.
//   - A call that had no valid token of the gateway, or whose body did not come, would not come to the
//     line now either. It is left out.
//   - No client gives up, and none that is refused comes again; a log may have the retries of then.
//   - Holds, and what the provider said was left, are of then. They are left out.
package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// A Setup is what calls are replayed under.
type Setup struct {
	Quota    llm.Quota
	Provider string // how the API counts: see Providers
	Burst    time.Duration
	Depth    int
	MaxWait  time.Duration  // 0: no limit
	Weights  map[string]int // of teams; others have 1
}

// counted says what of a usage an API counts, as the providers of the gateway do. What is only like OpenAI's API is taken to
// say nothing of what is left, so that calls settle with all that they have used.
var counted = map[string]func(llm.Usage) llm.Usage{
	"openai": llm.OpenAI.Counted,
	"openai-compatible": func(u llm.Usage) llm.Usage {
		return llm.Usage{Input: int(min(input(u), math.MaxInt)), Output: u.Output}
	},
	"anthropic": llm.Anthropic.Counted,
	"gemini":    llm.Gemini.Counted,
	"bedrock":   llm.Bedrock.Counted,
}

// Providers returns the names of the providers, in words.
func Providers() string {
	names := slices.Sorted(maps.Keys(counted))
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// limits returns the limits of the bucket, or an error about a setup that can't be replayed.
func (s Setup) limits() (shaper.Limits, error) {
	if _, known := counted[s.Provider]; !known {
		return shaper.Limits{}, fmt.Errorf("-provider %q: must be %s", s.Provider, Providers())
	}
	var wrong *llm.QuotaError
	switch errors.As(s.Quota.Validate(s.Burst), &wrong); {
	case wrong == nil:
	case wrong.Setting == "":
		return shaper.Limits{}, errors.New("-requests, -tokens, -input or -output is missing: what does the quota allow in a minute?")
	default:
		return shaper.Limits{}, fmt.Errorf("-%s %s: %s", wrong.Setting, wrong.Value, wrong.Must)
	}
	l, err := s.Quota.Limits(s.Burst, s.Depth)
	if err != nil {
		return l, err
	}
	l.MaxWait = s.MaxWait
	return l, l.Validate()
}

// A Simulation lets calls arrive, one after another, at the bucket of a quota. It remembers the teams, and
// the calls in line and under way. [New] makes one.
type Simulation struct {
	setup   Setup
	counted func(llm.Usage) llm.Usage
	bucket  *replay.FairBucket
	teams   map[string]*Team
	result  Result
	minutes map[time.Duration]*amounts // what the calls that left in each minute have taken
}

// New returns a Simulation to which no call has come yet.
func New(s Setup) (*Simulation, error) {
	l, err := s.limits()
	if err != nil {
		return nil, err
	}
	return &Simulation{
		setup: s, counted: counted[s.Provider], bucket: replay.NewFairBucket(replay.NewPlan(l)), teams: map[string]*Team{},
		result: Result{Setup: s}, minutes: map[time.Duration]*amounts{},
	}, nil
}

// Arrive is the arrival of a call, by a Record of the format usage. Its instant must not be before the
// instant of the call before it.
func (s *Simulation) Arrive(r *accesslog.Record) {
	if s.result.First.IsZero() {
		s.result.First = r.At
	}
	s.result.Last = r.At
	if !ran(r) && !cameToLine(r) {
		s.result.NotInLine++
		return
	}
	t := s.teams[r.Call.Team]
	if t == nil {
		t = &Team{Team: r.Call.Team, Weight: cmp.Or(s.setup.Weights[r.Call.Team], 1)}
		s.teams[r.Call.Team] = t
	}
	estimate := s.counted(r.Call.Estimate)
	charged, actual := estimate, -1
	switch settled := s.counted(r.Call.Actual); {
	case !ran(r):
		s.result.NotRun++
	case !r.Call.Known:
		s.result.Unknown++
	case min(settled.Input, settled.Output, settled.CacheRead, settled.CacheWrite) >= 0: // Else the estimate stands; see llm.Provider.
		charged, actual = settled, s.setup.Quota.Cost(settled)
	}
	for _, to := range []*Outcome{&t.Then, &s.result.All.Then} {
		to.add(!ran(r) && r.Status != clientHasGone, r.Call.Waited)
	}
	s.bucket.Arrive(r.At.Sub(s.result.First), &replay.Call{
		Key: t.Team, Weight: t.Weight, Estimate: s.setup.Quota.Cost(estimate), Actual: actual, Took: r.Call.Took,
		Done: func(at time.Duration, f replay.Fate) {
			for _, to := range []*Team{t, &s.result.All} {
				to.Now.add(f.Result != replay.Departed, f.Waited)
				if f.Result == replay.Departed {
					to.Tokens = exact.Sum(to.Tokens, tokens(charged))
				}
			}
			if f.Result == replay.Departed {
				s.take(at, charged)
			}
		},
	})
}

// clientHasGone is the status of a call whose client went before there was an answer.
const clientHasGone = 499

// ran reports whether the provider was called for a call, so that it is known how long that took.
func ran(r *accesslog.Record) bool {
	return r.Call.Took > 0 || r.Call.Known || r.Status < http.StatusBadRequest
}

// cameToLine reports whether a call that did not run was refused by the line, or was in it. Else the gateway has answered
// before: it did not know whose call it was, or could not read the body.
func cameToLine(r *accesslog.Record) bool {
	switch r.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusRequestEntityTooLarge:
		return false
	}
	return true
}

// take counts what a call takes that leaves at an instant.
func (s *Simulation) take(at time.Duration, u llm.Usage) {
	s.result.until = max(s.result.until, at)
	minute := s.minutes[at/time.Minute]
	if minute == nil {
		minute = new(amounts)
		s.minutes[at/time.Minute] = minute
	}
	minute.add(u)
	s.result.taken.add(u)
}

// limitNames are the names of the limits that a quota may have.
var limitNames = [...]string{"requests", "tokens", "input", "output"}

// amounts are how much there is of what each of the limits counts, in the order of their names. The sums of a long
// log may exceed 32 bits, and nonsense in a log 64: a sum that does not fit is the largest that does.
type amounts [len(limitNames)]int64

// add adds what a call takes.
func (a *amounts) add(u llm.Usage) {
	for i, n := range []int64{1, tokens(u), input(u), int64(max(0, u.Output))} {
		a[i] = exact.Sum(a[i], n)
	}
}

// input returns the tokens of the input.
func input(u llm.Usage) int64 {
	cached := exact.Sum(int64(max(0, u.CacheRead)), int64(max(0, u.CacheWrite)))
	return exact.Sum(int64(max(0, u.Input)), cached)
}

// tokens returns the tokens of input and output together.
func tokens(u llm.Usage) int64 { return exact.Sum(input(u), int64(max(0, u.Output))) }

// Result lets all calls end, and returns what has become of them. No call may arrive any more.
func (s *Simulation) Result() Result {
	s.bucket.End()
	r := &s.result
	r.Settled = s.bucket.Settled()
	q := s.setup.Quota
	for i, minute := range []int{q.Requests, q.Tokens, q.Input, q.Output} {
		if minute == 0 {
			continue
		}
		l := Limit{Limit: limitNames[i], Minute: minute, Taken: r.taken[i]}
		l.Mean = float64(l.Taken) / max(r.until.Minutes(), 1)
		for _, taken := range s.minutes {
			l.Most = max(l.Most, taken[i])
		}
		r.Limits = append(r.Limits, l)
	}
	r.Teams = slices.AppendSeq([]*Team{}, maps.Values(s.teams))
	slices.SortFunc(r.Teams, func(a, b *Team) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Team, b.Team))
	})
	for _, t := range append(r.Teams, &r.All) {
		t.Now.sumUp()
		t.Then.sumUp()
	}
	return *r
}

// A Result is what has become of the calls.
type Result struct {
	Setup       Setup
	First, Last time.Time // arrivals; zero if there was none
	All         Team
	Teams       []*Team // those with the most tokens first
	Limits      []Limit // of the quota
	Settled     replay.Settled
	Unknown     int // calls that have ended without usage, so that their estimate stands
	NotRun      int // calls that were refused then, or whose client went
	NotInLine   int // calls that the gateway has answered before they came to the line, which are left out

	until time.Duration // when the last call left
	taken amounts
}

// A Team has what has become of the calls of a team.
type Team struct {
	Team   string  `json:"team"`
	Weight int     `json:"weight"` // of all teams together: 0
	Tokens int64   `json:"tokens"` // of the calls that left, as the provider counts them
	Now    Outcome `json:"now"`    // under the quota of the replay
	Then   Outcome `json:"then"`   // as the log has it
}

// An Outcome tells how calls fare. The waits count the calls that left, also those that left at once.
type Outcome struct {
	Calls    int              `json:"calls"`
	Refused  int              `json:"refused"`
	WaitMean simulate.Seconds `json:"wait_mean_s"`
	WaitP99  simulate.Seconds `json:"wait_p99_s"`
	WaitMax  simulate.Seconds `json:"wait_max_s"`

	waited simulate.Total
	waits  simulate.Waits
}

func (o *Outcome) add(refused bool, waited time.Duration) {
	o.Calls++
	if refused {
		o.Refused++
		return
	}
	o.waited += simulate.Total(waited)
	o.waits.Add(waited)
}

// sumUp tells the waits of the calls that have been added.
func (o *Outcome) sumUp() {
	o.WaitMean = o.waited.Mean(o.Calls - o.Refused)
	o.WaitP99, o.WaitMax = simulate.Seconds(o.waits.Quantile(0.99)), simulate.Seconds(o.waits.Quantile(1))
}

// A Limit is how much of a limit of the quota was used.
type Limit struct {
	Limit  string  `json:"limit"`
	Minute int     `json:"minute"` // how much it allows in one
	Taken  int64   `json:"taken"`
	Mean   float64 `json:"mean"` // a minute, from the first arrival until the last call leaves; at least of a minute
	Most   int64   `json:"most"` // in a minute, counted from the first arrival; what left in the first may include a burst
}
