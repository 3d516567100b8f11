package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests a Group with its function for the Limits of keys: however slow or broken it is
// for one key, the others do not notice.

func TestSlowLimitsDelayTheirOwnKeyOnly(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.slow("s", time.Second)
		g.arriveAll("s1", "a1", "s2", "b1", "a2")
		g.saw("0s a1 left", "0s b1 left")
		require.Zero(t, g.levels()["s"])
		g.at(time.Minute)
		g.saw("1s s1 left", "1s a2 left", "2s s2 left")
		require.Equal(t, []string{"s", "a", "b"}, g.wasAsked())
	})
}

// A bucket that is drained, but not deleted yet, keeps its Limits: who comes often
// enough is not asked for each time.
func TestADrainedBucketKeepsItsLimitsUntilItIsDeleted(t *testing.T) {
	playKeys(t, "10/s depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		g.at(100 * ms)
		g.slow("a", time.Second)
		g.arriveAll("a2", "a3")
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.at(time.Minute)
		g.saw("0s a1 left", "100ms a2 left", "200ms a3 left")
		require.Equal(t, []string{"a"}, g.wasAsked())
		require.Zero(t, g.Group.Stats().Keys)
		g.arriveAll("a4")
		g.at(2 * time.Minute)
		g.saw("1m1s a4 left")
		require.Equal(t, []string{"a"}, g.wasAsked())
	})
}

var errNoUser = errors.New("no such user")

func TestAnErrorOfLimitsIsNotRemembered(t *testing.T) {
	playKeys(t, "1/s burst 2", func(g *groupStage) {
		bad := map[string]func() (shaper.Limits, error){
			"error":   func() (shaper.Limits, error) { return shaper.Limits{Rate: 1}, errNoUser },
			"nothing": func() (shaper.Limits, error) { return shaper.Limits{}, nil },
			"NaN":     func() (shaper.Limits, error) { return shaper.Limits{Rate: 1, Burst: -7}, nil },
		}
		for name, say := range bad {
			before := g.Group.Stats()
			g.says(name, say)
			ran := func(context.Context) error { panic("it ran") }
			errs := []error{g.Wait(context.Background(), name), g.Do(context.Background(), name, 1, ran)}
			release, err := g.Acquire(context.Background(), name, 1)
			release()
			_, forecast := g.Limiter(name).Forecast(1)
			for _, err := range append(errs, err, forecast) {
				require.Error(t, err, name)
				require.Equal(t, name == "error", errors.Is(err, errNoUser))
				if name == "nothing" {
					require.ErrorContains(t, err, "Limits.Rate is 0")
				}
				if name == "NaN" {
					require.ErrorContains(t, err, "Limits.Burst is -7")
				}
				require.NotErrorAs(t, err, new(*shaper.RejectError))
			}
			require.False(t, g.Allow(name))
			g.Limiter(name).Hold(time.Second)
			before.LimitErrors += 6
			require.Equal(t, before, g.Group.Stats(), "nothing else is counted")

			g.says(name, nil)
			require.NoError(t, g.Wait(context.Background(), name))
		}
		require.Len(t, g.levels(), 3)
	})
}

// All who wait for one answer get it, if it is an error too, and it counts once.
func TestAnErrorOfLimitsIsTheirsWhoWaitForIt(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.says("a", func() (shaper.Limits, error) {
			time.Sleep(time.Second)
			return shaper.Limits{}, errNoUser
		})
		g.arriveAll("a1", "a2", "a3")
		g.at(time.Second)
		said := "shaper: limits of a key: no such user"
		g.saw("1s a1 "+said, "1s a2 "+said, "1s a3 "+said)
		require.EqualValues(t, 1, g.Group.Stats().LimitErrors)
		require.Len(t, g.wasAsked(), 1)
	})
}

