package sharedfaults_test

import (
	"context"
	"maps"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// An observed Bucket counts the errors that another returns, so that a test that fails can
// say what happened, and measures its calls.
type observed struct {
	shaper.Bucket
	calls slowCalls

	mu      sync.Mutex
	errors  map[string]int
	longest int64 // the most cost units that a Take has asked for
}

// Take implements [shaper.Bucket].
func (o *observed) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	o.mu.Lock()
	o.longest = max(o.longest, t.Cost)
	o.mu.Unlock()
	began := time.Now()
	taken, err := o.Bucket.Take(ctx, t)
	o.calls.note(began, err)
	return taken, o.note("Take: ", err)
}

// GiveBack implements [shaper.Bucket].
func (o *observed) GiveBack(ctx context.Context, t shaper.Take, end shaper.Instant) error {
	return o.note("GiveBack: ", o.Bucket.GiveBack(ctx, t, end))
}

// Shard returns which keys fail together, as the other Bucket says.
func (o *observed) Shard(key string) string {
	if b, ok := o.Bucket.(interface{ Shard(key string) string }); ok {
		return b.Shard(key)
	}
	return ""
}

func (o *observed) note(method string, err error) error {
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.errors[method+err.Error()]++
	}
	return err
}

// longestBatch returns the most cost units that a Take has asked for.
func (o *observed) longestBatch() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.longest
}

// returned returns how often each error was returned.
func (o *observed) returned() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.errors)
}
