package shaper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/shared"
)

// A witness is asked by each function of a caller's, and finds out whether a lock is held meanwhile.
type witness struct {
	t     *testing.T
	locks []*sync.Mutex

	mu    sync.Mutex
	heard map[string]bool
}

func (w *witness) hear(name string) {
	for _, lock := range w.locks {
		free := false
		for range 1_000_000 { // Another goroutine, such as the ticker's, may hold it for a moment, and be preempted.
			if free = lock.TryLock(); free {
				lock.Unlock()
				break
			}
			runtime.Gosched()
		}
		if !free {
			w.t.Errorf("%s runs under a lock", name)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard[name] = true
}

func (w *witness) watch(d *dispatcher) { w.locks = append(w.locks, &d.mu, &d.ticker.mu) }

func (w *witness) trace() *Trace {
	hook := func(name string) func(context.Context, Event) {
		return func(context.Context, Event) { w.hear(name) }
	}
	return &Trace{
		Enqueued: hook("Trace.Enqueued"), Departed: hook("Trace.Departed"), Refused: hook("Trace.Refused"), Abandoned: hook("Trace.Abandoned"),
		Bucket: func(context.Context, shared.Event) { w.hear("Trace.Bucket") },
	}
}

// context returns a context whose methods are a caller's.
func (w *witness) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	return witnessContext{ctx, w}, cancel
}

type witnessContext struct {
	context.Context
	w *witness
}

func (c witnessContext) Err() error { c.w.hear("Context.Err"); return c.Context.Err() }
func (c witnessContext) Deadline() (time.Time, bool) {
	c.w.hear("Context.Deadline")
	return c.Context.Deadline()
}
func (c witnessContext) Done() <-chan struct{} { c.w.hear("Context.Done"); return c.Context.Done() }
func (c witnessContext) Value(key any) any     { c.w.hear("Context.Value"); return c.Context.Value(key) }

// A witnessBucket is a Bucket of a caller's, which can be taken away.
type witnessBucket struct {
	w     *witness
	away  bool
	level shared.BucketLevel
}

func (b *witnessBucket) Take(_ context.Context, t shared.Take) (taken shared.Taken, err error) {
	b.w.hear("Bucket.Take")
	if b.away {
		return taken, errors.New("away")
	}
	b.level, taken = t.Apply(b.level, time.Now().UnixMicro())
	return taken, nil
}

func (b *witnessBucket) GiveBack(_ context.Context, t shared.Take, end shared.Instant) error {
	b.w.hear("Bucket.GiveBack")
	b.level = t.ApplyGiveBack(b.level, end)
	return nil
}

// Handle and the others make it a slog.Handler.
func (w *witness) Handle(context.Context, slog.Record) error { w.hear("Logger"); return nil }
func (w *witness) Enabled(context.Context, slog.Level) bool  { w.hear("Logger enabled"); return true }
func (w *witness) WithAttrs([]slog.Attr) slog.Handler        { return w }
func (w *witness) WithGroup(string) slog.Handler             { return w }

// visit sends two requests at once, of which the second one is refused.
func visit(h http.Handler) {
	for range 2 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("body")))
	}
}