// A panic is the caller's who asked. The next asks again, and so on.
func TestAPanicOfLimitsIsItsCallersOnly(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("limits") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			playKeys(t, "10/s depth 9", func(g *groupStage) {
				var asked atomic.Int64
				g.says("a", func() (shaper.Limits, error) {
					time.Sleep(time.Second)
					if asked.Add(1) < 3 {
						end()
					}
					return g.usual, nil
				})
				var panicked atomic.Int64
				for range 4 {
					go func() {
						defer func() {
							if r := recover(); r == "limits" {
								panicked.Add(1)
							} else if r != nil {
								t.Errorf("panicked with %v", r)
							}
						}()
						_ = g.Wait(context.Background(), "a")
					}()
				}
				synctest.Wait()
				before := g.Group.Stats().Departed
				g.at(4 * time.Second)
				require.EqualValues(t, 2, g.Group.Stats().Departed-before)
				require.EqualValues(t, 3, asked.Load())
				require.Equal(t, name == "panic", panicked.Load() == 2)
				require.NoError(t, g.Wait(context.Background(), "a"), "the lock is not held")
			})
		})
	}
}

// Whoever waits for an answer may give up, as may who has asked himself; he knows
// when he has it. They take nothing from the others.
func TestContextsEndWhileLimitsAreAskedFor(t *testing.T) {
	var mu sync.Mutex
	var told []string
	trace := &shaper.Trace{Abandoned: func(_ context.Context, e shaper.Event) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(e.Key, " ", e.Cost, " ", e.Err))
	}}
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.slow("a", time.Second)
		g.arriveAll("a1", "a2", "a3")
		ctx, cancel := context.WithTimeout(context.Background(), 500*ms)
		defer cancel()
		g.arriveWith(ctx, "short", "a", 2)
		g.at(100 * ms)
		g.cancel("a1", "a3")
		g.saw("100ms a3 cancelled")
		g.at(time.Minute)
		g.saw("500ms short expired", "1s a1 cancelled", "1s a2 left")
		require.EqualValues(t, 3, g.Group.Stats().Abandoned)
		require.EqualValues(t, 1, g.Group.Stats().Departed)
		require.Equal(t, []string{"a 1 context canceled", "a 2 context deadline exceeded", "a 1 context canceled"}, told)
	}, shaper.WithTrace(trace))
}

// Nor do they hang if he panics when he is asked whether he has given up.
func TestAPanicOfTheAskersContextIsHisOnly(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.slow("a", time.Second)
		go func() {
			defer func() { g.note(fmt.Sprint("a1 ", recover())) }()
			_ = g.Wait(&meddling{Context: context.Background(), meddle: func() { panic("context") }}, "a")
		}()
		synctest.Wait()
		g.arriveAll("a2")
		g.at(time.Minute)
		g.saw("1s a1 context", "2s a2 left")
	})
}

// A deadline that has come while the limits were asked for is too late, even if the
// context does not say that it has ended.
func TestTheTimeThatLimitsTakeCounts(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.slow("a", time.Second)
		g.arriveWith(overdue{context.Background(), g.start.Add(time.Second)}, "on time", "a", 1)
		g.at(2 * time.Second)
		g.saw("1s on time late, retry 0s")
	})
}

// Nobody waits for an answer that a Close has made useless.
func TestCloseDoesNotWaitForLimits(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.slow("a", time.Hour)
		g.arriveAll("a1", "a2", "a3", "b1", "b2")
		g.at(time.Second / 2)
		require.NoError(t, g.Close())
		g.saw("0s b1 left", "500ms a2 closed, retry 0s", "500ms a3 closed, retry 0s", "500ms b2 closed, retry 0s")
		g.at(time.Hour)
		g.saw("1h0m0s a1 closed, retry 0s")
		require.EqualValues(t, 4, g.Group.Stats().Closed)
		require.Zero(t, g.Group.Stats().Keys)
	})
}

