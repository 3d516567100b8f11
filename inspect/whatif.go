package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// whatIfWindow is the age up to which arrivals count.
const whatIfWindow = time.Minute

// whatIf tells how the latest arrivals of a bucket have fared, and how they would have fared under
// other limits.
type whatIf struct {
	At       time.Time `json:"at"`
	Limits   string    `json:"limits"`
	InWords  []string  `json:"in_words"`
	Since    time.Time `json:"since"` // arrivals from then on count
	SpanS    float64   `json:"span_s"`
	Arrivals int       `json:"arrivals"`
	Complete bool      `json:"complete"` // these are all arrivals of the last minute
	Now      outcome   `json:"now"`
	Then     outcome   `json:"then"`
	Notes    []string  `json:"notes"`
}

// An outcome counts how the arrivals fared. Each of them counts in one of departed, refused,
// abandoned and waiting; one that was refused counts in one of the reasons too.
type outcome struct {
	Departed    int `json:"departed"`
	Refused     int `json:"refused"`
	QueueFull   int `json:"queue_full"`
	TooLate     int `json:"too_late"`
	TooCostly   int `json:"too_costly"`
	Closed      int `json:"closed"`
	Unavailable int `json:"unavailable"`
	Abandoned   int `json:"abandoned"`
	Waiting     int `json:"waiting"`

	// Of the departed; nil if there are none.
	WaitP50 *float64 `json:"wait_p50_s"`
	WaitP95 *float64 `json:"wait_p95_s"`
	WaitMax *float64 `json:"wait_max_s"`
}

