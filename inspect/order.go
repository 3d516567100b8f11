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
// why waits are instants, and why a level, which leaks, is the one of the first page.
type ranking func(l *listing, r *row) float64

var rankings = map[string]ranking{
	"key":         func(*listing, *row) float64 { return 0 },
	"waiting":     func(_ *listing, r *row) float64 { return float64(r.waiting) },
	"level":       func(l *listing, r *row) float64 { return round(l.levelThen(r)) },
	"fill":        func(l *listing, r *row) float64 { return round(r.fillOf(l.levelThen(r))) },
	"idle":        func(_ *listing, r *row) float64 { return -orderOf(r.lastCall) },
	"refused":     func(_ *listing, r *row) float64 { return float64(r.refused) },
	"departed":    func(_ *listing, r *row) float64 { return float64(r.departed) },
	"abandoned":   func(_ *listing, r *row) float64 { return float64(r.abandoned) },
	"oldest_wait": func(_ *listing, r *row) float64 { return r.waitOrder() },
	"last_call":   func(_ *listing, r *row) float64 { return orderOf(r.lastCall) },
}

// orderOf returns an instant as a number. The zero time comes before all others.
func orderOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano())
}

// levelThen returns the level that the first page has shown of a bucket that has only leaked
// since: on that page itself, the one that is shown.
func (l *listing) levelThen(r *row) float64 {
	level := r.levelAt(l.at)
	if level > 0 && r.limits.rate != nil {
		level += *r.limits.rate * max(l.at.Sub(l.epoch), 0).Seconds()
	}
	return level
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
