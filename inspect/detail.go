package inspect

import (
	"fmt"
	"net/http"
	"time"

	"example.com/leakybucket/internal/limitwords"
)

// A detail is all that is told of one bucket.
type detail struct {
	Bucket        bucket     `json:"bucket"`
	InWords       []string   `json:"in_words"`
	Rule          *rule      `json:"rule"`
	NextDeparture *time.Time `json:"next_departure"`
	Control       bool       `json:"control"`
}

func (i *Inspector) serveBucket(w http.ResponseWriter, _ *http.Request, q query) error {
	d, err := i.detail(q.source, q.key)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// detail tells of one bucket, which must be in use.
func (i *Inspector) detail(source, key string) (*detail, error) {
	w, ref, err := i.bucketNamed(source, key)
	if err != nil {
		return nil, err
	}
	st, ok := ref.stats()
	if !ok {
		return nil, unknown("key", key, "which has no bucket in %q now", source)
	}
	found := w.row(key, st)
	return &detail{
		Bucket:  found.view(),
		InWords: limitwords.Of(st.Limits),
		Rule:    i.ruleOf(ref),
		Control: i.mayControl(),
	}, nil
}

// bucketNamed returns a source and the bucket of a key in it.
func (i *Inspector) bucketNamed(name, key string) (*watched, bucketRef, error) {
	w, err := i.sourceNamed(name)
	if err != nil {
		return nil, nil, err
	}
	ref, ok := w.source.find(key)
	if !ok {
		return nil, nil, unknown("key", key, "which has no bucket in %q now", name)
	}
	return w, ref, nil
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