// serveWhatIf replays the latest arrivals of a bucket under other limits.
func (i *Inspector) serveWhatIf(w http.ResponseWriter, r *http.Request, q query) error {
	for _, name := range []string{"source", "limits"} {
		if q.text(name) == "" {
			return missing(name)
		}
	}
	l, err := parseLimits(q.text("limits"))
	if err != nil {
		return err
	}
	of, ref, err := i.bucketOf(r.Context(), q.values)
	if err != nil {
		return err
	}
	if err := keeps(of.key); err != nil {
		return err
	}
	rec, err := i.recordings.of(of, ref)
	if err != nil {
		return err
	}
	st, _ := ref.stats()
	answer, err := i.recordings.replay(r.Context(), rec, l, st)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// newWhatIf replays the arrivals that a recording holds at the instant now.
func newWhatIf(rec *recorded, arrivals []shaper.Arrival, now time.Time, l shaper.Limits, st shaper.Stats) whatIf {
	start, base := rec.start, rec.since
	full := len(arrivals) >= maxArrivals
	if full {
		start, base = replay.Start{}, arrivals[0].At
	}
	answer := whatIf{At: now.UTC(), Limits: l.String(), InWords: limitwords.Of(l), Notes: []string{}}
	since := base
	if from := now.Add(-whatIfWindow); !from.Before(base) {
		since, answer.Complete = from, true
	}
	answer.Since, answer.SpanS = since.UTC(), now.Sub(since).Seconds()

	var requests []replay.Request
	var replayed []met // the fate of each request
	really, then := tally{counts: map[string]int{}}, tally{counts: map[string]int{}}
	failed, blocked := 0, st.BlockedUntil.After(now)
	for _, a := range arrivals {
		m := metBy(a)
		blocked = blocked || errors.Is(a.Err, shaper.ErrBlocked)
		counts := !a.At.Before(since)
		switch {
		case m.fate == "":
			if counts {
				failed++
			}
			continue
		case m.isCut() && a.Waited == 0:
			if counts { // It is refused, whatever the limits are.
				really.add(m)
				then.add(m)
			}
			continue
		case counts:
			really.add(m)
		}
		requests = append(requests, requestOf(a, m, base))
		replayed = append(replayed, m)
	}
	for k, fate := range replay.Run(l, start, requests, now.Sub(base)) {
		if requests[k].At >= since.Sub(base) {
			then.add(replayed[k].insteadOf(fate))
		}
	}
	answer.Now, answer.Then = really.outcome(), then.outcome()
	for _, n := range really.counts {
		answer.Arrivals += n
	}
	answer.note(full, "only the latest %d arrivals are kept; they are replayed from an empty bucket on", maxArrivals)
	answer.note(rec.longer && !full, "only the first %d requests in line when the recording began are known", maxArrivals)
	answer.note(failed > 0, "left out are calls whose limits could not be had: %d", failed)
	answer.note(l.InFlight > 0 || st.Limits.InFlight > 0,
		"the replay has no cap on requests in flight, because nobody knows when a request would have ended that left at another instant")
	answer.note(rec.settles, "costs are settled when requests end; the replay keeps their estimates, so it ignores all amounts that are given back or charged")
	answer.note(st.HeldUntil.After(now), "the line is held; the replay holds no line")
	answer.note(blocked, "newcomers are blocked for a time after a refusal; the replay blocks nobody")
	answer.note(st.Bucket.State != "", "the bucket is shared; the replay knows only the requests of this process, and gives them the whole rate")
	if rec.fair {
		then := &answer.Then
		then.WaitP50, then.WaitP95, then.WaitMax = nil, nil, nil
	}
	answer.note(rec.fair, "the keys of this shaper take turns, and the replay has one line: it can't know how long requests would have waited, and its counts are right for requests of one cost without deadlines")
	answer.note(st.DryRun, "the bucket is in dry run: now counts as if its limits were enforced")
	return answer
}

// The fates of arrivals that are not refused. The fate of one that is refused is the name of the reason.
const (
	inLine   = "waiting"
	departed = "departed"
	gaveUp   = "abandoned"
)

// fateOf has the names of the fates in a replay.
var fateOf = map[replay.Result]string{replay.Waiting: inLine, replay.Departed: departed, replay.Abandoned: gaveUp,
	replay.QueueFull: queueFull, replay.TooLate: tooLate, replay.TooCostly: tooCostly}

// met is the fate of an arrival.
type met struct {
	fate   string // "": it never came to a bucket, as its limits could not be had
	waited time.Duration
}

// metBy returns the fate of an arrival.
func metBy(a shaper.Arrival) met {
	fate := reasonName(a.Err)
	switch {
	case !a.Done:
		fate = inLine
	case a.Err == nil:
		fate = departed
	case fate == "" && (a.Waited > 0 || errors.Is(a.Err, context.Canceled) || errors.Is(a.Err, context.DeadlineExceeded)):
		fate = gaveUp
	}
	return met{fate, a.Waited}
}

// isCut reports whether the arrival was refused whatever the limits: the bucket was closed, or the
// shared bucket could not be asked.
func (m met) isCut() bool { return m.fate == closed || m.fate == unavailable }

// insteadOf returns the fate under other limits of an arrival that has met m, from its fate in the
// replay. A wait that was cut short is replayed as one that was given up.
func (m met) insteadOf(fate replay.Fate) met {
	if fate.Result == replay.Abandoned && m.isCut() {
		return m
	}
	return met{fateOf[fate.Result], fate.Waited}
}

// requestOf returns an arrival for the replay, whose instants count from base. A caller
// that gave up after some time does so in the replay, if it still waits by then. One that
// was refused, or that left, is taken to wait to the end.
func requestOf(a shaper.Arrival, m met, base time.Time) replay.Request {
	r := replay.Request{At: max(0, a.At.Sub(base)), Cost: a.Cost, Allow: a.Allow, Deadline: replay.Never, Patience: replay.Never}
	if !a.Deadline.IsZero() {
		r.Deadline = a.Deadline.Sub(base)
	}
	if m.fate == gaveUp || m.isCut() {
		r.Patience = m.waited
	}
	return r
}

func (a *whatIf) note(applies bool, format string, args ...any) {
	if applies {
		a.Notes = append(a.Notes, fmt.Sprintf(format, args...))
	}
}

// A tally counts the fates of arrivals.
type tally struct {
	counts map[string]int  // by fate
	waited []time.Duration // by those that departed
}

func (t *tally) add(m met) {
	t.counts[m.fate]++
	if m.fate == departed {
		t.waited = append(t.waited, m.waited)
	}
}

// outcome returns the counts, with the waits.
func (t *tally) outcome() outcome {
	slices.Sort(t.waited)
	n := t.counts
	return outcome{
		Departed: n[departed], Abandoned: n[gaveUp], Waiting: n[inLine],
		Refused:   n[queueFull] + n[tooLate] + n[tooCostly] + n[closed] + n[unavailable],
		QueueFull: n[queueFull], TooLate: n[tooLate], TooCostly: n[tooCostly], Closed: n[closed], Unavailable: n[unavailable],
		WaitP50: t.quantile(0.5), WaitP95: t.quantile(0.95), WaitMax: t.quantile(1),
	}
}

// quantile returns the shortest wait that a share q of the departed did not exceed, in
// seconds.
func (t *tally) quantile(q float64) *float64 {
	if len(t.waited) == 0 {
		return nil
	}
	rank := int(math.Ceil(q * float64(len(t.waited))))
	wait := t.waited[max(rank, 1)-1].Seconds()
	return &wait
}
