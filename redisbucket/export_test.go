package redisbucket

import (
	"context"
	"fmt"

	"example.com/leakybucket/shaper/shared"
)

// Encode returns the state on a server for a level, or for one that could only come from damage.
func Encode(l shared.BucketLevel) string {
	if r := l.Rate; r.Parts < 1 || r.Part < 0 || r.Part >= r.Parts || r.Micros < 0 || r.Burst < 1 {
		return fmt.Sprintf("%d %d %d %d %d %d %d %d 0 0", l.Empty.Micros, l.Empty.Part, l.At, r.Version, r.Micros, r.Part, r.Parts, r.Burst)
	}
	state := fmt.Sprintf("%d %d %d %d %s", l.Empty.Micros, l.Empty.Part, l.At, l.Rate.Version, numbersText(l.Rate))
	if l.Hold != 0 {
		state += fmt.Sprintf(" @%d", l.Hold)
	}
	return state
}

var (
	Slot       = slot
	ParseTaken = parseTaken
)

// Reach makes sure that a Bucket has a connection for a key, as its first call does.
func Reach(ctx context.Context, b *Bucket, key string) error { return b.reach(ctx, key) }
