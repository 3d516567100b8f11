package shaper

import (
	"context"
	"time"
)

// A KeyLimiter is a [Limiter] for the requests of one key: those of a [Group] ([Group.Limiter]).
// It takes no memory in the Group, and works whether the key has a bucket or not. Its methods are
// those of the Group, without the key.
//
// The zero KeyLimiter is not usable, and its methods panic.
type KeyLimiter struct {
	bucket keyBucket // nil: the KeyLimiter is zero
}

// A keyBucket is the bucket of a key, whatever has it. It is apart from KeyLimiter, so that a type
// which embeds a *KeyLimiter is no inner, and its own [Limiter.WaitN] is called.
type keyBucket interface {
	inner
	allow(n int) bool
	do(ctx context.Context, n int, f func(context.Context) error) error
	predict(n int) (wait time.Duration, err error) // also in a dry run
	state() Stats
}

// made returns the bucket, and panics if there is none.
func (l *KeyLimiter) made() keyBucket {
	if l == nil || l.bucket == nil {
		panic("shaper: this KeyLimiter is nil or zero and can't be used; get one from Group.Limiter")
	}
	return l.bucket
}

// Wait is shorthand for WaitN(ctx, 1).
func (l *KeyLimiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN is [Group.WaitN].
func (l *KeyLimiter) WaitN(ctx context.Context, n int) error { return l.made().WaitN(ctx, n) }

// Acquire is [Group.Acquire].
func (l *KeyLimiter) Acquire(ctx context.Context, n int) (release func(), err error) {
	if release, err = l.made().enter(ctx, n, newcomer); release == nil {
		release = nothing
	}
	return release, err
}

// Do is [Group.Do].
func (l *KeyLimiter) Do(ctx context.Context, n int, f func(context.Context) error) error {
	return l.made().do(ctx, n, f)
}

// Allow is shorthand for AllowN(1).
func (l *KeyLimiter) Allow() bool { return l.AllowN(1) }

// AllowN is [Group.AllowN].
func (l *KeyLimiter) AllowN(n int) bool { return l.made().allow(n) }

// Forecast is [Group.Forecast].
func (l *KeyLimiter) Forecast(n int) (wait time.Duration, err error) { return l.made().predict(n) }

// Hold is [Group.Hold].
func (l *KeyLimiter) Hold(d time.Duration) { l.made().hold(context.Background(), d) }

// Stats returns the state of the key's bucket, or of a new one if the key has none. If the limits
// function returns an error, only the name is set.
func (l *KeyLimiter) Stats() Stats { return l.made().state() }

// Limiter returns the bucket of a key as a [Limiter], for a [Transport], a [Chain] or a
// [Middleware].
func (g *Group[K]) Limiter(key K) *KeyLimiter {
	g.mustBeMade()
	return &KeyLimiter{keyLimiter[K]{g, key}}
}

// A keyLimiter is the bucket of one key of a [Group].
type keyLimiter[K comparable] struct {
	group *Group[K]
	key   K
}

func (k keyLimiter[K]) WaitN(ctx context.Context, n int) error { return k.group.WaitN(ctx, k.key, n) }

func (k keyLimiter[K]) do(ctx context.Context, n int, f func(context.Context) error) error {
	return k.group.Do(ctx, k.key, n, f)
}

func (k keyLimiter[K]) allow(n int) bool { return k.group.AllowN(k.key, n) }

func (k keyLimiter[K]) state() (st Stats) {
	g := k.group
	err := g.shardOf(k.key).of(k.key).withFlow(func(d *dispatcher, f *flow, now int64) { st = d.statsLocked(f, now) })
	if err != nil {
		return Stats{Name: g.over.name}
	}
	return st
}

func (k keyLimiter[K]) stats() (st Stats, ok bool) { return k.group.StatsOf(k.key) }

func (k keyLimiter[K]) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	return acquire(ctx, k.group, k.key, n, kind)
}

func (k keyLimiter[K]) predict(n int) (time.Duration, error) { return k.group.Forecast(k.key, n) }

func (k keyLimiter[K]) forecast(n int) (wait time.Duration, err error) {
	if k.group.mayDryRun() {
		return 0, nil
	}
	return k.predict(n)
}

// hold reports false if the [Limits] of the key can't be had: then there is no line to hold.
func (k keyLimiter[K]) hold(ctx context.Context, d time.Duration) bool {
	return k.group.shardOf(k.key).of(k.key).hold(ctx, d) && !k.group.mayDryRun()
}

func (k keyLimiter[K]) mayDryRun() bool { return k.group.mayDryRun() }

func (k keyLimiter[K]) asksDoneToWait() bool { return true }
