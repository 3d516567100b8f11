//go:build !race

package shaper_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// An attack is one flood of requests from so many addresses, through the real
// middleware, in a process of its own, while honest clients go on. (The race detector
// would take memory of its own.)
type attack struct {
	Spoofed, MaxKeys int

	// What came of it.
	Memory   int           // the most that the process has had, in KiB
	Before   time.Duration // median of the honest clients' waits without the flood
	During   time.Duration // and with it
	Stall    time.Duration // for how long at a time a goroutine that only sleeps was kept from running, at most
	Admitted int           // of the flood
	Refused  int           // of the honest
	Stats    shaper.GroupStats
}

// honest are clients, three callers each, who come again at once.
var honest = []string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1", "192.0.2.4:1"}

// TestSpoofingChild is the child process, and does nothing elsewhere.
func TestSpoofingChild(t *testing.T) {
	text := os.Getenv("SHAPER_ATTACK")
	if text == "" {
		t.Skip("it is run by TestSpoofedAddressesTakeNoMoreMemory")
	}
	var a attack
	require.NoError(t, json.Unmarshal([]byte(text), &a))
	a.run(t)
	result, err := json.Marshal(a)
	require.NoError(t, err)
	fmt.Printf("\nattack: %s\n", result)
}

func (a *attack) run(t *testing.T) {
	group, err := shaper.NewGroup(limitsUnderAttack, shaper.WithMaxKeys(a.MaxKeys))
	require.NoError(t, err)
	defer group.Close()
	h := group.Middleware(shaper.ByClientIP())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	const enoughWaits = 40 // for a median; in a second there are 80
	var mu sync.Mutex
	var waits []time.Duration
	few := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(waits) < enoughWaits
	}
	median := func() (d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		require.NotEmpty(t, waits, "the honest are served")
		slices.Sort(waits)
		d, waits = waits[len(waits)/2], nil
		return d
	}
	var callers sync.WaitGroup
	end := make(chan struct{})
	for _, client := range honest {
		for range 3 {
			callers.Go(func() {
				for {
					begin := time.Now()
					status := from(h, client)
					mu.Lock()
					if status == 200 {
						waits = append(waits, time.Since(begin))
					} else {
						a.Refused++
					}
					mu.Unlock()
					if status != 200 {
						time.Sleep(10 * time.Millisecond)
					}
					select {
					case <-end:
						return
					default:
					}
				}
			})
		}
	}
	time.Sleep(300 * time.Millisecond) // Until their lines are as long as they get.
	measure := func(f func()) time.Duration {
		a.Stall = max(a.Stall, realtime.LongestStall(f))
		return median()
	}
	measure(func() { realtime.Until(t, func() bool { return !few() }, "there are waits") })
	a.Before = measure(func() {
		time.Sleep(time.Second)
		realtime.Until(t, func() bool { return !few() }, "there are waits")
	})
	begin := time.Now()
	a.During = measure(func() {
		a.flood(h, func(i int) bool {
			since := time.Since(begin)
			return i < a.Spoofed || since < time.Second || few() && since < enough
		})
		require.False(t, few(), "the honest clients hardly ever leave during the flood")
	})
	close(end)
	callers.Wait()
	a.Stats = group.Stats()
	a.Memory = mostMemory(t)
}

// flood sends requests from other addresses, as long as goesOn says.
func (a *attack) flood(h http.Handler, goesOn func(i int) bool) {
	for i := 0; goesOn(i); i++ {
		if from(h, network64(i%a.Spoofed)) == 200 {
			a.Admitted++
		}
	}
}

// mostMemory is the most that this process has had in RAM, in KiB.
func mostMemory(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := bytes.Cut(status, []byte("VmHWM:"))
	require.True(t, found)
	kib, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	require.NoError(t, err)
	return kib
}

// start runs it in a child process.
func (a attack) start(t *testing.T) (result attack) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	text, err := json.Marshal(a)
	require.NoError(t, err)
	child := exec.Command(program, "-test.run=^TestSpoofingChild$", "-test.timeout=10m")
	child.Env = append(os.Environ(), "SHAPER_ATTACK="+string(text))
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, out, found := bytes.Cut(out, []byte("\nattack: "))
	require.True(t, found)
	out, _, _ = bytes.Cut(out, []byte("\n"))
	require.NoError(t, json.Unmarshal(out, &result))
	return result
}

func TestSpoofedAddressesTakeNoMoreMemory(t *testing.T) {
	attacks := []struct {
		attack
		most int // KiB
	}{{attack{Spoofed: 100_000, MaxKeys: 10_000}, 40 << 10}}
	if long {
		attacks = append(attacks, struct {
			attack
			most int
		}{attack{Spoofed: 1_000_000, MaxKeys: shaper.DefaultMaxKeys}, 100 << 10})
	}
	for _, row := range attacks {
		t.Run(fmt.Sprint(row.Spoofed), func(t *testing.T) {
			var a attack
			change := 0.0
			// A machine that has other work may change a wait itself.
			// One on which the honest callers do not run for 50 ms lets their buckets drain, and
			// then the flood may take their places.
			for tries := 0; tries < 3 || tries < 10 && a.Stall > 20*time.Millisecond; tries++ {
				a = row.start(t)
				change = float64(a.During-a.Before) / float64(a.Before)
				t.Logf("%d MiB; %v without, %v with; %d admitted; %d honest refused; stood still for up to %v",
					a.Memory>>10, a.Before, a.During, a.Admitted, a.Refused, a.Stall)
				if max(change, -change) < 0.05 && a.Refused == 0 {
					break
				}
			}
			require.Zero(t, a.Refused, "honest clients keep their places")
			require.InDelta(t, 0, change, 0.05, "of the honest clients' waits")
			require.Less(t, a.Memory, row.most, "KiB")
			free := row.MaxKeys - len(honest)
			require.GreaterOrEqual(t, a.Admitted, free)
			require.LessOrEqual(t, a.Admitted, free+1024)
			require.Equal(t, row.MaxKeys, a.Stats.Keys)
			// Those who were admitted are refused if they come a second time.
			require.Greater(t, float64(a.Stats.RefusedKeys), 0.95*float64(row.Spoofed-a.Admitted))
			require.Less(t, float64(a.Stats.RefusedKeys), 1.05*float64(row.Spoofed))
		})
	}
}
