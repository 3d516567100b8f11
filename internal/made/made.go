// Package made makes Shapers and Groups for tests, of limits in the text form of [shaper.ParseLimits], and random questions to
// Buckets.
// They are closed when the test ends. If one can't be made, the test fails.
package made

import (
	"testing"

	"example.com/leakybucket/shaper"
)

// Limits returns the limits of a text.
func Limits(t testing.TB, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Shaper makes a Shaper.
func Shaper(t testing.TB, limits string, opts ...shaper.Option) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(Limits(t, limits), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // It always returns nil.
	return s
}

// Group makes a Group with the same limits for all keys.
func Group[K comparable](t testing.TB, limits string, opts ...shaper.GroupOption) *shaper.Group[K] {
	t.Helper()
	l := Limits(t, limits)
	return GroupBy(t, func(K) (shaper.Limits, error) { return l, nil }, opts...)
}

// GroupBy makes a Group with a limits function.
func GroupBy[K comparable](t testing.TB, of func(K) (shaper.Limits, error), opts ...shaper.GroupOption) *shaper.Group[K] {
	t.Helper()
	g, err := shaper.NewGroup(of, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() }) // The same.
	return g
}
