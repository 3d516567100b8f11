package replicas_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever happens, no window is above the bound of one line, no call is sent twice, and each caller gets one answer.
func TestNoWindowIsAboveTheBound(t *testing.T) {
	seeds := uint64(8)
	if os.Getenv("SHAPER_LONG") != "" {
		seeds = 300
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tryBound(t, seed) })
		})
	}
}

func tryBound(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 43))
	const nodes, callers = 3, 150
	o := options{nodes: nodes, quota: thousand, burst: burst, answers: func(w http.ResponseWriter, r *http.Request) {
		sleep(r, rand.N(2*time.Second))
		fmt.Fprint(w, "{}")
	}}
	f := newFleet(t, o)
	f.keeper()
	statuses, ended := make(chan reply, callers), make(chan bool)
	var over atomic.Bool
	for i := range callers {
		go func() {
			for number := 0; !over.Load(); number++ {
				name := fmt.Sprintf("%d-%d", i, number)
				got := <-f.call((i+number)%nodes, fmt.Sprint(i%10), name)
				if got.err != nil {
					time.Sleep(100 * time.Millisecond)
				}
				statuses <- got
			}
			ended <- true
		}()
	}
	counts, lost := map[int]int{}, 0
	collected := make(chan bool)
	go func() {
		for got := range statuses {
			if counts[got.status]++; got.err != nil {
				lost++
			}
		}
		close(collected)
	}()
	for range 30 {
		time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second))))
		n := f.nodes[random.IntN(nodes)]
		switch random.IntN(7) {
		case 0:
			n.kill()
			time.Sleep(time.Duration(random.Int64N(int64(5 * time.Second))))
			f.start(n.number, o)
		case 1:
			_ = n.Shutdown(t.Context())
			time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
			n.kill()
			f.start(n.number, o)
		case 2:
			n.store.isCut.Store(true)
		case 3:
			f.away(true)
			time.Sleep(time.Duration(random.Int64N(int64(6 * time.Second))))
			f.away(false)
		case 4:
			f.store.Wipe()
		case 5:
			for other := range nodes {
				f.network.breaks(addressOf(other), addressOf(n.number))
			}
		case 6:
			f.store.SetDelay(time.Duration(random.Int64N(int64(200*time.Millisecond))), time.Duration(random.Int64N(int64(200*time.Millisecond))))
		}
		for _, n := range f.nodes {
			if random.IntN(2) == 0 && !n.isDead.Load() {
				n.store.isCut.Store(false)
			}
		}
	}
	f.away(false)
	over.Store(true)
	for range callers {
		<-ended
	}
	close(statuses)
	<-collected
	f.once()
	sent := f.got()
	for from := range sent {
		for to := from; to < len(sent); to++ {
			most := float64(burst+sent[to].at-sent[from].at)/float64(interval) + 1e-6
			if float64(to-from+1) <= most {
				continue
			}
			require.Failf(t, "a window is above the bound", "from %v at %d to %v at %d", sent[from].at, sent[from].by, sent[to].at, sent[to].by)
		}
	}
	t.Logf("%d calls sent, statuses %v, %d connections broken", len(sent), counts, lost)
	require.Greater(t, counts[200], len(sent)/2)
	for status := range counts {
		require.Contains(t, []int{0, 200, http.StatusBadGateway, http.StatusServiceUnavailable}, status)
	}
}
