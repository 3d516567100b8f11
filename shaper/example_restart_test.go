package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.com/leakybucket/shaper"
)

// Three attempts at once, then one a minute; an attempt too many closes the account for a
// quarter of an hour, however patiently one tries.
func ExampleWithBlock() {
	attempts, err := shaper.NewGroup(func(account string) (shaper.Limits, error) {
		return shaper.Limits{Rate: 1. / 60, Burst: 3}, nil
	}, shaper.WithBlock(15*time.Minute))
	if err != nil {
		panic(err)
	}
	defer attempts.Close()
	for range 5 {
		err := attempts.Wait(context.Background(), "alice")
		if rejected, ok := errors.AsType[*shaper.RejectError](err); ok {
			fmt.Println("too many attempts, try again in", rejected.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("check the password")
	}
	// Output:
	// check the password
	// check the password
	// check the password
	// too many attempts, try again in 15m0s
	// too many attempts, try again in 15m0s
}

// A client that has used up its bucket gets no more after a restart.
func ExampleGroup_Snapshot() {
	limits := func(string) (shaper.Limits, error) { return shaper.ParseLimits("10 per 1h burst 10") }
	before, err := shaper.NewGroup(limits)
	if err != nil {
		panic(err)
	}
	fmt.Println(before.AllowN("alice", 10))
	file := filepath.Join(os.TempDir(), fmt.Sprintf("buckets-%d.json", os.Getpid()))
	defer os.Remove(file)
	if err := saveBuckets(context.Background(), before, file); err != nil {
		panic(err)
	}

	after, err := shaper.NewGroup(limits)
	if err != nil {
		panic(err)
	}
	defer after.Close()
	if err := loadBuckets(after, file); err != nil {
		panic(err)
	}
	fmt.Println(after.Allow("alice"))
	// Output:
	// true
	// false
}

// saveBuckets is called on the way out.
func saveBuckets(ctx context.Context, g *shaper.Group[string], file string) error {
	err := g.Shutdown(ctx) // The line leaves first: what leaves later is not in the snapshot.
	snapshot, left := g.Snapshot()
	return errors.Join(err, left, os.WriteFile(file, snapshot, 0o600))
}

// loadBuckets is called at the start.
func loadBuckets(g *shaper.Group[string], file string) error {
	snapshot, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // The first start.
	}
	if err != nil {
		return err
	}
	return g.Restore(snapshot)
}
