package made

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// SeatsStayBelowTheCap lets eight processes ask for five seats of a key, in haste and at random, while breaks makes
// something go wrong, and until each of them has got seats since. The seats that they have together are never more than
// five, whatever they have heard. It takes longer than a guard, and less than a lease.
func SeatsStayBelowTheCap(t testing.TB, b shared.Seater, key string, breaks func()) {
	t.Helper()
	const processes, seats = 8, 5
	var mu sync.Mutex
	have := make([]int, processes)
	got := make([]int, processes) // how often each got a seat
	failed, most := 0, 0
	over := make(chan struct{})
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 2))
			q := shared.Seating{Key: key, ID: fmt.Sprint("process ", i), Cap: seats}
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(random.IntN(20)) * time.Millisecond):
				}
				q.Want, q.Number = random.IntN(seats+1), q.Number+1
				mu.Lock()
				have[i] -= random.IntN(have[i] + 1) // It gives them back before it says so.
				q.Held = have[i]
				mu.Unlock()
				ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
				answer, err := b.Seats(ctx, q)
				cancel()
				mu.Lock()
				if err != nil {
					failed++
				} else {
					if answer.Held > q.Held {
						got[i]++
					}
					have[i], q.Answered = answer.Held, q.Number
					if answer.Held == 0 && q.Want == 0 {
						q.Answered = 0
					}
				}
				sum := 0
				for _, n := range have {
					sum += n
				}
				if most = max(most, sum); sum > seats {
					t.Errorf("%d seats of %d are in use: %v, after %+v has got %+v, %v", sum, seats, have, q, answer, err)
				}
				mu.Unlock()
			}
		})
	}
	each := func(when string) { eachCounts(t, &mu, got, when) }
	each("before")
	breaks()
	each("afterwards")
	close(over)
	all.Wait()
	t.Logf("at most %d of %d seats were in use, %d calls failed", most, seats, failed)
	if most < seats {
		t.Errorf("only %d of %d seats were ever in use, which is no trial", most, seats)
	}
}

// OneKeeps lets three processes try to keep a key by leases of 300 ms, now and then give it up, or say nothing for a while,
// while breaks makes something go wrong, and until each of them has kept it since. No two of them ever keep it at once, by what
// they have heard.
func OneKeeps(t testing.TB, b shared.Keeper, key string, breaks func()) {
	t.Helper()
	const processes, lease = 3, 300 * time.Millisecond
	var mu sync.Mutex
	until := make([]time.Time, processes)
	kept := make([]int, processes)
	failed := 0
	over := make(chan struct{})
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for n := 0; ; n++ {
				pause := time.Duration(random.IntN(50)) * time.Millisecond
				if random.IntN(20) == 0 {
					pause = 2 * lease
				}
				select {
				case <-over:
					return
				case <-time.After(pause):
				}
				k := shared.Keeping{Key: key, ID: fmt.Sprint("process ", i), Lease: lease, Value: fmt.Appendf(nil, "%d of %d", n, i)}
				if random.IntN(10) == 0 {
					k.Lease = 0
					mu.Lock()
					until[i] = time.Time{}
					mu.Unlock()
				}
				ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
				asked := time.Now()
				answer, err := b.Keep(ctx, k)
				cancel()
				mu.Lock()
				switch {
				case err != nil:
					failed++
				case answer.ID == k.ID:
					until[i] = asked.Add(lease)
					kept[i]++
				default:
					until[i] = time.Time{}
				}
				now, keepers := time.Now(), 0
				for _, u := range until {
					if now.Before(u) {
						keepers++
					}
				}
				if keepers > 1 {
					t.Errorf("%d processes keep the key, after %+v has got %+v, %v", keepers, k, answer, err)
				}
				mu.Unlock()
			}
		})
	}
	each := func(when string) { eachCounts(t, &mu, kept, when) }
	each("before")
	breaks()
	each("afterwards")
	close(over)
	all.Wait()
	t.Logf("%d calls failed", failed)
}

// eachCounts waits until each of some counts, which begin anew, is above 0.
func eachCounts(t testing.TB, mu *sync.Mutex, counts []int, when string) {
	t.Helper()
	mu.Lock()
	clear(counts)
	mu.Unlock()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		least := slices.Min(counts)
		mu.Unlock()
		if least > 0 {
			return
		}
		if time.Since(began) > time.Minute {
			t.Errorf("%s not each gets what it asks for", when)
			return
		}
	}
}

// SeatsBesideTake measures a step of seats, of which a key has 20, for so many processes that all wait for more than there are,
// and now and then give one back. Each step has a Take of another key for its neighbour, so that a busy machine slows both.
// It reports the medians and their ratio. Seats of the key must be given at once.
func SeatsBesideTake(b *testing.B, bucket interface {
	shared.Bucket
	shared.Seater
}, key string, processes int) {
	asks := make([]shared.Seating, processes)
	for i := range asks {
		asks[i] = shared.Seating{Key: key, ID: fmt.Sprintf("process-%08x-%d", uint32(i)*2654435761, i), Cap: 20, Want: 10}
	}
	take := shared.Take{Key: key + " of a level", Cost: 1, First: 1, Rate: shared.BucketRate{Version: 1, Micros: 1, Parts: 1, Burst: 1}}
	var takes, steps []float64
	var most, had int
	for i := 0; b.Loop(); i++ {
		q := &asks[i%processes]
		q.Number++
		if i%3 == 0 && q.Held > 0 {
			q.Held--
		}
		began := time.Now()
		if _, err := bucket.Take(b.Context(), take); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		answer, err := bucket.Seats(b.Context(), *q)
		if err != nil {
			b.Fatal(err)
		}
		takes = append(takes, float64(between.Sub(began).Microseconds()))
		steps = append(steps, float64(time.Since(between).Microseconds()))
		q.Held, q.Answered = answer.Held, q.Number
		had = 0
		for _, q := range asks {
			had += q.Held
		}
		most = max(most, had)
	}
	if want := min(20, 10*processes); most > 20 || b.N > 200 && most < want {
		b.Fatalf("%d seats of 20 were in use", most)
	}
	slices.Sort(takes)
	slices.Sort(steps)
	b.ReportMetric(takes[len(takes)/2], "µs/Take")
	b.ReportMetric(steps[len(steps)/2], "µs/Seats")
	b.ReportMetric(steps[len(steps)/2]/takes[len(takes)/2], "Takes/Seats")
}
