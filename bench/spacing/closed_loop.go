package spacing

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
)

// A closedLoop records the departures of callers that wait again and again.
type closedLoop struct {
	began   time.Time
	entries atomic.Int64
	records records
	refused chan error
}

func newClosedLoop(in input) *closedLoop {
	return &closedLoop{
		began:   time.Now(),
		records: newRecords(in),
		refused: make(chan error, 1), // The first error is enough; the others are dropped.
	}
}

// run waits and leaves until the context ends.
func (l *closedLoop) run(ctx context.Context, wait rivals.Wait) {
	for {
		entered := l.entries.Add(1)
		err := wait(ctx)
		at := time.Since(l.began)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			select {
			case l.refused <- err:
			default:
			}
			return
		}
		l.records.add(entered, at)
	}
}

// departures returns those so far. A refusal is an error, as then fewer wait than
// were to.
func (l *closedLoop) departures() ([]measure.Departure, error) {
	select {
	case err := <-l.refused:
		return nil, fmt.Errorf("a caller was refused: %w", err)
	default:
		return l.records.departures()
	}
}

// slots records when slots were handed out. The zero value has no room for any.
type slots struct {
	began time.Time
	records
}

func (s *slots) record(at time.Time) { s.add(0, at.Sub(s.began)) }

// records are departures, for which room is made beforehand. They are safe for
// concurrent use.
type records struct {
	used atomic.Int64
	all  []record
}

// A record is a departure whose instant is written last: 0 means not yet.
type record struct {
	entered int64
	at      atomic.Int64
}

// newRecords makes room for forty times as many as may leave in the time. x/time
// lets several times the rate leave where thousands contend for it, as it sets
// its clock back when a caller has lost the processor between reading the time
// and locking. More departures than there is room for are an error.
func newRecords(in input) records {
	return records{all: make([]record, 40*int(in.Rate*(in.Warm+in.Window).Seconds())+4096)}
}

func (r *records) add(entered int64, at time.Duration) {
	if i := r.used.Add(1) - 1; i < int64(len(r.all)) {
		r.all[i].entered = entered
		r.all[i].at.Store(int64(at))
	}
}

func (r *records) departures() ([]measure.Departure, error) {
	used := int(r.used.Load())
	if used > len(r.all) {
		return nil, fmt.Errorf("%d have left, of which only %d have a record", used, len(r.all))
	}
	var all []measure.Departure
	for i := range r.all[:used] {
		if at := r.all[i].at.Load(); at > 0 {
			all = append(all, measure.Departure{Entered: r.all[i].entered, At: time.Duration(at)})
		}
	}
	return all, nil
}
