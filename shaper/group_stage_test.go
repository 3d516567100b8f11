package shaper_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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

// limit says what the limits of a key are from now on.
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

// wasAsked is of which keys the limits were asked for since it was called last.
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
	ctx, cancel := context.WithCancel(context.Background())
	g.cancels[name] = cancel
	g.arriveWith(ctx, name, key, n)
}

func (g *groupStage) arriveWith(ctx context.Context, name, key string, n int) {
	go func() {
		g.note(name + " " + outcome(g.WaitN(ctx, key, n)))
	}()
	synctest.Wait()
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
		ctx, cancel := context.WithCancel(context.Background())
		g.cancels[name] = cancel
		go func() {
			release, err := g.Acquire(ctx, name[:1], 1)
			g.stage.mu.Lock()
			g.releases[name] = release
			g.stage.mu.Unlock()
			g.note(name + " " + outcome(err))
		}()
		synctest.Wait()
	}
}

func (g *groupStage) shutDown() { g.note(fmt.Sprint("shut down: ", g.Shutdown(context.Background()))) }

// of is what All says of a key; ok is false if it does not show it.
func (g *groupStage) of(key string) (st shaper.Stats, ok bool) {
	for k, st := range g.All() {
		if k == key {
			return st, true
		}
	}
	return st, false
}

// levels are those of all keys that All shows.
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
