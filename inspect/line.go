package inspect

import (
	"net/http"
	"time"

	"example.com/leakybucket/shaper"
)

// maxLine is how many of a line may be asked for.
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
}

func newLine(at time.Time, waiting int, waiters []shaper.Waiter) line {
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
	most, err := q.whole("max", 0, maxLine, 100)
	if err != nil {
		return err
	}
	_, ref, err := i.bucketNamed(r.Context(), q.source, q.key)
	if err != nil {
		return err
	}
	st, ok := ref.stats()
	if !ok {
		return noBucket(q.source, q.key)
	}
	writeJSON(w, http.StatusOK, newLine(time.Now(), st.Waiting, ref.line(most)))
	return nil
}
