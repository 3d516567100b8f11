package inspect

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

const (
	quotaTeams   = 50 // teams that may be asked for
	teamsShown   = 20 // teams that a stream tells of
	quotaParts   = 8
	quotaKeptFor = 900 * time.Millisecond // shorter than the time between two details of a stream
)

// A Quota is the state of a quota that teams share through a [shaper.Shaper], for example of
// a provider's requests and tokens a minute. The function given to [OfQuota] returns it.
type Quota struct {
	Provider string      // whose quota it is, such as "openai"
	Parts    []QuotaPart // such as requests and tokens; at most eight are shown

	// Level, Reserved and Capacity are of the bucket, or of the highest of its levels, in one unit: Level of Capacity
	// is taken, and Reserved of Level by requests that have not ended.
	Level, Reserved, Capacity float64

	Teams  []QuotaTeam // the ones to be shown first
	Others QuotaTeam   // the sum of all others; its Team is ""

	LongestWait time.Duration // of the last hour
	Refused     uint64        // requests that were refused
	Refusals    uint64        // by the provider; there should be none
	Forfeited   uint64        // tokens, or units of the Shaper, that were given back too late
	Hint        string        // advice for when Forfeited grows; "" if there is none

	// Replicas says in words which of several processes lets requests leave by the quota; "": there is one.
	Replicas string
}

// A QuotaPart is a part of a quota: so much may be taken in a minute, and so much was.
type QuotaPart struct {
	Name            string  // such as "tokens"
	Used, Limit     uint64  // in the last minute, and in each
	Level, Reserved float64 // its level now, and what of it requests have reserved that have not ended: shares of what may leave at once
}

// A QuotaTeam is a team's usage of a quota.
type QuotaTeam struct {
	Team                         string
	Weight, Waiting              int
	MinuteRequests, HourRequests uint64
	MinuteTokens, HourTokens     uint64
	LongestWait                  time.Duration // of the last hour
	Refused                      uint64
}

// OfQuota is [Of] for a Shaper whose requests share a quota, which the page shows with it. The function
// status returns its state, with at most so many teams. It is called only while somebody looks, about once a
// second however many look, and outside all locks; it must be safe for concurrent use, and return soon.
func OfQuota(s *shaper.Shaper, status func(teams int) Quota) Source {
	return quotaSource{shaperSource{s}, status}
}

type quotaSource struct {
	shaperSource
	status func(teams int) Quota
}

func (s quotaSource) open() source {
	return &openShaper{shaperSource: s.shaperSource, limits: limitsTable{}, quota: &quotaOf{status: s.status}}
}

// A quotaOf asks for the state of a quota, not more often than it is shown.
type quotaOf struct {
	status func(teams int) Quota
	failed atomic.Bool // it has panicked, which is logged once

	mu     sync.Mutex
	at     time.Time // of latest; zero: there is none
	latest Quota     // its slices do not change
}

// quotaView is a [Quota] in the form of the API.
type quotaView struct {
	At           time.Time   `json:"at"`
	Provider     string      `json:"provider"`
	Parts        []partView  `json:"parts"`
	Scarcest     *string     `json:"scarcest"` // the name of the part of which the greatest share was taken; nil: nothing was
	Level        float64     `json:"level"`    // these two are shares of the bucket's capacity
	Reserved     float64     `json:"reserved"`
	Teams        []quotaTeam `json:"teams"`
	Others       quotaTeam   `json:"others"`
	LongestWaitS float64     `json:"longest_wait_s"`
	Refused      uint64      `json:"refused"`
	Refusals     uint64      `json:"provider_refusals"`
	Forfeited    uint64      `json:"forfeited"`
	Hint         *string     `json:"hint"`
	Replicas     *string     `json:"replicas"`
}

// A partView is a [QuotaPart] in the form of the API.
type partView struct {
	Name  string  `json:"name"`
	Used  uint64  `json:"used"`
	Limit uint64  `json:"limit"`
	Share float64 `json:"share"` // may be above 1

	Level    float64 `json:"level"` // these two are shares of what may leave at once
	Reserved float64 `json:"reserved"`
}

// A quotaTeam is a [QuotaTeam] in the form of the API.
type quotaTeam struct {
	Team           string  `json:"team"` // at most maxTurnKey bytes of it
	ID             string  `json:"id"`
	Weight         int     `json:"weight"`
	Waiting        int     `json:"waiting"`
	MinuteRequests uint64  `json:"minute_requests"`
	MinuteTokens   uint64  `json:"minute_tokens"`
	HourRequests   uint64  `json:"hour_requests"`
	HourTokens     uint64  `json:"hour_tokens"`
	LongestWaitS   float64 `json:"longest_wait_s"`
	Refused        uint64  `json:"refused"`
}

