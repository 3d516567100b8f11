package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// inDetail is how many waiters the detail of a bucket shows.
const inDetail = 10

// A detail is all that is told of one bucket.
type detail struct {
	Bucket        bucket        `json:"bucket"`
	Meters        []meterView   `json:"meters"`
	Adapt         *adaptView    `json:"adapt"`
	InWords       []string      `json:"in_words"`
	Rule          *rule         `json:"rule"`
	NextDeparture *time.Time    `json:"next_departure"`
	Line          line          `json:"line"`
	Refusals      []refusalView `json:"refusals"`
	Waits         waits         `json:"waits"`
	Control       bool          `json:"control"`
}

// A meterView is a further level of a bucket in the form of the API.
type meterView struct {
	Name      string   `json:"name"`
	Rate      *float64 `json:"rate"` // nil: none
	Burst     int      `json:"burst"`
	Returns   bool     `json:"returns"`
	Level     float64  `json:"level"`
	Fill      float64  `json:"fill"` // the level, as a share of Burst
	Reserved  int      `json:"reserved"`
	GivenBack uint64   `json:"given_back"`
	Charged   uint64   `json:"charged"`
	Forfeited uint64   `json:"forfeited"`
	Missed    float64  `json:"missed"`
}

// viewMeters returns the further levels of a bucket.
func viewMeters(ms []shaper.MeterStats) []meterView {
	views := []meterView{}
	for _, m := range ms {
		views = append(views, meterView{
			Name: *keyText(m.Name), Rate: finite(m.Rate), Burst: max(m.Burst, 1), Returns: m.Returns,
			Level: round(number(m.Level)), Fill: round(number(m.Level) / float64(max(m.Burst, 1))), Reserved: m.Reserved,
			GivenBack: m.GivenBack, Charged: m.Charged, Forfeited: m.Forfeited, Missed: number(m.Missed),
		})
	}
	return views
}

// An adaptView tells how the rate of a bucket adapts, in the form of the API.
type adaptView struct {
	Rate         float64    `json:"rate"`
	Min          float64    `json:"min"`
	Max          *float64   `json:"max"` // nil: none
	Decreases    uint64     `json:"decreases"`
	Refused      uint64     `json:"refused"`
	Failed       uint64     `json:"failed"`
	Slow         uint64     `json:"slow"`
	LastDecrease *time.Time `json:"last_decrease"`
	Reason       string     `json:"reason"`
}

func viewAdaptation(st adapt.Stats) *adaptView {
	v := &adaptView{
		Rate: float64(st.Rate), Min: float64(st.Min), Max: finite(st.Max),
		Decreases: st.Decreases, Refused: st.Refused, Failed: st.Failed, Slow: st.Slow, Reason: st.Reason,
	}
	if st.Decreases > 0 {
		at := st.LastDecrease.UTC()
		v.LastDecrease = &at
	}
	return v
}

// A refusalView is a refusal in the form of the API.
type refusalView struct {
	At          time.Time `json:"at"`
	Reason      string    `json:"reason"`
	RetryAfterS float64   `json:"retry_after_s"`
	Cost        int       `json:"cost"`
	Key         *string   `json:"key,omitempty"` // of a Shaper WithFairQueue, see turnView
}

