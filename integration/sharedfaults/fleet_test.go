// Package sharedfaults_test shares buckets among several real processes, on real servers,
// and breaks something.
//
// A test starts a fleet of workers. A worker is this test binary, started again with a plan
// in its environment: it makes a Shaper with a shared bucket, sends requests through it as
// the plan says, and writes down each departure with the instant at which the shaper let
// it leave. The clock of those instants is the same for all processes. When the fleet has
// ended, the log of all departures is merged and judged by guarantee G1 of docs/shared-guarantees.md:
// every window of length W has at most ⌊(W + D) / T⌋ + Burst departures. That holds on a
// machine that is busy as well, as a late process drops its slots. How near the rate a fleet
// comes, how long it takes to recover, and how equal the shares are depends on the machine, so
// it is judged in bubbles alone, in the tests of package shaper.
//
// Gateways that have one line by package replicas are the exception: what a death costs is promised in seconds. Their test runs
// beside no other, and its figures hold on a machine that is not too busy.
package sharedfaults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// patience is how long a test waits for an event that must come. A busy machine may stop processes, each
// for itself, for some seconds; so a test says when something happens by instants that it has
// measured, and never that something has happened after so long. Nothing takes longer than a
// fail-over.
const patience = servers.Failover

// A fleet is several workers that share a bucket.
type fleet struct {
	t       *testing.T
	workers []*member
	finally []func(reports []report, l log) // what else to judge when it has ended
	marks   []model.SeatEvent               // what has happened to workers, with the time since 1970
}

// A member is a worker as its test sees it.
type member struct {
	t       *testing.T
	plan    plan
	command *exec.Cmd
	orders  io.WriteCloser
	answers *json.Decoder
	stderr  strings.Builder
	dead    bool
}

// four returns a plan for each of four workers that do the same.
func four(p plan) []plan { return []plan{p, p, p, p} }

// startFleet starts a worker for each plan, and waits until some requests of each have left.
// The workers end with the test.
func startFleet(t *testing.T, plans []plan) *fleet {
	t.Helper()
	f := &fleet{t: t}
	dir := t.TempDir()
	for i, p := range plans {
		p.Log = filepath.Join(dir, fmt.Sprint(i))
		f.workers = append(f.workers, startMember(t, p))
	}
	for _, m := range f.workers {
		m.answer()
	}
	time.Sleep(400 * time.Millisecond)
	f.leaves(time.Time{})
	return f
}

// adds starts one more worker.
func (f *fleet) adds(p plan) {
	f.t.Helper()
	p.Log = filepath.Join(filepath.Dir(f.plan().Log), fmt.Sprint(len(f.workers)))
	m := startMember(f.t, p)
	f.workers = append(f.workers, m)
	m.answer()
}

func startMember(t *testing.T, p plan) *member {
	text, err := json.Marshal(p)
	require.NoError(t, err)
	own, err := os.Executable()
	require.NoError(t, err)
	m := &member{t: t, plan: p, command: exec.Command(own)}
	m.command.Env = append(os.Environ(), planVariable+"="+string(text))
	m.command.Stderr = &m.stderr
	m.orders, err = m.command.StdinPipe()
	require.NoError(t, err)
	out, err := m.command.StdoutPipe()
	require.NoError(t, err)
	m.answers = json.NewDecoder(out)
	require.NoError(t, m.command.Start())
	t.Cleanup(m.kill)
	return m
}

// tells gives an order to the worker.
func (m *member) tells(o order) {
	m.t.Helper()
	require.NoError(m.t, json.NewEncoder(m.orders).Encode(o))
}

// answer returns the answer to the order given last.
func (m *member) answer() report {
	m.t.Helper()
	var r report
	if err := m.answers.Decode(&r); err != nil {
		m.kill()
		m.t.Fatalf("a worker gives no answer: %v\n%s", err, &m.stderr)
	}
	require.Empty(m.t, r.Err)
	require.Empty(m.t, r.Other)
	return r
}

// does gives an order to the worker, and returns its answer.
func (m *member) does(o order) report {
	m.t.Helper()
	m.tells(o)
	return m.answer()
}

// pause stops the worker in the middle of whatever it does; resume lets it go on.
func (m *member) pause()  { require.NoError(m.t, m.command.Process.Signal(syscall.SIGSTOP)) }
func (m *member) resume() { require.NoError(m.t, m.command.Process.Signal(syscall.SIGCONT)) }

// kill ends the worker at once, and returns when it has ended.
func (m *member) kill() {
	if m.dead {
		return
	}
	m.dead = true
	_ = m.command.Process.Kill() // It may have ended.
	_ = m.command.Wait()         // It was killed.
}

