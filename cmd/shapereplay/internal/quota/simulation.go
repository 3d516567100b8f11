// Package quota tells how the calls of a gateway of language models would have fared under a quota:
// which teams would have waited, how long, and how much of the quota would have been used.
//
// The decisions are the gateway's, in virtual time: a call waits for the cost of its
// estimate ([llm.Quota.Cost]), teams take turns by their weights, and a call that has ended settles with the cost of
// its usage. Package internal/replay of the root module computes them, and its tests
// hold it to a Shaper. Some things are not in a usage log, and are not simulated:
//
//   - A call takes as long as in the log, from its departure, and the whole burst is free at the
//     beginning of the log.
//   - A call that was refused in the log, or whose client went, did not run, and its duration is
//     unknown. It is replayed with its estimate, and ends at once, so its estimate stands.
//   - A call without a valid token of the gateway, or whose body did not come, is left out, as it
//     never reaches the line.
//   - No client gives up, and none that is refused comes again; the log may have retries of its own.
//   - Holds, and the provider's rate-limit headers, are left out.
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

// A Setup has the quota and the settings of a replay.
type Setup struct {
	Quota    llm.Quota
	Provider string // how the API counts: see Providers
	Burst    time.Duration
	Depth    int
	MaxWait  time.Duration  // 0: no limit
	Weights  map[string]int // of teams; others have 1
}

// counted returns the part of a usage that counts towards an API's limits, as for the providers of the gateway. An
// API that is only compatible with OpenAI's is taken to send no rate-limit headers, so its calls settle with their whole usage.
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
	minutes map[time.Duration]*amounts // the usage of the calls that left in each minute
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
	case s.setup.Provider != "openai": // There the estimate stands ([llm.AtStart]).
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

// ran reports whether a call reached the provider, so that its duration is known.
func ran(r *accesslog.Record) bool {
	return r.Call.Took > 0 || r.Call.Known || r.Status < http.StatusBadRequest
}

// cameToLine reports whether a call that did not run was refused by the line, or was in it. Otherwise the gateway refused it
// before: its token was not valid, or its body could not be read.
func cameToLine(r *accesslog.Record) bool {
	switch r.Status {
	case http.StatusRequestTimeout, http.StatusUnauthorized, http.StatusRequestEntityTooLarge,
		http.StatusBadRequest: // of older gateways, whose body did not come
		return false
	}
	return true
}

// take counts the usage of a call that leaves at an instant.
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

// amounts are the sums for each of the limits, in the order of their names. The sums of a long
// log may exceed 32 bits, and nonsense in a log 64: such a sum saturates.
type amounts [len(limitNames)]int64

// add adds the usage of a call.
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

// Result lets all calls end, and returns their fates. No call may arrive any more.
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

// A Result is the fates of all calls.
type Result struct {
	Setup       Setup
	First, Last time.Time // arrivals; zero if there was none
	All         Team
	Teams       []*Team // the one with the most tokens first
	Limits      []Limit // of the quota
	Settled     replay.Settled
	Unknown     int // calls that have ended without usage, so that their estimate stands
	NotRun      int // calls that were refused in the log, or whose client went
	NotInLine   int // calls that the gateway refused before they reached the line; they are left out

	until time.Duration // the last departure
	taken amounts
}

// A Team has the fates of a team's calls.
type Team struct {
	Team   string  `json:"team"`
	Weight int     `json:"weight"` // of all teams together: 0
	Tokens int64   `json:"tokens"` // of the calls that left, as the provider counts them
	Now    Outcome `json:"now"`    // under the quota of the replay
	Then   Outcome `json:"then"`   // as the log has it
}

// An Outcome tells how calls fare. The waits count all calls that left, even at once.
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

// sumUp computes the figures of the waits that have been added.
func (o *Outcome) sumUp() {
	o.WaitMean = o.waited.Mean(o.Calls - o.Refused)
	o.WaitP99, o.WaitMax = simulate.Seconds(o.waits.Quantile(0.99)), simulate.Seconds(o.waits.Quantile(1))
}

// A Limit is how much of a limit of the quota was used.
type Limit struct {
	Limit  string  `json:"limit"`
	Minute int     `json:"minute"` // how much it allows in one
	Taken  int64   `json:"taken"`
	Mean   float64 `json:"mean"` // per minute, from the first arrival to the last departure, or over one minute if that is shorter
	Most   int64   `json:"most"` // in a minute, counted from the first arrival; the first one may include a burst
}