func (i *Inspector) serveBucket(w http.ResponseWriter, r *http.Request, q query) error {
	d, err := i.detail(r.Context(), q.source, q.key)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// inWords returns what the limits of a row mean, and the cap of all processes beside them.
func (r *row) inWords() []string {
	l, ofAll := r.limits.limits, 0
	if r.rare != nil && r.rare.shared != nil {
		ofAll = r.rare.shared.InFlight
	}
	if ofAll == 0 {
		return limitwords.Of(l)
	}
	const together = "in all processes together"
	if own := l.InFlight; own > 0 && own < ofAll {
		return slices.Insert(limitwords.Of(l), 1, fmt.Sprintf("at most %d %s", ofAll, together))
	}
	l.InFlight = ofAll
	words := limitwords.Of(l)
	words[0] += ", " + together // The cap is said first.
	return words
}

// detail tells of one bucket, which must be in use.
func (i *Inspector) detail(ctx context.Context, source, key string) (*detail, error) {
	w, ref, err := i.bucketNamed(ctx, source, key)
	if err != nil {
		return nil, err
	}
	r, ok := w.look(key, ref)
	if !ok {
		return nil, noBucket(source, key)
	}
	d := &detail{
		Bucket:  i.withOverride(r.view(w, r.instant())),
		Meters:  viewMeters(ref.meters()),
		Adapt:   ref.adaptation(),
		InWords: r.inWords(),
		Rule:    i.ruleOf(ref),
		Line:    w.lineOf(r.instant(), int(r.waiting), ref.line(inDetail)),
		Waits:   newWaits(of(w), w.source.histograms().Wait),
		Control: i.mayControl(),
	}
	d.NextDeparture = d.Line.next()
	d.Refusals = w.viewRefusals(ref)
	return d, nil
}

// of names the owner of a source's histograms: a Group counts them for all keys together.
func of(w *watched) string {
	if w.source.kind() == "shaper" {
		return "bucket"
	}
	return "source"
}

// viewRefusals returns the latest refusals of a bucket, the latest first.
func (w *watched) viewRefusals(ref bucketRef) []refusalView {
	views := []refusalView{}
	for _, r := range slices.Backward(ref.refusals()) {
		v := refusalView{At: r.At.UTC(), Reason: reasonName(r.Reason), RetryAfterS: r.RetryAfter.Seconds(), Cost: r.Cost}
		if key, ok := r.Key.(string); ok && w.turns != nil {
			v.Key = keyText(key)
		}
		views = append(views, v)
	}
	return views
}

// The reasons of refusals, as they are called in a bucket.
const (
	queueFull   = "queue_full"
	tooLate     = "too_late"
	tooCostly   = "too_costly"
	closed      = "closed"
	unavailable = "unavailable"
)

// reasonName returns the name of the reason of a refusal; "" if the error is no refusal.
func reasonName(reason error) string {
	switch word := shaper.Reason(reason); word {
	case "blocked", "no-line", "queue-full":
		return queueFull
	case "too-late", "too-costly", "closed", "unavailable":
		return strings.ReplaceAll(word, "-", "_")
	}
	return ""
}

func noBucket(source, key string) *failure {
	return unknown("key", key, "which has no bucket in %q now", source)
}

// bucketNamed returns a source and the bucket of a key in it.
func (c *core) bucketNamed(ctx context.Context, name, key string) (*watched, bucketRef, error) {
	w, err := c.sourceNamed(name)
	if err != nil {
		return nil, nil, err
	}
	ref, err := w.bucket(ctx, key)
	return w, ref, err
}

// bucket returns the bucket of a key.
func (w *watched) bucket(ctx context.Context, key string) (bucketRef, error) {
	ref, ok, err := w.find(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, noBucket(w.name, key)
	}
	return ref, nil
}

// ruleOf asks where the limits of a bucket come from. That calls a function of the
// program: whatever it does must not end the process.
func (i *Inspector) ruleOf(ref bucketRef) (found *rule) {
	defer func() {
		if p := recover(); p != nil {
			i.logger.Error("inspect: the function of WithExplain panicked", "panic", fmt.Sprint(p))
			found = nil
		}
	}()
	return ref.explain()
}

// maxLine is how many waiters of a line may be asked for.
const maxLine = 1000

// A line is the beginning of the line of a bucket.
type line struct {
	At      time.Time    `json:"at"`
	Waiting int          `json:"waiting"`
	Line    []waiterView `json:"line"`
}

// A waiterView is a request in line in the form of the API. Leaves is predicted.
type waiterView struct {
	Position  int       `json:"position"` // from 1
	Cost      int       `json:"cost"`
	Since     time.Time `json:"since"`
	WaitedS   float64   `json:"waited_s"`
	Leaves    time.Time `json:"leaves"`
	LeavesInS float64   `json:"leaves_in_s"`
	Key       *string   `json:"key,omitempty"` // of a Shaper WithFairQueue, see turnView
}

// lineOf is newLine for the line of a bucket of the source.
func (w *watched) lineOf(at time.Time, waiting int, waiters []watch.Waiter) line {
	l := newLine(at, waiting, waiters)
	if w.turns != nil {
		for k := range l.Line {
			l.Line[k].Key = keyText(waiters[k].Key)
		}
	}
	return l
}

func newLine(at time.Time, waiting int, waiters []watch.Waiter) line {
	l := line{At: at.UTC(), Waiting: max(waiting, len(waiters)), Line: []waiterView{}}
	for k, w := range waiters {
		l.Line = append(l.Line, waiterView{
			Position: k + 1, Cost: w.Cost,
			Since: w.Since.UTC(), WaitedS: max(at.Sub(w.Since), 0).Seconds(),
			Leaves: w.Leaves.UTC(), LeavesInS: max(w.Leaves.Sub(at), 0).Seconds(),
		})
	}
	return l
}

// next returns when the head of the line is predicted to leave; nil if there is no line.
func (l line) next() *time.Time {
	if len(l.Line) == 0 {
		return nil
	}
	return &l.Line[0].Leaves
}

func (i *Inspector) serveLine(w http.ResponseWriter, r *http.Request, q query) error {
	most := 100
	if err := q.whole("max", &most, 0, maxLine); err != nil {
		return err
	}
	of, ref, err := i.bucketNamed(r.Context(), q.source, q.key)
	if err != nil {
		return err
	}
	st, ok := ref.stats()
	if !ok {
		return noBucket(q.source, q.key)
	}
	writeJSON(w, http.StatusOK, of.lineOf(time.Now(), st.Waiting, ref.line(most)))
	return nil
}

// maxTop is how many keys a Group remembers with their counts.
const maxTop = 1024

// A topCount is a key of a Group that met its limit often.
type topCount struct {
	Source string `json:"source"`
	Key    string `json:"key"`
	ID     string `json:"id"`
	Count  uint64 `json:"count"`
	Error  uint64 `json:"error"`
}

func (i *Inspector) serveTop(w http.ResponseWriter, _ *http.Request, q query) error {
	n := 20
	if err := q.whole("n", &n, 1, maxTop); err != nil {
		return err
	}
	sources, err := i.sourcesNamed(q.text("source"))
	if err != nil {
		return err
	}
	top := []topCount{}
	for _, source := range sources {
		for _, c := range source.source.top(n) {
			top = append(top, topCount{source.name, strings.ToValidUTF8(c.key, "\uFFFD"), idOf(c.key), c.count, c.error})
		}
	}
	slices.SortStableFunc(top, func(a, b topCount) int { return cmp.Compare(b.Count, a.Count) })
	writeJSON(w, http.StatusOK, struct {
		Top []topCount `json:"top"`
	}{top[:min(n, len(top))]})
	return nil
}