// each gives an order to all workers that live, and returns their answers. All carry it out
// at the same time.
func (f *fleet) each(o order) (reports []report) {
	f.t.Helper()
	for _, m := range f.workers {
		if !m.dead {
			m.tells(o)
		}
	}
	for _, m := range f.workers {
		if !m.dead {
			reports = append(reports, m.answer())
		}
	}
	return reports
}

// ends lets no more requests come, waits until those that wait have left, ends the workers,
// and returns the last word of each that lived, and the log of all.
func (f *fleet) ends() ([]report, log) {
	f.t.Helper()
	f.each(order{Do: quiet})
	reports := f.each(order{Do: shutdown})
	for _, m := range f.workers {
		m.kill()
	}
	l := f.log()
	for _, judge := range f.finally {
		judge(reports, l)
	}
	return reports, l
}

// plan returns the plan of the first worker. In most tests all have the same.
func (f *fleet) plan() plan { return f.workers[0].plan }

// log returns all entries of all workers so far, in the order of time.
func (f *fleet) log() (l log) {
	f.t.Helper()
	for i, m := range f.workers {
		written, err := readLog(i, m.plan.Log)
		require.NoError(f.t, err)
		l = append(l, written...)
	}
	slices.SortStableFunc(l, func(a, b entry) int { return a.at.Compare(b.at) })
	return l
}

// accounts requires that every cost unit that a worker has leased has been used, dropped or
// given back, of those workers that lived to the end and have only left by the bucket.
func (f *fleet) accounts(reports []report) {
	f.t.Helper()
	for _, r := range reports {
		b := r.Stats.Bucket
		require.Equal(f.t, b.Leased, r.Stats.Departed+b.Dropped+b.GivenBack+uint64(b.Held), "%+v", b)
		require.Zero(f.t, b.Held)
	}
}

// until waits until a condition holds. If it never does, the failure shows the reports of the workers.
func (f *fleet) until(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(f.t, "never: "+what, "%+v", f.each(order{Do: tell}))
		}
	}
}

// leaves waits until a request has left, from an instant on, of each of the given workers, or of
// each that lives.
func (f *fleet) leaves(from time.Time, of ...int) {
	f.t.Helper()
	f.until("requests of each worker leave", func() bool {
		l := f.log().only(departed).where(func(e entry) bool { return !e.at.Before(from) })
		for i, m := range f.workers {
			asked := !m.dead && (len(of) == 0 || slices.Contains(of, i))
			if asked && len(l.of(i)) == 0 {
				return false
			}
		}
		return true
	})
}

// waitsFor waits until a condition holds for the reports of all workers that live.
func (f *fleet) waitsFor(what string, is func(report) bool) {
	f.t.Helper()
	f.until(what, func() bool {
		return !slices.ContainsFunc(f.each(order{Do: tell}), func(r report) bool { return !is(r) })
	})
}

// waitsForState waits until each worker that lives finds its bucket in a state. In the state
// [shared.StateShared] the latest call of each has succeeded.
func (f *fleet) waitsForState(s shared.State) {
	f.t.Helper()
	f.waitsFor("each finds its bucket "+string(s), func(r report) bool {
		return r.Stats.Bucket.State == s && (s != shared.StateShared || r.Broken == "")
	})
}

// planVariable has the plan of a worker as JSON. A process that has it is a worker.
const planVariable = "SHAREDFAULTS_PLAN"

// A plan is the work of a worker.
type plan struct {
	Addr string // of a server of Redis, or the URL of one of PostgreSQL
	Key  string

	Rate  float64
	Burst int
	Slack time.Duration // D
	Guard time.Duration

	Waiters int    // goroutines that wait again and again
	Log     string // the file that the worker writes

	Cap               int           // of all workers; 0: none
	Shortest, Longest time.Duration // for how long calls are under way, if there is a cap
	Part              float64       // calls also come at random, so that on average they take this part of all seats
}

// held returns L, the most cost units that one worker may have leased: two batches. A batch
// is never for more requests than wait, nor longer than 50 ms unless round trips are long.
func (p plan) held() int64 {
	batch := max(1, int64(p.Rate/20))
	return 2 * min(batch, int64(p.Waiters))
}

// time returns the time of n cost units.
func (p plan) time(n int64) time.Duration {
	return time.Duration(float64(n) / p.Rate * float64(time.Second))
}

// limits returns the limits of the worker's Shaper, whose line refuses nobody.
func (p plan) limits() shaper.Limits {
	return shaper.Limits{Rate: rate.Limit(p.Rate), Burst: p.Burst, Depth: 10_000, Slack: p.Slack}
}

