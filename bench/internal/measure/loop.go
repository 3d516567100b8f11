package measure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A Loop records the departures of callers that wait again and again. [NewLoop] makes one.
type Loop struct {
	Began time.Time // Departures are counted from here.

	entries, used atomic.Int64
	records       []record
	refused       chan error
}

// A record is a departure whose instant is written last: 0 means not yet.
type record struct {
	entered int64
	at      atomic.Int64
}

// NewLoop makes room beforehand for so many departures, so that to record one costs next to nothing.
func NewLoop(began time.Time, room int) *Loop {
	return &Loop{
		Began:   began,
		records: make([]record, room),
		refused: make(chan error, 1), // The first error is enough; the others are dropped.
	}
}

// Run is the body of a caller, which waits and leaves until the context ends, or it is refused.
func (l *Loop) Run(ctx context.Context, wait func(context.Context) error) {
	for {
		entered := l.entries.Add(1)
		err := wait(ctx)
		at := time.Since(l.Began)
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
		if i := l.used.Add(1) - 1; i < int64(len(l.records)) {
			l.records[i].entered = entered
			l.records[i].at.Store(int64(at))
		}
	}
}

// Entries returns how often a caller has begun to wait.
func (l *Loop) Entries() int { return int(l.entries.Load()) }

// Departures returns those so far. A refusal is an error, as then fewer wait than were to, and so are
// more departures than there is room for.
func (l *Loop) Departures() ([]Departure, error) {
	select {
	case err := <-l.refused:
		return nil, fmt.Errorf("a caller was refused: %w", err)
	default:
	}
	used := int(l.used.Load())
	if used > len(l.records) {
		return nil, fmt.Errorf("%d have left, of which only %d have a record", used, len(l.records))
	}
	var all []Departure
	for i := range l.records[:used] {
		if at := l.records[i].at.Load(); at > 0 {
			all = append(all, Departure{Entered: l.records[i].entered, At: time.Duration(at)})
		}
	}
	return all, nil
}