// A NaN is never found again in a map. It shares a bucket with all others.
func TestKeysThatDoNotEqualThemselvesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g, err := shaper.NewGroup(func(float64) (shaper.Limits, error) {
			asked++
			return shaper.Limits{Rate: 1, Burst: 3}, nil
		})
		require.NoError(t, err)
		defer g.Close()
		shaper.SpreadHomes(g, math.NaN(), 1)
		for range 3 {
			require.True(t, g.Allow(math.NaN()))
		}
		for range 50 {
			require.False(t, g.Allow(-math.NaN()))
			wait, err := g.Limiter(math.NaN()).Forecast(1)
			require.Zero(t, wait)
			require.ErrorIs(t, err, shaper.ErrQueueFull)
		}
		require.True(t, g.Allow(1))
		st := g.Stats()
		require.Equal(t, 1, st.Keys)
		require.EqualValues(t, 53, st.Overflowed)
		require.Equal(t, 104, asked)
		g.Limiter(math.NaN()).Hold(time.Minute)
		g.Limiter(math.NaN()).Hold(0)
		g.Reload()
		time.Sleep(3*time.Second + time.Minute)
		require.True(t, g.AllowN(math.NaN(), 3))
	})
}

// As a map does, a Group panics for keys that can't be compared; and goes on.
func TestAKeyThatCannotBeComparedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := must(shaper.NewGroup(func(any) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Burst: 9}, nil }))
		defer g.Close()
		type pair struct {
			number float64
			rest   any
		}
		for i, key := range []any{[]int{1}, map[string]int{}, pair{1, []int{}}, func() {}} {
			for name, use := range map[string]func(){
				"Wait":     func() { _ = g.Wait(context.Background(), key) },
				"Allow":    func() { g.Allow(key) },
				"Acquire":  func() { _, _ = g.Acquire(context.Background(), key, 1) },
				"Forecast": func() { _, _ = g.Limiter(key).Forecast(1) },
				"Hold":     func() { g.Limiter(key).Hold(1) },
				"Hold(0)":  func() { g.Limiter(key).Hold(0) },
			} {
				require.Panics(t, use, "%s %T", name, key)
			}
			require.True(t, g.Allow(pair{1, "comparable"}), "the lock is not held")
			require.Equal(t, 1, g.Stats().Keys)
			require.EqualValues(t, i+1, g.Stats().Departed)
		}
	})
}

// Making a plan of a rate such as 1/3 takes twenty times as long as a call. A Group that
// did it under its lock would let whoever can influence the Limits of keys delay all keys.
// planFor makes it before it returns to a caller that then takes the lock.
func TestNoPlanOfLimitsIsMadeUnderTheLockOfAGroup(t *testing.T) {
	files, err := filepath.Glob("group*.go")
	require.NoError(t, err)
	var makers []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			ast.Inspect(decl, func(n ast.Node) bool {
				called, is := n.(*ast.Ident)
				if is && slices.Contains([]string{"planOf", "newBucket", "IntervalOf", "Validate", "validate"}, called.Name) {
					makers = append(makers, decl.(*ast.FuncDecl).Name.Name+" calls "+called.Name)
				}
				return true
			})
		}
	}
	require.ElementsMatch(t, []string{
		"NewGroup calls planOf",
		"callLimitsFunction calls Validate", "SetLimits calls validate", "planFor calls planOf",
	}, makers)

	var g *shaper.Group[int]
	calls := 0
	g, err = shaper.NewGroup(func(key int) (shaper.Limits, error) {
		calls++
		_ = g.Stats() // This would wait for ever if the lock were held.
		return shaper.Limits{Rate: 1. / 3, Burst: 1 + key}, nil
	})
	require.NoError(t, err)
	defer g.Close()
	for i, call := range []func(){
		func() { g.Allow(0) }, g.Reload, func() { _, _ = g.Limiter(1).Forecast(1) }, func() { g.Limiter(2).Hold(time.Second) },
		func() { g.Limiter(3).Stats() },
	} {
		call()
		require.Equal(t, i+1, calls)
	}
}

// A groupStage is a stage for a Group: calls with keys in a bubble, and what became
// of each. Limits of a key are what limit has said of it, or else those it began
// with.
type groupStage struct {
	*shaper.Group[string]
	*stage // its Shaper is nil

	mu    sync.Mutex
	usual shaper.Limits
	by    map[string]func() (shaper.Limits, error)
	asked []string // the keys of which the limits were asked for, in that order
}

