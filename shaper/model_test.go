package shaper_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// audited counts the refusals that subjects have made without their lock and again with it.
var audited atomic.Int64

// newSubject makes a Shaper for a script to be played on. It refuses without its lock wherever
// it can, and repeats that under the lock.
func newSubject(l shaper.Limits, options ...shaper.Option) (model.Subject, error) {
	s, err := shaper.New(l, options...)
	if err == nil {
		shaper.AuditRefusalsInto(s, &audited)
	}
	return subject{s}, err
}

// A subject is a Shaper in which requests can be sent again.
type subject struct{ *shaper.Shaper }

func (s subject) Retry(ctx context.Context, n int, asked time.Time) (release func(), err error) {
	if release, err = shaper.RetryOf(s.Shaper, ctx, n, asked); release == nil {
		release = func() {}
	}
	return release, err
}

// TestModel holds the shaper to the model: random scripts must agree in
// result, instant, order, RetryAfter, Forecast, Stats and the calls of hooks.
// SHAPER_LONG=2 asks for a million operations.
func TestModel(t *testing.T) {
	t.Parallel()
	budget := rounds(5_000, 300_000, 1_000_000)
	agreeAtRandom(t, budget, 0, model.Random)
	require.Greater(t, audited.Load(), int64(budget/50), "hardly any refusal was made without the lock")
}

// FuzzModel is TestModel with the script's choices taken from the input.
func FuzzModel(f *testing.F) { agreeOnBytes(f, model.FromBytes) }

// TestFairModel is TestModel for scripts whose calls have keys that share the rate.
func TestFairModel(t *testing.T) {
	t.Parallel()
	agreeAtRandom(t, rounds(4_000, 100_000, 1_000_000), 29, model.RandomFair)
}

// FuzzFairModel is TestFairModel with the script's choices taken from the input.
func FuzzFairModel(f *testing.F) { agreeOnBytes(f, model.FairFromBytes) }

// TestBoundedModel is TestModel for scripts in which no wait is longer than its bound.
func TestBoundedModel(t *testing.T) {
	t.Parallel()
	agreeAtRandom(t, rounds(5_000, 100_000, 1_000_000), 39, model.RandomBounded)
}

// FuzzBoundedModel is TestBoundedModel with the script's choices taken from the input.
func FuzzBoundedModel(f *testing.F) { agreeOnBytes(f, model.BoundedFromBytes) }

// TestMetersModel is TestModel for scripts whose calls have costs at two or three levels.
func TestMetersModel(t *testing.T) {
	t.Parallel()
	agreeAtRandom(t, rounds(6_000, 200_000, 1_000_000), 41, model.RandomMetered)
}

// FuzzMetersModel is TestMetersModel with the script's choices taken from the input.
func FuzzMetersModel(f *testing.F) { agreeOnBytes(f, model.MeteredFromBytes) }

// agreeAtRandom plays random scripts of a kind, until they have so many operations.
func agreeAtRandom(t *testing.T, budget int, stream uint64, random func(*rand.Rand) (model.Script, []model.Answer)) {
	t.Helper()
	done := 0
	for seed := uint64(1); done < budget; seed++ {
		script, want := random(rand.New(rand.NewPCG(seed, stream)))
		done += len(script.Ops)
		requireAgreement(t, script, want, "seed %d", seed)
	}
	t.Logf("%d operations", done)
}

// agreeOnBytes plays scripts of a kind whose choices are taken from the input.
func agreeOnBytes(f *testing.F, read func([]byte) (model.Script, []model.Answer)) {
	f.Fuzz(func(t *testing.T, data []byte) {
		script, want := read(data)
		requireAgreement(t, script, want, "%d bytes", len(data))
	})
}

// requireAgreement plays a script on a Shaper, and shows the shortest part of it
// on which the Shaper and the model disagree.
func requireAgreement(t *testing.T, script model.Script, want []model.Answer, of string, args ...any) {
	t.Helper()
	difference := model.Compare(t, script, want, newSubject)
	if difference != "" {
		script, difference = model.Shrink(t, script, difference, newSubject)
		require.FailNow(t, "the shaper disagrees with the model", "%s\n%v\n%s", fmt.Sprintf(of, args...), script, difference)
	}
}

