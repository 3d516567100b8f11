package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// inDetail is how many of a line are told with the detail of its bucket.
const inDetail = 10

// A detail is all that is told of one bucket.
type detail struct {
	Bucket        bucket        `json:"bucket"`
	InWords       []string      `json:"in_words"`
	Rule          *rule         `json:"rule"`
	NextDeparture *time.Time    `json:"next_departure"`
	Line          line          `json:"line"`
	Refusals      []refusalView `json:"refusals"`
	Waits         waits         `json:"waits"`
	Control       bool          `json:"control"`
}

// A refusalView is a refusal in the form of the API.
type refusalView struct {
	At          time.Time `json:"at"`
	Reason      string    `json:"reason"`
	RetryAfterS float64   `json:"retry_after_s"`
	Cost        int       `json:"cost"`
}

func (i *Inspector) serveBucket(w http.ResponseWriter, r *http.Request, q query) error {
	d, err := i.detail(r.Context(), q.source, q.key)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
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
		Bucket:  i.withOverride(r.view(r.at)),
		InWords: limitwords.Of(r.limits.limits),
		Rule:    i.ruleOf(ref),
		Line:    newLine(r.at, r.waiting, ref.line(inDetail)),
		Waits:   newWaits(of(w), w.source.histograms().Wait),
		Control: i.mayControl(),
	}
	d.NextDeparture = d.Line.next()
	d.Refusals = viewRefusals(ref)
	return d, nil
}

// of says whose histograms those of a source are: a Group counts them for all keys
// together.
func of(w *watched) string {
	if w.source.kind() == "shaper" {
		return "bucket"
	}
	return "source"
}

// viewRefusals returns the latest refusals of a bucket, the latest first.
func viewRefusals(ref bucketRef) []refusalView {
	views := []refusalView{}
	for _, r := range slices.Backward(ref.refusals()) {
		views = append(views, refusalView{r.At.UTC(), reasonName(r.Reason), r.RetryAfter.Seconds(), r.Cost})
	}
	return views
}

// reasonName returns the name that a reason has in a bucket.
func reasonName(reason error) string {
	switch {
	case errors.Is(reason, shaper.ErrQueueFull):
		return "queue_full"
	case errors.Is(reason, shaper.ErrTooLate):
		return "too_late"
	case errors.Is(reason, shaper.ErrTooCostly):
		return "too_costly"
	case errors.Is(reason, shaper.ErrUnavailable):
		return "unavailable"
	}
	return "closed"
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