// No function of a caller's runs while a lock is held: it may call any method, and may be slow.
func TestNoFunctionOfACallerRunsUnderALock(t *testing.T) {
	limits := Limits{Rate: 1, Depth: 1}
	key := func(w *witness) KeyFunc {
		return func(*http.Request) (string, error) { w.hear("KeyFunc"); return "a", nil }
	}
	for name, c := range map[string]struct {
		use   func(t *testing.T, w *witness)
		hears string
	}{
		"Shaper": {func(t *testing.T, w *witness) {
			s, err := New(limits, WithTrace(w.trace()), WithFairQueue(func(string) int { w.hear("weight"); return 1 }))
			require.NoError(t, err)
			w.watch(&s.dispatcher)
			for range 2 { // The first one leaves, the second waits, the third one pushes nobody out.
				ctx, _ := w.context()
				go func() { _ = s.For("a").Wait(ctx) }()
				synctest.Wait()
			}
			_ = s.For("a").Wait(t.Context())
			time.Sleep(2 * time.Second)
			ctx, cancel := w.context()
			require.True(t, s.Allow())
			go func() { _ = s.Wait(ctx) }()
			synctest.Wait()
			cancel()
			synctest.Wait()
			_, _ = s.For("a").Forecast(1)
			require.NoError(t, s.UpdateLimits(func(l Limits) Limits { w.hear("change"); return l }))
			require.NoError(t, s.Close())
		}, "Trace.Enqueued Trace.Departed Trace.Refused Trace.Abandoned weight Context.Err Context.Deadline Context.Done change"},
		"Middleware": {func(t *testing.T, w *witness) {
			s, err := New(limits, WithFairQueue(nil))
			require.NoError(t, err)
			w.watch(&s.dispatcher)
			require.True(t, s.Allow())
			h := Middleware(s, WithKey(key(w)), WithCost(func(*http.Request) int { w.hear("cost"); return 1 }), WithLogger(slog.New(w)),
				WithErrorHandler(func(http.ResponseWriter, *http.Request, error) { w.hear("error handler") }),
			)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.hear("handler") }))
			go visit(h) // It waits.
			synctest.Wait()
			visit(h)
			time.Sleep(time.Minute)
		}, "KeyFunc cost Logger handler"},
		"Transport": {func(t *testing.T, w *witness) {
			s, err := New(Limits{Rate: 1, Depth: 9, Burst: 9}, WithFairQueue(nil))
			require.NoError(t, err)
			w.watch(&s.dispatcher)
			statuses := []int{429, 200}
			tr := &Transport{
				Limiter: s, Retry: true, Key: key(w), Cost: func(*http.Request) int { w.hear("cost"); return 1 },
				Actual: func(*http.Response) func() int {
					w.hear("Actual")
					return func() int { w.hear("actual cost"); return 1 }
				},
				HoldFor: func(*http.Response) time.Duration { w.hear("HoldFor"); return time.Second },
				Base: witnessBase(func(r *http.Request) (*http.Response, error) {
					w.hear("Base")
					status := statuses[0]
					statuses = statuses[1:]
					return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x")), Request: r}, nil
				}),
			}
			r, err := http.NewRequest("POST", "http://a/", strings.NewReader("body"))
			require.NoError(t, err)
			getBody := r.GetBody
			r.GetBody = func() (io.ReadCloser, error) { w.hear("GetBody"); return getBody() }
			answer, err := tr.RoundTrip(r)
			require.NoError(t, err)
			require.Equal(t, 200, answer.StatusCode)
			require.NoError(t, answer.Body.Close())
			require.NoError(t, s.Close())
		}, "KeyFunc cost Actual HoldFor Base GetBody"},
		"Group": {func(t *testing.T, w *witness) {
			b := &witnessBucket{w: w}
			g, err := NewGroup(func(string) (Limits, error) { w.hear("limits"); return limits, nil }, WithTrace(w.trace()),
				WithBuckets(b, func(k string) string { w.hear("bucket key"); return k }, shared.Options{}))
			require.NoError(t, err)
			for _, s := range g.all {
				w.watch(&s.dispatcher)
			}
			w.locks = append(w.locks, &g.drain.begins, &g.drain.mu)
			h := g.Middleware(key(w), WithCost(func(*http.Request) int { w.hear("cost"); return 1 }))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			go visit(h)
			synctest.Wait()
			visit(h)
			time.Sleep(time.Minute)
			ctx, cancel := w.context()
			for range 3 {
				go func() { _ = g.Wait(ctx, "a") }()
			}
			synctest.Wait()
			cancel()
			synctest.Wait()
			g.Reload()
			_, err = g.Snapshot()
			require.NoError(t, err)
			b.away = true
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 9 {
				_ = g.Wait(ctx, "a")
				_ = g.Wait(ctx, "b")
			}
			require.NoError(t, g.Close())
		}, "limits bucket_key KeyFunc cost Bucket.Take Bucket.GiveBack Trace.Bucket Trace.Enqueued Trace.Departed Trace.Refused Trace.Abandoned Context.Err"},
		"Chain": {func(t *testing.T, w *witness) {
			s, err := New(Limits{Rate: 1, Depth: 9, Burst: 9, InFlight: 9})
			require.NoError(t, err)
			w.watch(&s.dispatcher)
			c := Chain(Priced(s, func(int) int { w.hear("price"); return 1 }))
			_, err = c.Forecast(1)
			require.NoError(t, err)
			require.NoError(t, s.Do(t.Context(), 1, func(context.Context) error { w.hear("Do"); return nil }))
			require.NoError(t, c.Spend(t.Context(), 1, func(context.Context) (int, error) { w.hear("Spend"); return 1, nil }))
		}, "price Do Spend"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{t: t, heard: map[string]bool{}}
				c.use(t, w)
				synctest.Wait()
				for _, name := range strings.Fields(c.hears) {
					require.True(t, w.heard[strings.ReplaceAll(name, "_", " ")], "%s was not called: %v", name, w.heard)
				}
			})
		})
	}
}

type witnessBase func(*http.Request) (*http.Response, error)

func (f witnessBase) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What a caller's function does at the end of a request may end the request: a body that is closed again, a
// release that is called again.
func TestTheEndOfARequestMayCallItself(t *testing.T) {
	s, err := New(Limits{Rate: 1, Burst: 9, Depth: 9})
	require.NoError(t, err)
	base := witnessBase(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x")), Request: r}, nil
	})
	tr := &Transport{Limiter: s, Base: base, Actual: func(response *http.Response) func() int {
		return func() int {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			return 1
		}
	}}
	var release func()
	foreign := &foreignSeats{func() { release() }}
	for name, end := range map[string]func(){
		"a body is closed in Actual": func() {
			r, err := http.NewRequest("GET", "http://a/", nil)
			require.NoError(t, err)
			answer, err := tr.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
		},
		"a release of a Chain is called in one of its releases": func() {
			var err error
			release, err = Chain(foreign).Acquire(t.Context(), 1)
			require.NoError(t, err)
			release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan bool, 1)
			go func() { end(); ended <- true }()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Fatal("it waits for itself")
			}
		})
	}
}

// foreignSeats is a Limiter with a cap, of which another package is the author.
type foreignSeats struct{ release func() }

func (*foreignSeats) WaitN(context.Context, int) error { return nil }

func (f *foreignSeats) Acquire(context.Context, int) (func(), error) { return f.release, nil }