// TestModelTellsMistakes tests the checker: each of 54 mistakes must show
// within 100,000 operations, on scripts on which the model without it agrees with
// the shaper.
func TestModelTellsMistakes(t *testing.T) {
	t.Parallel()
	require.Len(t, model.Mistakes(), 54)
	// These show in one script of some hundreds, so the search begins with such a script.
	first := map[model.Mistake]uint64{model.StaleRefund: 244, model.CapIgnored: 481, model.HeadPushedLate: 430}
	for _, mistake := range model.Mistakes() {
		t.Run(mistake.String(), func(t *testing.T) {
			t.Parallel()
			done := 0
			for seed := max(1, first[mistake]); done < 100_000; seed++ {
				compose := model.Random
				switch {
				case mistake.IsOfMeters():
					compose = model.RandomMetered
				case mistake.IsOfBounds():
					compose = model.RandomBounded
				case mistake.IsOfFair():
					compose = model.RandomFair
				}
				script, right := compose(rand.New(rand.NewPCG(seed, uint64(mistake))))
				done += len(script.Ops)
				wrong, _ := script.Predict(mistake)
				if model.Difference(script, right, wrong) == "" {
					continue // The mistake does not show in this script, so a Shaper need not play it.
				}
				got, problem := model.Play(t, script, newSubject)
				require.Empty(t, problem, "%v", script)
				require.Empty(t, model.Difference(script, got, right), "without a mistake, seed %d\n%v", seed, script)
				if told := model.Difference(script, got, wrong); told != "" {
					t.Logf("told after %d operations: %s", done, told)
					return
				}
			}
			require.FailNow(t, "not told", fmt.Sprint(done, " operations agree with the mistake"))
		})
	}
}

// TestModelByHand holds the model, and the shaper, to timelines computed by hand of what no
// other test has by hand. Where the two disagree elsewhere, the other timelines of this package
// say which is right.
func TestModelByHand(t *testing.T) {
	one, acquire := model.Op{Kind: model.OpWait, N: 1}, model.Op{Kind: model.OpAcquire, N: 1}
	for _, test := range []struct {
		name string
		model.Script
		want []string
	}{
		{
			// At 1e9/s the half unit that is left at 500 ms is gone half a
			// nanosecond later.
			"a fraction of the level is not carried past an empty bucket",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 500*ms + 1, Kind: model.OpWait, N: 3},
				{At: 500*ms + 2, Kind: model.OpLook},
			}},
			[]string{"left at 0s", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2"},
		},
		{
			"a seat that is released is the head's at once, if the bucket allows",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2, Depth: 9, InFlight: 1}, Ops: []model.Op{
				acquire, acquire, acquire,
				{At: 50 * ms, Kind: model.OpRelease, Target: 0},
				{At: 60 * ms, Kind: model.OpRelease, Target: 0},
				{At: 70 * ms, Kind: model.OpRelease, Target: 1},
				{At: 70 * ms, Kind: model.OpForecast, N: 1},
			}},
			[]string{
				"left at 0s", "left at 50ms", "left at 100ms", "left at 50ms", "left at 60ms", "left at 70ms",
				"left at 70ms, wait 130ms",
			},
		},
		{
			"a request that waits for a seat waits at least for the next moment",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 3, Depth: 1, InFlight: 1}, Ops: []model.Op{
				acquire,
				{Kind: model.OpForecast, N: 1},
				acquire, acquire,
				{At: 1000 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 10, Depth: 1}},
				{At: 1000 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 10, Depth: 1, InFlight: 2}},
				{At: 1000 * ms, Kind: model.OpWait, N: 1},
				{At: 1000 * ms, Kind: model.OpAllow, N: 1},
			}},
			[]string{
				"left at 0s", "left at 0s, wait 1ms", "left at 1s", "queue full at 0s, retry 1ms",
				"invalid limits at 1s", "left at 1s", "use Acquire at 1s", "use Acquire at 1s",
			},
		},
		{
			"the later end of two holds counts, for MaxWait too",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2, Depth: 9, MaxWait: 1000 * ms}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms}, {Kind: model.OpHold, Hold: 500 * ms}, {Kind: model.OpHold, Hold: -1},
				one, one, one,
				{At: 500 * ms, Kind: model.OpHold, Hold: 1001 * ms},
				{At: 500 * ms, Kind: model.OpWait, N: 1},
			}},
			[]string{
				"left at 0s", "left at 0s", "left at 0s", "left at 1.501s", "left at 1.501s",
				"too late at 0s, retry 100ms", "left at 500ms", "too late at 500ms, retry 101ms",
			},
		},
		{
			"Hold(0) lets those leave that the bucket lets leave",
			model.Script{Limits: shaper.Limits{Rate: 10, Depth: 9}, Ops: []model.Op{
				one, one, one, {Kind: model.OpHold, Hold: 365 * 24 * time.Hour},
				{At: 550 * ms, Kind: model.OpHold},
			}},
			[]string{"left at 0s", "left at 550ms", "left at 650ms", "left at 0s", "left at 550ms"},
		},
		{
			// As above, but the bucket is empty by the end of a hold.
			"a fraction of the level is not carried past a hold",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 500 * ms, Kind: model.OpHold, Hold: 1},
				{At: 500 * ms, Kind: model.OpWait, N: 3},
				{At: 500*ms + 2, Kind: model.OpLook},
			}},
			[]string{
				"left at 0s", "left at 500ms", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2",
			},
		},
		{
			// At rate.Inf no cost is too great, and a line is possible all the same.
			"costs in line may be more than any number holds",
			model.Script{Limits: shaper.Limits{Rate: rate.Inf, Depth: 9}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms},
				one, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt},
				{At: 1 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 1 * ms, Kind: model.OpWait, N: 1, Deadline: 2000 * ms},
				{At: 2 * ms, Kind: model.OpCancel, Target: 2},
				{At: 2 * ms, Kind: model.OpCancel, Target: 3},
				{At: 2 * ms, Kind: model.OpCancel, Target: 4},
				{At: 2 * ms, Kind: model.OpForecast, N: 1},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "context canceled at 2ms",
				"left at 1ms", "too late at 1ms, retry 2562047h47m14.855775808s",
				"left at 2ms", "left at 2ms", "left at 2ms", "left at 2ms, wait 998.000001ms",
			},
		},
		{
			"and so may the costs ahead of the last",
			model.Script{Limits: shaper.Limits{Rate: rate.Inf, Depth: 9}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms},
				one, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt},
				{At: 1 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 1 * ms, Kind: model.OpShutdown},
				{At: 1 * ms, Kind: model.OpForecast, N: 1},
				{At: 2 * ms, Kind: model.OpCancel, Target: 2},
				{At: 2 * ms, Kind: model.OpCancel, Target: 3},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "left at 1ms",
				"left at 1s", "closed at 1ms, retry 2562047h47m16.854775807s",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if strconv.IntSize == 32 && slices.ContainsFunc(test.Ops, func(op model.Op) bool { return op.N == math.MaxInt }) {
				t.Skip("a few ints of 32 bits never exceed 64 bits")
			}
			// What waits when a script ends is refused, so it ends late.
			test.Ops = append(test.Ops, model.Op{At: 10_000 * ms, Kind: model.OpLook})
			answers, open := test.Predict(model.NoMistake)
			require.Empty(t, open)
			var said []string
			for _, a := range answers[:len(test.want)] {
				line := fmt.Sprintf("%s at %v", a.Result, a.At)
				if a.Retry != 0 {
					line += fmt.Sprintf(", retry %v", a.Retry)
				}
				if a.Wait != 0 {
					line += fmt.Sprintf(", wait %v", a.Wait)
				}
				if a.Look.Level != 0 {
					line += fmt.Sprintf(", level %v", a.Look.Level)
				}
				said = append(said, line)
			}
			require.Equal(t, test.want, said)
			require.Empty(t, model.Compare(t, test.Script, answers, newSubject))
		})
	}
}

