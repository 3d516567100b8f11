package inspect

import (
	"cmp"
	"math"
	"strings"
	"time"
)

// A ranking returns the value of a row by which rows are sorted; rows with the same value
// are sorted by source and key. The value stays as it is while nothing happens to the
// bucket, or going by time alone would move buckets from one page to another. That is
// why waits are instants, and why a level, which leaks, is that of the instant epoch: of
// when the first page was made.
type ranking func(r *row, epoch time.Time) float64

var rankings = map[string]ranking{
	"key":         func(*row, time.Time) float64 { return 0 },
	"waiting":     func(r *row, _ time.Time) float64 { return float64(r.waiting) },
	"level":       func(r *row, epoch time.Time) float64 { return r.levelAt(epoch) },
	"fill":        (*row).fillAt,
	"idle":        func(r *row, _ time.Time) float64 { return -orderOf(r.lastCall) },
	"refused":     func(r *row, _ time.Time) float64 { return float64(r.refused) },
	"departed":    func(r *row, _ time.Time) float64 { return float64(r.departed) },
	"abandoned":   func(r *row, _ time.Time) float64 { return float64(r.abandoned) },
	"oldest_wait": func(r *row, _ time.Time) float64 { return r.waitOrder() },
	"last_call":   func(r *row, _ time.Time) float64 { return orderOf(r.lastCall) },
}

// orderOf returns an instant as a number. The zero time comes before all others.
func orderOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano())
}

// levelAt returns the level that the bucket had at an earlier instant if it has only
// leaked since. It is rounded, so that it comes out the same from any later instant.
func (r *row) levelAt(epoch time.Time) float64 {
	level := r.level
	if level > 0 && r.limits.rate != nil {
		level += *r.limits.rate * r.at.Sub(epoch).Seconds()
	}
	return math.Round(level*1e6) / 1e6
}

func (r *row) fillAt(epoch time.Time) float64 {
	if r.limits.rate == nil {
		return 0
	}
	return math.Round(min((r.levelAt(epoch)+float64(r.waiting))/r.limits.capacity, 1)*1e6) / 1e6
}

// waitOrder returns a number that is larger the longer the head of the line has waited:
// from when, in whole milliseconds, as the instant of the row is not exactly that of its
// numbers. Without a line it is the smallest.
func (r *row) waitOrder() float64 {
	if r.waiting == 0 {
		return -math.MaxFloat64
	}
	return -float64(r.at.Add(-r.oldestWait).Round(time.Millisecond).UnixMilli())
}

// A position is the place of a row in an order.
type position struct {
	value       float64
	source, key string
}

// compare returns which of two positions comes first. Those of the same value are sorted
// by source and key, upwards; in the order by key alone, that may be downwards.
func (l *listing) compare(p, q position) int {
	byKey := cmp.Or(strings.Compare(p.source, q.source), strings.Compare(p.key, q.key))
	if l.sort == "-key" {
		return -byKey
	}
	by := cmp.Compare(p.value, q.value)
	if l.descending {
		by = -by
	}
	return cmp.Or(by, byKey)
}
