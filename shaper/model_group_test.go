package shaper_test

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

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// TestModelOfKeys holds each key of a Group to a model of its own: random scripts,
// one for each key and all played at once, must agree as they do with a Shaper, and
// the totals of the Group with the sum of all models. Between the calls buckets
// drain, are deleted and made again, which no caller may notice, except that a new
// bucket does not know how long seats were held before.
func TestModelOfKeys(t *testing.T) {
	t.Parallel()
	budget := rounds(5_000, 40_000, 40_000)
	done, keys, made := 0, 0, 0
	for seed := uint64(1); done < budget; seed++ {
		scripts := composedForKeys(rand.New(rand.NewPCG(seed, 7)))
		c, problem := playedByKeys(t, scripts)
		require.Empty(t, problem, "seed %d", seed)
		keys += len(scripts)
		made += c.asked
		var want shaper.GroupStats
		for key, s := range scripts {
			done += len(s.Ops)
			answers, open := s.Predict(model.NoMistake)
			require.Empty(t, open)
			got := slices.Clone(c.answers[key])
			for i := range answers {
				// A bucket counts since it was made, so only the Group's totals are compared.
				for _, l := range []*model.Look{&answers[i].Look, &got[i].Look} {
					l.Totals, l.Last = model.Totals{}, 0
				}
				countAnswer(&want, answers[i])
				if answers[i].Estimated {
					for _, a := range []*model.Answer{&answers[i], &got[i]} {
						a.Retry, a.Ended.Retry, a.Wait = 0, 0, 0
					}
				}
			}
			require.Empty(t, model.Difference(s, got, answers), "seed %d, key %d of %d\n%v", seed, key, len(scripts), s)
		}
		c.stats.RefusedKeys, c.stats.LimitErrors = 0, 0
		want.Name = model.Name
		require.Equal(t, want, c.stats, "seed %d", seed)
	}
	require.Greater(t, made, 5*keys, "buckets come and go")
	t.Logf("%d operations of %d keys, whose limits were asked for %d times", done, keys, made)
}

// countAnswer counts what a model says of one operation.
func countAnswer(st *shaper.GroupStats, a model.Answer) {
	switch a.Ended.Hook {
	case model.HookDeparted:
		st.Departed++
		st.TotalWait += a.Ended.Waited
	case model.HookAbandoned:
		st.Abandoned++
	case model.HookRefused:
		st.Refused++
		switch a.Result {
		case model.QueueFull:
			st.QueueFull++
		case model.TooLate:
			st.TooLate++
		case model.TooCostly:
			st.TooCostly++
		case model.Closed:
			st.Closed++
		}
	}
}

// longestChorus bounds the instants of scripts, because the ticker of a Group looks
// twice a second for buckets that have drained.
const longestChorus = 10 * time.Minute

// composedForKeys returns scripts for some keys, which end by one Close.
func composedForKeys(chance *rand.Rand) (scripts []model.Script) {
	var end time.Duration
	for size := 1 + chance.IntN(5); len(scripts) < size; {
		s, _ := model.Random(chance)
		for i := len(s.Ops) - 1; i >= 0; i-- {
			switch kind := s.Ops[i].Kind; {
			case kind == model.OpClose || kind == model.OpShutdown:
				s = s.Without(i)
			case kind == model.OpWait && s.Limits.InFlight > 0:
				// A Group looks at the context before it knows the key's limits, so
				// a call that should be Acquire may return the context's error.
				s.Ops[i].Kind = model.OpAcquire
			}
		}
		if len(s.Ops) == 0 || s.Ops[len(s.Ops)-1].At > longestChorus {
			continue
		}
		scripts = append(scripts, s)
		end = max(end, s.Ops[len(s.Ops)-1].At)
	}
	for i, s := range scripts {
		for {
			s.Ops = append(slices.Clip(s.Ops), model.Op{At: end, Kind: model.OpClose})
			if _, open := s.Predict(model.NoMistake); open == "" {
				break
			}
			s.Ops = s.Ops[:len(s.Ops)-2]
		}
		scripts[i] = s
	}
	return scripts
}

// A chorus plays one script on each key of one Group.
type chorus struct {
	*shaper.Group[int]
	players []*model.Player
	answers [][]model.Answer
	stats   shaper.GroupStats // at the end

	mu     sync.Mutex
	limits []shaper.Limits // of each key
	asked  int
}

// playedByKeys plays scripts on the keys 0, 1 and so on of a Group.
func playedByKeys(t *testing.T, scripts []model.Script) (c *chorus, problem string) {
	defer func() {
		if r := recover(); r != nil {
			problem = fmt.Sprint("panic: ", r)
		}
	}()
	c = new(chorus)
	synctest.Test(t, func(*testing.T) { problem = c.play(scripts) })
	return c, problem
}

func (c *chorus) play(scripts []model.Script) (problem string) {
	trace := func(e shaper.Event) *shaper.Trace { return c.players[e.Key.(int)].Trace() }
	var err error
	c.Group, err = shaper.NewGroup(c.limitsOf, shaper.WithName(model.Name), shaper.WithTrace(&shaper.Trace{
		Enqueued:  func(ctx context.Context, e shaper.Event) { trace(e).Enqueued(ctx, e) },
		Departed:  func(ctx context.Context, e shaper.Event) { trace(e).Departed(ctx, e) },
		Refused:   func(ctx context.Context, e shaper.Event) { trace(e).Refused(ctx, e) },
		Abandoned: func(ctx context.Context, e shaper.Event) { trace(e).Abandoned(ctx, e) },
	}))
	if err != nil {
		return err.Error()
	}
	type part struct{ key, i int }
	var parts []part
	for key, s := range scripts {
		c.limits = append(c.limits, s.Limits)
		p := model.NewPlayer(s)
		p.Subject = member{c, key}
		c.players = append(c.players, p)
		for i := range s.Ops {
			parts = append(parts, part{key, i})
		}
	}
	of := func(p part) *model.Op { return &scripts[p.key].Ops[p.i] }
	slices.SortStableFunc(parts, func(a, b part) int {
		closes := func(p part) int { return map[bool]int{true: 1}[of(p).Kind == model.OpClose] }
		return cmp.Or(cmp.Compare(of(a).At, of(b).At), cmp.Compare(closes(a), closes(b)))
	})
	for _, p := range parts {
		c.players[p.key].Step(p.i)
	}
	for key, p := range c.players {
		answers, hangs := p.End()
		c.answers = append(c.answers, answers)
		if hangs != "" && problem == "" {
			problem = fmt.Sprintf("key %d: %s", key, hangs)
		}
	}
	c.stats = c.Stats()
	return problem
}

// limitsOf is the limits function of the Group.
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
	return m.Group.Limiter(m.key).Stats()
}

func (m member) Limits() shaper.Limits {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limits[m.key]
}

// SetLimits changes what the limits function returns for the key, and reloads. The
// Group must refuse what a Shaper refuses, if the key has a bucket.
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
	if refused < lives { // The Group may also ask for a bucket that is drained and not deleted yet.
		panic("the Group took limits that it should refuse")
	}
	return errors.New("invalid")
}
