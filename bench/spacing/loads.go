package spacing

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const idle = "idle"

// A load is other work of the process, which keeps all its Ps busy.
type load struct {
	name       string
	what       string
	goroutines int
	// piece does some work, and has to return within some milliseconds. Each
	// goroutine calls it again and again, with a source of its own.
	piece func(random *rand.Rand)
}

// loads returns the loads of the busy experiment: one loop and one allocator for each P, and eight
// goroutines for each P that together ask for 1.6 times the processors there are.
func loads() []load {
	ps := runtime.GOMAXPROCS(0)
	return []load{
		{"loops", fmt.Sprintf("%d loops that never wait", ps), ps, func(*rand.Rand) { spin(100_000) }},
		{"allocators", fmt.Sprintf("%d goroutines that allocate without end", ps), ps, allocate},
		{"pieces", fmt.Sprintf("%d goroutines that work for 1 ms and nap for 4 ms, exponentially distributed", 8*ps), 8 * ps, workAndNap()},
	}
}

// loadNamed returns the load of that name; idle is one without goroutines.
// It panics if there is none.
func loadNamed(name string) load {
	all := append(loads(), load{name: idle})
	at := slices.IndexFunc(all, func(l load) bool { return l.name == name })
	if at < 0 {
		panic("no load is named " + name)
	}
	return all[at]
}

// A running load has to be stopped.
type runningLoad struct {
	quit atomic.Bool
	done atomic.Int64
	run  sync.WaitGroup
}

func (l load) start() *runningLoad {
	r := new(runningLoad)
	for i := range l.goroutines {
		r.run.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1)) // the same in each child process
			for !r.quit.Load() {
				l.piece(random)
				r.done.Add(1)
			}
		})
	}
	return r
}

// loadWithin bounds how long begun waits.
const loadWithin = time.Minute

// begun returns when a piece has been done: on a busy machine that may take longer than a
// window.
func (r *runningLoad) begun() {
	for start := time.Now(); r.pieces() == 0 && time.Since(start) < loadWithin; {
		time.Sleep(time.Millisecond)
	}
}

// pieces returns how many have been done so far.
func (r *runningLoad) pieces() int64 { return r.done.Load() }

// stop returns when the goroutines have gone.
func (r *runningLoad) stop() {
	r.quit.Store(true)
	r.run.Wait()
}

// spin is work that nothing but the processor does: rounds of an xorshift.
func spin(rounds int) {
	x := uint64(rounds) | 1
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 { // It never is, but the compiler does not know and keeps the work.
		panic("xorshift reached 0")
	}
}

// allocate leaves garbage of 1 to 16 KiB, and keeps a little of it for a while.
func allocate(random *rand.Rand) {
	var kept [64][]byte
	for i := range 16 * len(kept) {
		kept[i%len(kept)] = make([]byte, 1<<10*(1+random.IntN(16)))
	}
	runtime.KeepAlive(&kept)
}

// workAndNap makes pieces of a millisecond of work, on average, and naps of
// four. Work is counted in rounds, as an instant on the clock would count the
// time without a processor too.
func workAndNap() func(*rand.Rand) {
	const probe = 200_000
	fastest := time.Duration(1 << 62)
	for range 5 {
		began := time.Now()
		spin(probe)
		fastest = min(fastest, time.Since(began))
	}
	perMillisecond := probe * float64(time.Millisecond) / float64(max(1, fastest))
	return func(random *rand.Rand) {
		spin(int(random.ExpFloat64() * perMillisecond))
		time.Sleep(time.Duration(random.ExpFloat64() * 4 * float64(time.Millisecond)))
	}
}