// An order is a message of a test to a worker, a line of JSON on its standard input. The worker
// carries out one after the other, and answers each with a line of its output.
type order struct {
	Do   string  // one of those below
	Rate float64 // of setRate
	For  int     // of meet429, in seconds
}

const (
	quiet    = "quiet"    // let no more requests come
	goes     = "goes"     // let all in line give up, and no more requests come
	comes    = "comes"    // let them come again
	tell     = "tell"     // nothing but the answer
	setRate  = "setRate"  // change the rate of all
	meet429  = "meet429"  // send a request that is answered with 429 and Retry-After
	shutdown = "shutdown" // Shutdown
)

// A report is the answer of a worker to an order.
type report struct {
	Err    string // of the order; "" if there was none
	Stats  shaper.Stats
	Broken string // Stats.Bucket.Err, which JSON can't carry
	Other  string // a call returned an error that no call should; "" if none did
}

// A worker is one of the processes that share a bucket.
type worker struct {
	plan   plan
	shaper *shaper.Shaper
	log    *os.File
	epoch  time.Time // an instant of this process
	wall   int64     // the reading of the machine's clock then, in nanoseconds since 1970

	quiet    atomic.Bool
	line     context.Context // of the requests that wait; nil: none come. Guarded by mu
	leaves   context.CancelFunc
	mu       sync.Mutex
	arrivals sync.WaitGroup
	other    atomic.Pointer[string]
}

// work is the main function of a worker. It ends when its standard input does, so that no
// worker outlives its test.
func work(text string) {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.plan); err != nil {
		panic(err)
	}
	w.epoch, w.wall = sameInstant()
	var err error
	if w.log, err = os.OpenFile(w.plan.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666); err != nil {
		panic(err)
	}
	bucket, closeBucket, err := openBucket(w.plan)
	if err != nil {
		panic(err)
	}
	if w.plan.Cap > 0 {
		bucket = noted{bucket, w}
	}
	w.shaper, err = shaper.New(w.plan.limits(), shaper.WithTrace(w.trace()), shaper.WithBucket(bucket, w.plan.Key, shared.Options{
		ColdGuard: w.plan.Guard,
		InFlight:  w.plan.Cap,
		Patience:  time.Minute, // longer than any outage here, also on a busy machine
	}))
	if err != nil {
		panic(err)
	}
	w.comes()
	for range w.plan.Waiters {
		w.arrivals.Go(func() {
			for !w.quiet.Load() {
				w.request()
			}
		})
	}
	if w.plan.Part > 0 {
		w.arrivals.Go(w.requestsAtRandom)
	}
	answers := json.NewEncoder(os.Stdout)
	orders := bufio.NewScanner(os.Stdin)
	for err := error(nil); answers.Encode(w.report(err)) == nil && orders.Scan(); {
		var o order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			panic(err)
		}
		err = w.obey(o)
	}
	w.shaper.Close()
	closeBucket()
}

// sameInstant returns an instant of this process, and the reading at it of the clock of
// the machine, which all processes share. [time.Now] reads one clock after the other and
// may be interrupted between, so the middle one of many attempts counts.
func sameInstant() (time.Time, int64) {
	epoch := time.Now()
	attempts := make([]int64, 201)
	for i := range attempts {
		now := time.Now()
		attempts[i] = now.UnixNano() - int64(now.Sub(epoch))
	}
	slices.Sort(attempts)
	return epoch, attempts[len(attempts)/2]
}

// write writes an entry down, with an instant and how long something has taken until then.
func (w *worker) write(o outcome, at time.Time, took time.Duration) {
	// One write for each: a worker that is killed has written all that has left.
	line := fmt.Appendf(nil, "%c %d %d\n", o, w.wall+int64(at.Sub(w.epoch)), int64(took))
	if _, err := w.log.Write(line); err != nil {
		panic(err)
	}
}

// trace returns hooks that write each request down when it ends.
func (w *worker) trace() *shaper.Trace {
	write := func(o outcome, e shaper.Event) { w.write(o, e.At, e.Waited) }
	return &shaper.Trace{
		Departed: func(ctx context.Context, e shaper.Event) {
			if left, ok := ctx.Value(leftKey{}).(*time.Time); ok {
				*left = e.At
			}
			write(departed, e)
		},
		Refused: func(_ context.Context, e shaper.Event) {
			if errors.Is(e.Err, shaper.ErrUnavailable) {
				write(unavailable, e)
				return
			}
			write(refused, e)
		},
	}
}

