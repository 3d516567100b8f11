package inspect

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

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
	n, err := q.whole("n", 1, maxTop, 20)
	if err != nil {
		return err
	}
	sources := i.all()
	if name := q.text("source"); name != "" {
		source, err := i.sourceNamed(name)
		if err != nil {
			return err
		}
		sources = []*watched{source}
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
