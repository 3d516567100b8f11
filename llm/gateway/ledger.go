package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// mostTeams bounds the teams that a Ledger remembers: the ones that were last seen. A team takes some 5 kB.
const mostTeams = 1000

// otherTeam is the label of the teams that have none of their own.
const otherTeam = "other"

// A Ledger counts the usage of calls by team. Its memory is bounded: it forgets all teams but the 1,000 that were
// last seen. The usage of forgotten teams stays in the sums. A Ledger is safe for concurrent use.
type Ledger struct {
	origin time.Time // of its spans of time

	mu       sync.Mutex
	of       subject
	all      account
	teams    map[string]*account
	labelled map[string]*Total // with labels of their own: the first that came
	refusals uint64

	bodies  bodies        // with a lock of its own
	learned llm.Estimates // likewise; a reload forgets nothing
	seats   *shaper.Group[string]
}

// A subject is the gateway that a [Ledger] counts for.
type subject struct {
	provider string
	quota    llm.Quota
	minute   float64 // cost units of a minute's quota
	line     func() *shaper.Shaper
	weight   func(team string) int
	labels   int           // how many teams have a label of their own
	seats    shaper.Limits // of a team
}

// NewLedger returns an empty Ledger for a [Config].
func NewLedger() *Ledger {
	return &Ledger{origin: time.Now(), teams: map[string]*account{}, labelled: map[string]*Total{}, bodies: bodies{most: DefaultBodies}}
}

// A Status is the state of a [Ledger].
type Status struct {
	Provider     string    // "openai"
	Quota        llm.Quota // of a minute
	Minute, Hour Taken     // of the last minute and hour, by all teams
	Teams        []TeamStatus
	Others       TeamStatus    // the sum of the teams that are not in Teams; its Team is ""
	Refusals     uint64        // with which the provider has answered 429 since the start; there should be none
	Refused      uint64        // calls that the gateway has refused
	LongestWait  time.Duration // of the last hour
	Forfeited    uint64        // of the Shaper, at all levels, in their cost units
	Hint         string        // advice for when Forfeited grows; "" if there is none

	BodyBytes, MostBodyBytes int64 // that calls hold of their bodies, and that they may hold ([Config].Bodies)

	// Level, Reserved and Capacity are those of the highest level, as parts of a minute's quota: with a burst of 30 s Capacity is
	// 0.5. Level includes Reserved, the reservations of calls that have not ended.
	Level, Reserved, Capacity float64
}

// Taken is the usage of calls, as the provider counts it ([llm.Provider.Counted]).
type Taken struct{ Requests, Tokens, Input, Output uint64 }

// A TeamStatus is the part of a [Status] about a team.
type TeamStatus struct {
	Team         string
	Weight       int
	Waiting      int
	Minute, Hour Taken
	LongestWait  time.Duration // of the last hour
	Refused      uint64
}

// A Total is the usage of a label since the start.
type Total struct {
	Team string // "other" for all teams that have no label of their own, and "" if no team has one
	Taken
	Refused uint64
}

// Status returns the state at an instant, with at most so many teams: the ones with the most tokens in the last hour, the
// greatest first.
func (l *Ledger) Status(now time.Time, teams int) Status {
	s, of := l.taken(now, teams)
	// The line and the weights are asked without the lock: they are the caller's code, and each call that ends needs the lock.
	s.BodyBytes, s.MostBodyBytes = l.bodies.told()
	waiting := map[string]int{}
	if of.line != nil {
		line := of.line()
		st := line.Stats()
		s.Others.Waiting = st.Waiting + l.Waiting()
		for i, l := range levelsOf(line, of.minute) {
			if i == 0 || l.level > s.Level {
				s.Level, s.Reserved, s.Capacity = l.level, l.reserved, cmp.Or(l.capacity, s.Capacity)
			}
			if s.Capacity == 0 {
				s.Capacity = l.capacity
			}
			s.Forfeited += l.forfeited
			s.Hint = cmp.Or(s.Hint, hint(l.givenBack, l.forfeited))
		}
		for _, k := range line.Keys(mostTeams, watch.ByTurn) {
			waiting[k.Key] = k.Waiting
		}
	}
	for i := range s.Teams {
		t := &s.Teams[i]
		if t.Waiting, t.Weight = waiting[t.Team]+l.waitingForSeats(t.Team), 1; of.weight != nil {
			t.Weight = of.weight(t.Team)
		}
		s.Others.Waiting = max(0, s.Others.Waiting-t.Waiting)
	}
	return s
}

// waitingForSeats returns how many calls of a team wait for a seat.
func (l *Ledger) waitingForSeats(team string) int {
	l.mu.Lock()
	seats := l.seats
	l.mu.Unlock()
	if seats == nil {
		return 0
	}
	st, _ := seats.StatsOf(team)
	return st.Waiting
}

