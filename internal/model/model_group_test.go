package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// TestModelOfKeys holds each key of a Group to a model of its own: random scripts,
// one for each key and played at once, must agree as they do with a Shaper, and the
// totals of the Group with all of them together. Between their calls buckets drain,
// are deleted and made again, which nobody may notice.
func TestModelOfKeys(t *testing.T) {
	budget := 20_000
	if long {
		budget = 40_000
	}
	done, keys, made := 0, 0, 0
	for seed := uint64(1); done < budget; seed++ {
		scripts := composedForKeys(rand.New(rand.NewPCG(seed, 7)))
		c, problem := playedByKeys(t, scripts)
		require.Empty(t, problem, "seed %d", seed)
		keys += len(scripts)
		made += c.asked
		var want shaper.GroupStats
		for key, s := range scripts {
			done += len(s.ops)
			answers, open := s.predict(none)
			require.Empty(t, open)
			got := slices.Clone(c.players[key].answers)
			for i := range answers {
				// A bucket counts since it was made, and the Group for all.
				for _, l := range []*look{&answers[i].look, &got[i].look} {
					l.totals, l.last = totals{}, 0
				}
				countAnswer(&want, answers[i])
			}
			require.Empty(t, difference(s, got, answers), "seed %d, key %d of %d\n%v", seed, key, len(scripts), s)
		}
		c.stats.RefusedKeys, c.stats.LimitErrors = 0, 0
		want.Name = "script"
		require.Equal(t, want, c.stats, "seed %d", seed)
	}
	require.Greater(t, made, 5*keys, "buckets come and go")
	t.Logf("%d operations of %d keys, whose limits were asked for %d times", done, keys, made)
}

// countAnswer counts what a model says of one operation.
func countAnswer(st *shaper.GroupStats, a answer) {
	switch a.ended.hook {
	case "departed":
		st.Departed++
		st.TotalWait += a.ended.waited
	case "abandoned":
		st.Abandoned++
	case "refused":
		st.Refused++
		switch a.result {
		case resultQueueFull:
			st.QueueFull++
		case resultTooLate:
			st.TooLate++
		case resultTooCostly:
			st.TooCostly++
		case resultClosed:
			st.Closed++
		}
	}
}

// longestChorus bounds the instants of scripts, as the ticker of a Group looks twice
// a second who has drained.
const longestChorus = 10 * time.Minute

// composedForKeys are scripts for some keys, which end by one Close.
func composedForKeys(chance *rand.Rand) (scripts []script) {
	var end time.Duration
	for size := 1 + chance.IntN(5); len(scripts) < size; {
		s, _ := composed(&source{chance: chance})
		for i := len(s.ops) - 1; i >= 0; i-- {
			switch kind := s.ops[i].kind; {
			case kind == opClose || kind == opShutdown:
				s = s.without(i)
			case kind == opWait && s.limits.InFlight > 0:
				// Who should use Acquire is told so only after his context has been
				// looked at, as before that nobody has asked whether there is a cap.
				s.ops[i].kind = opAcquire
			}
		}
		if len(s.ops) == 0 || s.ops[len(s.ops)-1].at > longestChorus {
			continue
		}
		scripts = append(scripts, s)
		end = max(end, s.ops[len(s.ops)-1].at)
	}
	for i, s := range scripts {
		for {
			s.ops = append(slices.Clip(s.ops), op{at: end, kind: opClose})
			if _, open := s.predict(none); open == "" {
				break
			}
			s.ops = s.ops[:len(s.ops)-2]
		}
		scripts[i] = s
	}
	return scripts
}

// A chorus is the players of the keys of one Group.
type chorus struct {
	*shaper.Group[int]
	players []*player
	stats   shaper.GroupStats // at the end

	mu     sync.Mutex
	limits []shaper.Limits // of each key
	asked  int
}

// playedByKeys plays scripts on the keys 0, 1 and so on of a Group.
func playedByKeys(t *testing.T, scripts []script) (c *chorus, problem string) {
	defer func() {
		if r := recover(); r != nil {
			problem = fmt.Sprint("panic: ", r)
		}
	}()
	c = new(chorus)
	synctest.Test(t, func(*testing.T) { problem = c.play(scripts) })
	return c, problem
}