// look returns a state that is at most a second old, and its instant.
func (q *quotaOf) look() (Quota, time.Time) {
	now := time.Now()
	q.mu.Lock()
	latest, at := q.latest, q.at
	q.mu.Unlock()
	if !at.IsZero() && now.Sub(at) < quotaKeptFor {
		return latest, at
	}
	latest = q.status(quotaTeams)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.latest, q.at = latest, now
	return latest, now
}

// newQuotaView returns a state with at most so many teams.
func newQuotaView(from Quota, at time.Time, teams int) *quotaView {
	listed := min(len(from.Teams), teams)
	for _, team := range from.Teams[listed:] {
		from.Others.add(team)
	}
	room := from.Capacity
	if room <= 0 {
		room = from.Level // Without a burst the bucket is full as long as it has a level.
	}
	v := &quotaView{
		At: at.UTC(), Provider: *keyText(from.Provider), Parts: []partView{}, Teams: []quotaTeam{}, Others: newQuotaTeam(from.Others),
		Level: shareOf(from.Level, room), Reserved: shareOf(from.Reserved, room),
		LongestWaitS: from.LongestWait.Seconds(), Refused: from.Refused, Refusals: from.Refusals, Forfeited: from.Forfeited,
	}
	most := 0.0
	for _, part := range from.Parts[:min(len(from.Parts), quotaParts)] {
		share := shareOf(float64(part.Used), float64(part.Limit))
		v.Parts = append(v.Parts, partView{*keyText(part.Name), part.Used, part.Limit, share, shareOf(part.Level, 1), shareOf(part.Reserved, 1)})
		if share > most {
			most, v.Scarcest = share, keyText(part.Name)
		}
	}
	for _, team := range from.Teams[:listed] {
		v.Teams = append(v.Teams, newQuotaTeam(team))
	}
	v.Hint, v.Replicas = wordsOrNone(from.Hint), wordsOrNone(from.Replicas)
	return v
}

// wordsOrNone returns a text as JSON can hold it; nil for none.
func wordsOrNone(text string) *string {
	if text == "" {
		return nil
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return &text
}

// add adds the usage of another team.
func (t *QuotaTeam) add(o QuotaTeam) {
	t.Waiting += o.Waiting
	t.MinuteRequests += o.MinuteRequests
	t.HourRequests += o.HourRequests
	t.MinuteTokens += o.MinuteTokens
	t.HourTokens += o.HourTokens
	t.LongestWait = max(t.LongestWait, o.LongestWait)
	t.Refused += o.Refused
}

func newQuotaTeam(from QuotaTeam) quotaTeam {
	return quotaTeam{
		Team: *keyText(from.Team), ID: idOf(cutKey(from.Team)), Weight: from.Weight, Waiting: from.Waiting,
		MinuteRequests: from.MinuteRequests, MinuteTokens: from.MinuteTokens, HourRequests: from.HourRequests, HourTokens: from.HourTokens,
		LongestWaitS: from.LongestWait.Seconds(), Refused: from.Refused,
	}
}

// shareOf returns a part of a whole, from 0 on; 0 if there is no whole.
func shareOf(part, whole float64) float64 {
	share := number(part / whole)
	if math.IsNaN(part) || whole <= 0 {
		return 0
	}
	return max(share, 0)
}

// quota returns the state of the quota of a source; nil if it has none. That calls a function of the
// program: whatever it does must not end the process.
func (w *watched) quota(teams int) (view *quotaView, err error) {
	of, ok := w.source.(*openShaper)
	if !ok || of.quota == nil {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			view, err = nil, &failure{Status: http.StatusInternalServerError, Message: "the function of OfQuota panicked"}
			if !of.quota.failed.Swap(true) { // A stream asks every second.
				w.logger.Error("inspect: the function of OfQuota panicked", "source", w.name, "panic", fmt.Sprint(p))
			}
		}
	}()
	latest, at := of.quota.look()
	return newQuotaView(latest, at, teams), nil
}

func (i *Inspector) serveQuota(w http.ResponseWriter, r *http.Request, q query) error {
	teams := teamsShown
	if err := q.whole("teams", &teams, 0, quotaTeams); err != nil {
		return err
	}
	of, _, err := i.bucketNamed(r.Context(), q.source, q.key)
	if err != nil {
		return err
	}
	view, err := of.quota(teams)
	switch {
	case err != nil:
		return err
	case view == nil:
		return unknown("source", q.source, "whose requests share no quota")
	}
	writeJSON(w, http.StatusOK, view)
	return nil
}