// taken returns the part of a Status that the Ledger itself has, and the subject for the rest.
func (l *Ledger) taken(now time.Time, teams int) (Status, subject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all.status("", l.at(now))
	s := Status{
		Provider: l.of.provider, Quota: l.of.quota,
		Minute: all.Minute, Hour: all.Hour, LongestWait: all.LongestWait,
		Refusals: l.refusals, Refused: all.Refused,
		Others: all,
	}
	ranked := l.rankedLocked(now)
	s.Teams, s.Others.LongestWait = ranked[:min(len(ranked), max(0, teams))], 0
	for _, t := range s.Teams {
		s.Others.Minute.take(t.Minute)
		s.Others.Hour.take(t.Hour)
		s.Others.Refused -= t.Refused
	}
	for _, t := range ranked[len(s.Teams):] {
		s.Others.LongestWait = max(s.Others.LongestWait, t.LongestWait)
	}
	return s, l.of
}

// Totals returns the usage since the start, by label.
func (l *Ledger) Totals() []Total {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.all.total
	if l.of.labels > 0 {
		rest.Team = otherTeam
	}
	totals := []Total{rest}
	for _, t := range l.labelled {
		totals[0].take(t.Taken)
		totals[0].Refused -= t.Refused
		totals = append(totals, *t)
	}
	slices.SortFunc(totals[1:], func(a, b Total) int { return cmp.Compare(a.Team, b.Team) })
	return totals
}

// rankedLocked returns all teams, the one with the most tokens first, without Waiting and Weight.
func (l *Ledger) rankedLocked(now time.Time) (teams []TeamStatus) {
	for name, a := range l.teams {
		teams = append(teams, a.status(name, l.at(now)))
	}
	slices.SortFunc(teams, func(a, b TeamStatus) int {
		return cmp.Or(cmp.Compare(b.Hour.Tokens, a.Hour.Tokens), cmp.Compare(b.Hour.Requests, a.Hour.Requests), cmp.Compare(a.Team, b.Team))
	})
	return teams
}

// hint returns advice about reservations that are given back too late. A tenth is lost with any burst below a minute.
func hint(givenBack, forfeited uint64) string {
	if over := forfeited + givenBack; over == 0 || forfeited <= over/10 {
		return ""
	}
	share := 100 * float64(forfeited) / float64(forfeited+givenBack)
	return fmt.Sprintf("%.0f %% of the tokens that calls had reserved in excess came back too late for others: a larger burst keeps them, "+
		"and so do smaller limits of the answer, such as max_tokens", share)
}

// follow gives the Ledger another subject. The counts stay.
func (l *Ledger) follow(s subject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of = s
}

// departed notes that a call has left the line.
func (l *Ledger) departed(team string, waited time.Duration, now time.Time) {
	l.note(team, now, func(a *account, at instant) {
		hour := a.hour.now(at.minute())
		hour.longest = max(hour.longest, waited)
	}, nil)
}

// ended notes the usage of a call.
func (l *Ledger) ended(team string, took Taken, now time.Time) {
	l.note(team, now, func(a *account, at instant) {
		a.minute.now(at.second()).add(took)
		a.hour.now(at.minute()).add(took)
	}, func(t *Total) { t.add(took) })
}

// refused notes that the gateway has refused a call.
func (l *Ledger) refused(team string, now time.Time) {
	l.note(team, now, func(*account, instant) {}, func(t *Total) { t.Refused++ })
}

// providerRefused notes that the provider has refused a call.
func (l *Ledger) providerRefused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals++
}

// note makes an entry in the account of a team, in the account of all, and in the totals; total is nil if they do not change.
func (l *Ledger) note(team string, now time.Time, recent func(*account, instant), total func(*Total)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at(now)
	a := l.teams[team]
	if a == nil {
		a = l.newAccountLocked()
		l.teams[team] = a
	}
	a.seen = at
	recent(a, at)
	recent(&l.all, at)
	if total == nil {
		return
	}
	total(&a.total)
	total(&l.all.total)
	if t := l.labelLocked(team); t != nil {
		total(t)
	}
}

// newAccountLocked returns an account without entries. Beyond mostTeams it reuses the one that was seen longest ago.
func (l *Ledger) newAccountLocked() *account {
	if len(l.teams) < mostTeams {
		return new(account)
	}
	oldest, found := "", (*account)(nil)
	for name, a := range l.teams {
		if found == nil || a.seen < found.seen {
			oldest, found = name, a
		}
	}
	delete(l.teams, oldest)
	*found = account{}
	return found
}

// labelLocked returns the total of a team that has a label of its own; else nil. A label is kept, because a counter
// of Prometheus must not shrink. A label must be UTF-8, and a team whose name a caller has written need not be.
func (l *Ledger) labelLocked(team string) *Total {
	team = strings.ToValidUTF8(team, "\uFFFD")
	t := l.labelled[team]
	if t == nil && team != "" && team != otherTeam && len(l.labelled) < l.of.labels {
		t = &Total{Team: team}
		l.labelled[team] = t
	}
	return t
}