// playKeys runs a timeline in a bubble of its own. Keys of one letter never share a
// bucket because of their hash.
func playKeys(t *testing.T, limits string, timeline func(g *groupStage), opts ...shaper.GroupOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &groupStage{
			stage: &stage{
				t: t, start: time.Now(),
				cancels: map[string]context.CancelFunc{}, releases: map[string]func(){},
			},
			by: map[string]func() (shaper.Limits, error){},
		}
		g.usual = limitsOf(t, limits)
		var err error
		g.Group, err = shaper.NewGroup(g.limitsOf, opts...)
		require.NoError(t, err)
		shaper.SpreadHomes(g.Group, strings.Split("abcdefghijklmnopqrstuvwxyz", "")...)
		timeline(g)
	})
}

// limitsOf is the function that the Group asks.
func (g *groupStage) limitsOf(key string) (shaper.Limits, error) {
	g.mu.Lock()
	g.asked = append(g.asked, key)
	say := g.by[key]
	g.mu.Unlock()
	if say == nil {
		return g.usual, nil
	}
	return say()
}

// limit sets the limits of a key from now on.
func (g *groupStage) limit(key, limits string) {
	g.t.Helper()
	l := limitsOf(g.t, limits)
	g.says(key, func() (shaper.Limits, error) { return l, nil })
}

func (g *groupStage) says(key string, say func() (shaper.Limits, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.by[key] = say
}

// slow makes the limits of a key take a while.
func (g *groupStage) slow(key string, d time.Duration) {
	g.says(key, func() (shaper.Limits, error) {
		time.Sleep(d)
		return g.usual, nil
	})
}

// wasAsked returns the keys whose limits were asked for since its last call.
func (g *groupStage) wasAsked() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked := g.asked
	g.asked = nil
	return asked
}

// arrive is a call of WaitN(ctx, key, n) in a goroutine of its own, which cancel
// can end by its name.
func (g *groupStage) arrive(name, key string, n int) {
	g.arriveWith(g.cancellable(name), name, key, n)
}

func (g *groupStage) arriveWith(ctx context.Context, name, key string, n int) {
	g.calls(name, func() error { return g.WaitN(ctx, key, n) })
}

// arriveAll are calls of cost 1, one after the other. The key of each is the first
// letter of its name.
func (g *groupStage) arriveAll(names ...string) {
	for _, name := range names {
		g.arrive(name, name[:1], 1)
	}
}

// acquireAll are the same with Acquire.
func (g *groupStage) acquireAll(names ...string) {
	for _, name := range names {
		g.acquireFor(g.Limiter(name[:1]), name)
	}
}

func (g *groupStage) shutDown() { g.note(fmt.Sprint("shut down: ", g.Shutdown(context.Background()))) }

// levels returns the levels of all keys that All shows.
func (g *groupStage) levels() map[string]float64 {
	levels := map[string]float64{}
	for k, st := range g.All() {
		levels[k] = st.Level
	}
	return levels
}

// gone lets a second pass, by whose end a bucket that is drained now has gone.
func (g *groupStage) gone() {
	g.t.Helper()
	require.Empty(g.t, g.levels(), "not drained yet")
	time.Sleep(time.Second)
	synctest.Wait()
	require.Zero(g.t, g.Group.Stats().Keys)
}

var bubbleOf = regexp.MustCompile(`synctest bubble \d+`)

// alone asserts that the ticker goroutine of the Group has gone.
func (g *groupStage) alone() {
	g.t.Helper()
	synctest.Wait()
	stacks := make([]byte, 1<<20)
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	bubble := bubbleOf.FindString(all[0])
	require.NotEmpty(g.t, bubble)
	for _, one := range all {
		header, rest, _ := strings.Cut(one, "\n")
		if strings.HasSuffix(header, bubble+"]:") {
			require.NotContains(g.t, rest, "(*dispatcher).tick")
		}
	}
}