func (w *worker) report(err error) report {
	r := report{Stats: w.shaper.Stats()}
	if err != nil {
		r.Err = err.Error()
	}
	if broken := r.Stats.Bucket.Err; broken != nil {
		r.Broken, r.Stats.Bucket.Err = broken.Error(), nil
	}
	if other := w.other.Load(); other != nil {
		r.Other = *other
	}
	return r
}

func (w *worker) obey(o order) error {
	switch o.Do {
	case quiet:
		w.quiet.Store(true)
		w.arrivals.Wait()
	case goes:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.leaves()
		w.line = nil
	case comes:
		w.comes()
	case setRate:
		l := w.plan.limits()
		l.Rate = rate.Limit(o.Rate)
		return w.shaper.SetLimits(l)
	case meet429:
		transport := shaper.Transport{Limiter: w.shaper, Base: busy(o.For)}
		r, err := http.NewRequest(http.MethodGet, "http://upstream.invalid/", nil)
		if err != nil {
			return err
		}
		var left time.Time
		w.write(came, time.Now(), 0)
		answer, err := transport.RoundTrip(r.WithContext(context.WithValue(r.Context(), leftKey{}, &left)))
		if err != nil {
			return err
		}
		now := time.Now()
		w.write(ended, now, now.Sub(left))
		return answer.Body.Close()
	case shutdown:
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return w.shaper.Shutdown(ctx)
	case tell:
	default:
		return fmt.Errorf("no such order: %q", o.Do)
	}
	return nil
}

// busy is an upstream that asks for a pause of so many seconds.
type busy int

func (b busy) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {strconv.Itoa(int(b))}}, Body: http.NoBody}, nil
}

// comes lets requests come.
func (w *worker) comes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line, w.leaves = context.WithCancel(context.Background())
}

// leftKey is the key of a context for where to write down when a request has left.
type leftKey struct{}

// request sends one request through the shaper, and if it is refused waits for a while. With a cap a call follows.
func (w *worker) request() {
	w.mu.Lock()
	ctx := w.line
	w.mu.Unlock()
	if ctx == nil {
		time.Sleep(20 * time.Millisecond)
		return
	}
	var err error
	if w.plan.Cap == 0 {
		err = w.shaper.Wait(ctx)
	} else {
		var left time.Time
		var release func()
		w.write(came, time.Now(), 0)
		release, err = w.shaper.Acquire(context.WithValue(ctx, leftKey{}, &left), 1)
		if err == nil {
			time.Sleep(w.plan.Shortest + rand.N(w.plan.Longest-w.plan.Shortest+1))
			now := time.Now()
			w.write(ended, now, now.Sub(left))
		} else {
			w.write(gaveUp, time.Now(), 0)
		}
		release()
	}
	refusal, isRefusal := errors.AsType[*shaper.RejectError](err)
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, shaper.ErrClosed):
		w.quiet.Store(true)
	case isRefusal && refusal.RetryAfter > 0:
		time.Sleep(20 * time.Millisecond)
	default: // A refusal without RetryAfter, too.
		text := err.Error()
		w.other.CompareAndSwap(nil, &text)
		w.quiet.Store(true)
	}
}

// requestsAtRandom lets requests come one by one, so that on average their calls take a part of all seats.
func (w *worker) requestsAtRandom() {
	mean := float64(w.plan.Shortest+w.plan.Longest) / 2 / (w.plan.Part * float64(w.plan.Cap))
	for !w.quiet.Load() {
		time.Sleep(time.Duration(rand.ExpFloat64() * mean))
		w.arrivals.Go(w.request)
	}
}

// noted is a Bucket with seats whose answers are written down.
type noted struct {
	shared.Bucket
	w *worker
}

func (n noted) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	asked := time.Now()
	told, err := n.Bucket.(shared.Seater).Seats(ctx, q)
	if err == nil {
		now := time.Now()
		n.w.write(seated, now, now.Sub(asked))
	}
	return told, err
}

// fleets is how many tests run at once. Most of a test's time is waiting, but fleets of four
// processes need a processor each time they wake.
const fleets = "5"

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // It prints each connection that fails.
	if text := os.Getenv(planVariable); text != "" {
		work(text)
		return
	}
	if text := os.Getenv(gatewayVariable); text != "" {
		serveGateway(text)
		return
	}
	if err := flag.Set("test.parallel", fleets); err != nil { // The command line is read later, and wins.
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// atLength leaves a test out that takes long and is of a rare fault, unless the long form is wanted.
func atLength(t *testing.T) {
	t.Helper()
	if os.Getenv("SHAPER_LONG") == "" {
		t.Skip("SHAPER_LONG=1 runs it")
	}
}