// TestModelOfKeys holds each key of a Group to a model of its own: random scripts,
// one for each key and all played at once, must agree as they do with a Shaper, and
// the totals of the Group with the sum of all models. Between the calls buckets
// drain, are deleted and made again, which no caller may notice, except that a new
// bucket does not know how long seats were held before.
func TestModelOfKeys(t *testing.T) {
	t.Parallel()
	budget := rounds(2_500, 40_000, 40_000)
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
		want.Reserved = model.AtMostMaxInt(want.Reserved)
		require.Equal(t, want, c.stats, "seed %d", seed)
	}
	require.Greater(t, made, 5*keys, "buckets come and go")
	t.Logf("%d operations of %d keys, whose limits were asked for %d times", done, keys, made)
}

// countAnswer counts the answer of a model to one operation.
func countAnswer(st *shaper.GroupStats, a model.Answer) {
	st.Reserved += a.Settled.Reserved
	st.GivenBack += a.Settled.GivenBack
	st.Charged += a.Settled.Charged
	st.Forfeited += a.Settled.Forfeited
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
func (m member) Forecast(n int) (time.Duration, error)  { return m.Group.Limiter(m.key).Forecast(n) }
func (m member) Hold(d time.Duration)                   { m.Group.Limiter(m.key).Hold(d) }

func (m member) Acquire(ctx context.Context, n int) (release func(), err error) {
	return m.Group.Acquire(ctx, m.key, n)
}

func (m member) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	return m.Group.Limiter(m.key).Reserve(ctx, estimate)
}

func (m member) AtMost(n int) { m.Group.Limiter(m.key).AtMost(n) }

func (m member) Stats() shaper.Stats {
	return m.Group.Limiter(m.key).Stats()
}

func (m member) Limits() shaper.Limits {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limits[m.key]
}

// SetLimits changes the result of the limits function for the key, and reloads. The Group must
// refuse limits that a Shaper refuses, if the key has a bucket.
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