// An instant is a time since the origin of a Ledger.
type instant time.Duration

func (i instant) second() int64 { return int64(i) / int64(time.Second) }
func (i instant) minute() int64 { return int64(i) / int64(time.Minute) }

func (l *Ledger) at(now time.Time) instant { return instant(max(0, now.Sub(l.origin))) }

// An account is the usage of a team, or of all.
type account struct {
	minute window // in seconds
	hour   window // in minutes
	total  Total
	seen   instant
}

func (a *account) status(team string, at instant) TeamStatus {
	minute, hour := a.minute.sum(at.second()), a.hour.sum(at.minute())
	return TeamStatus{Team: team, Minute: minute.Taken, Hour: hour.Taken, LongestWait: hour.longest, Refused: a.total.Refused}
}

// A window has the usage in each of the last sixty spans of time. The latest of them is not over.
type window struct {
	latest  int64
	entries [60]entry
}

type entry struct {
	Taken
	longest time.Duration // wait
}

// now returns the entry of a span, which is the latest or comes after it.
func (w *window) now(span int64) *entry {
	// The entries of spans that are over for more than sixty spans are emptied.
	for w.latest = max(w.latest, span-60); w.latest < span; {
		w.latest++
		w.entries[w.latest%60] = entry{}
	}
	return &w.entries[w.latest%60]
}

// sum returns the usage in the sixty spans that end with a span, and the longest wait.
func (w *window) sum(span int64) (sum entry) {
	w.now(span)
	for _, e := range w.entries {
		sum.add(e.Taken)
		sum.longest = max(sum.longest, e.longest)
	}
	return sum
}

func (t *Taken) add(o Taken) {
	t.Requests += o.Requests
	t.Tokens += o.Tokens
	t.Input += o.Input
	t.Output += o.Output
}

// take subtracts o, a part of t.
func (t *Taken) take(o Taken) {
	t.Requests -= o.Requests
	t.Tokens -= o.Tokens
	t.Input -= o.Input
	t.Output -= o.Output
}

// mostTokens bounds an entry of a call. A larger number is no number of tokens, and must not let a counter overflow.
const mostTokens = 1 << 40

// takenBy returns the entry for a call whose usage a provider has counted.
func takenBy(counted llm.Usage) Taken {
	n := func(tokens int) uint64 { return uint64(min(int64(max(0, tokens)), mostTokens)) }
	input := n(counted.Input) + n(counted.CacheRead) + n(counted.CacheWrite)
	output := n(counted.Output)
	return Taken{Requests: 1, Tokens: input + output, Input: input, Output: output}
}

// StatusGone is the status in a [Record] of a call whose caller went before the response: while the call waited, with a
// Duration of 0, or at the provider. net/http has no name for it.
const StatusGone = 499

// A Record is the record of a call that has ended. As JSON it is a line of a usage log.
type Record struct {
	Time     time.Time `json:"time"` // when the call came
	Team     string    `json:"team"`
	Model    string    `json:"model"` // as the call names it
	Estimate Used      `json:"estimate"`
	Actual   *Actual   `json:"actual"`   // nil: none was reported, and the estimate was charged
	Waited   float64   `json:"waited"`   // seconds in line
	Duration float64   `json:"duration"` // seconds from leaving the line until the end of the response
	Status   int       `json:"status"`   // for the caller: 429 or 503 if the gateway has refused the call, or StatusGone

	HeldByProvider bool `json:"held_by_provider,omitempty"` // the provider had refused the call before
}

// Used has the tokens of an estimate.
type Used struct {
	Input  int `json:"input"`
	Output int `json:"output"`
}

// Actual is the usage of a call, in tokens, as its response reports.
type Actual struct {
	Used
	CacheRead  int `json:"cache_read"`
	CacheWrite int `json:"cache_write"`
}

// record returns the record of a call that has ended.
func (c *call) record() Record {
	r := Record{
		Time: c.arrived.UTC(), Team: c.team, Model: c.model,
		Waited: c.waited.Seconds(), Status: c.status, HeldByProvider: c.retried,
	}
	if c.metered != nil {
		u := c.metered.Estimate()
		r.Estimate = Used{u.Input, u.Output}
	}
	if !c.left.IsZero() {
		r.Duration = time.Since(c.left).Seconds()
	}
	if c.reported != nil {
		u := *c.reported
		r.Actual = &Actual{Used{u.Input, u.Output}, u.CacheRead, u.CacheWrite}
	}
	return r
}

// taken returns the entry in the ledger for a call that has ended.
func (c *call) taken() Taken {
	u, _ := c.metered.Counted()
	return takenBy(u)
}