func (c *chorus) play(scripts []script) (problem string) {
	hook := func(name string, of func(a *answer) *event) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			p := c.players[e.Key.(int)]
			*of(p.answer(ctx)) = p.event(name, e)
		}
	}
	ended := func(a *answer) *event { return &a.ended }
	var err error
	c.Group, err = shaper.NewGroup(c.limitsOf, shaper.WithName("script"), shaper.WithTrace(&shaper.Trace{
		Enqueued:  hook("enqueued", func(a *answer) *event { return &a.entered }),
		Departed:  hook("departed", ended),
		Refused:   hook("refused", ended),
		Abandoned: hook("abandoned", ended),
	}))
	if err != nil {
		return err.Error()
	}
	type part struct{ key, i int }
	var parts []part
	for key, s := range scripts {
		c.limits = append(c.limits, s.limits)
		p := newPlayer(s)
		p.shaper = member{c, key}
		c.players = append(c.players, p)
		for i := range s.ops {
			parts = append(parts, part{key, i})
		}
	}
	of := func(p part) *op { return &scripts[p.key].ops[p.i] }
	slices.SortStableFunc(parts, func(a, b part) int {
		closes := func(p part) int { return map[bool]int{true: 1}[of(p).kind == opClose] }
		return cmp.Or(cmp.Compare(of(a).at, of(b).at), cmp.Compare(closes(a), closes(b)))
	})
	for _, p := range parts {
		c.players[p.key].step(p.i, of(p))
	}
	for key, p := range c.players {
		for i := range p.answers {
			if !p.answers[i].returned && problem == "" {
				problem = fmt.Sprintf("key %d: operation %d %s never returned", key, i, scripts[key].ops[i].literal())
			}
			if p.ends[i] != nil {
				p.ends[i]()
			}
		}
	}
	c.stats = c.Stats()
	return problem
}

// limitsOf is what the Group asks.
func (c *chorus) limitsOf(key int) (shaper.Limits, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.limits[key], nil
}

func (c *chorus) setLimits(key int, l shaper.Limits) (before shaper.Limits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.limits[key] = c.limits[key], l
	return before
}

// A member is one key of a Group as the subject of a script.
type member struct {
	*chorus
	key int
}

func (m member) WaitN(ctx context.Context, n int) error { return m.Group.WaitN(ctx, m.key, n) }
func (m member) AllowN(n int) bool                      { return m.Group.AllowN(m.key, n) }
func (m member) Forecast(n int) (time.Duration, error)  { return m.Group.Forecast(m.key, n) }
func (m member) Hold(d time.Duration)                   { m.Group.Hold(m.key, d) }

func (m member) Acquire(ctx context.Context, n int) (release func(), err error) {
	return m.Group.Acquire(ctx, m.key, n)
}

func (m member) Stats() shaper.Stats {
	return m.Group.Limiter(m.key).(interface{ Stats() shaper.Stats }).Stats()
}

func (m member) Limits() shaper.Limits {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limits[m.key]
}

// SetLimits changes what is said of the key and has the Group ask. What a Shaper
// would refuse, the Group must, if the key has a bucket.
func (m member) SetLimits(l shaper.Limits) error {
	lives := uint64(0)
	for key := range m.All() {
		if key == m.key {
			lives = 1
		}
	}
	refused := m.Group.Stats().LimitErrors
	before := m.setLimits(m.key, l)
	m.Reload()
	refused = m.Group.Stats().LimitErrors - refused
	if l.Validate() == nil && (l.InFlight > 0) == (before.InFlight > 0) {
		if refused != 0 {
			return errors.New("the Group refused limits that it should take")
		}
		return nil
	}
	m.setLimits(m.key, before)
	if refused < lives { // It may ask, too, of one that is drained and not deleted yet.
		panic("the Group took limits that it should refuse")
	}
	return errors.New("invalid")
}
