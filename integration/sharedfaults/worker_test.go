package sharedfaults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

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
}

const (
	quiet    = "quiet"    // let no more requests come
	tell     = "tell"     // nothing but the answer
	setRate  = "setRate"  // change the rate of all
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
	w.shaper, err = shaper.New(w.plan.limits(), shaper.WithTrace(w.trace()), shaper.WithBucket(bucket, w.plan.Key, shared.Options{
		ColdGuard: w.plan.Guard,
		Patience:  time.Minute, // longer than any outage here, also on a busy machine
	}))
	if err != nil {
		panic(err)
	}
	for range w.plan.Waiters {
		w.arrivals.Go(func() {
			for !w.quiet.Load() {
				w.request()
			}
		})
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

// trace returns hooks that write each request down when it ends.
func (w *worker) trace() *shaper.Trace {
	write := func(o outcome, e shaper.Event) {
		// One write for each: a worker that is killed has written all that has left.
		line := fmt.Appendf(nil, "%c %d %d\n", o, w.wall+int64(e.At.Sub(w.epoch)), int64(e.Waited))
		if _, err := w.log.Write(line); err != nil {
			panic(err)
		}
	}
	return &shaper.Trace{
		Departed: func(_ context.Context, e shaper.Event) { write(departed, e) },
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
	case setRate:
		l := w.plan.limits()
		l.Rate = rate.Limit(o.Rate)
		return w.shaper.SetLimits(l)
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

// request sends one request through the shaper, and if it is refused waits for a while.
func (w *worker) request() {
	err := w.shaper.Wait(context.Background())
	refusal, isRefusal := errors.AsType[*shaper.RejectError](err)
	switch {
	case err == nil:
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
