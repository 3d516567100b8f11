package buckettest_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// tenPerSecond has an interval of 100 ms.
var tenPerSecond = shared.BucketRate{Version: 1, Micros: 100_000, Parts: 1, Burst: 1}

func take(cost int64, ahead time.Duration) shared.Take {
	return shared.Take{Key: "k", Cost: cost, First: 1, Ahead: ahead, Rate: tenPerSecond}
}

func micros(d time.Duration) int64 { return d.Microseconds() }

func TestTheClockOfAMemoryIsThatOfTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		taken, err := m.Take(t.Context(), take(3, 0))
		require.NoError(t, err)
		now := time.Now().UnixMicro()
		require.Equal(t, shared.Taken{OK: true, Now: now, Empty: shared.Instant{Micros: now}, Cold: true}, taken)
		require.Equal(t, shared.BucketLevel{Empty: shared.Instant{Micros: now + micros(300*time.Millisecond)}, Rate: tenPerSecond, At: now}, m.Level("k"))

		m.Step(-time.Second)
		require.Equal(t, now-micros(time.Second), m.Now())
		m.Drift(1000)
		time.Sleep(10 * time.Second)
		require.Equal(t, now+micros(9*time.Second+10*time.Millisecond), m.Now())
		m.Drift(-1000)
		time.Sleep(10 * time.Second)
		require.Equal(t, now+micros(19*time.Second), m.Now())
	})
}

// A caller that gives up does not know whether its request arrived. If a Memory dropped such
// requests, no test would see the fate of slots that nobody knows of.
func TestARequestArrivesThoughItsCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		start := time.Now().UnixMicro()
		for _, delay := range []time.Duration{30 * time.Millisecond, 20 * time.Millisecond} {
			m.SetDelay(delay, 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := m.Take(ctx, take(1, time.Second))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		time.Sleep(17 * time.Millisecond)
		require.Zero(t, m.Level("k"), "19 ms after the beginning no request has arrived")
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, start+21_000+100_000, m.Level("k").Empty.Micros, "the request sent last has overtaken the other")
		m.Step(time.Second) // The other arrives later, and its step reads the clock of then.
		time.Sleep(time.Second)
		require.Equal(t, start+1_030_000, m.Level("k").At)

		log := m.Log()
		require.Len(t, log, 2)
		require.True(t, log[0].Done)
		require.Equal(t, start+1_030_000, log[0].Arrived)
		require.ErrorIs(t, log[0].Err, context.DeadlineExceeded)
		require.Equal(t, m.Level("k"), log[0].After)
		m.ClearLog()
		require.Empty(t, m.Log())
	})
}

func TestFaultsOfAMemory(t *testing.T) {
	for _, c := range []struct {
		fault buckettest.Fault
		err   error
		after time.Duration // from the call to its return, with 15 ms there and 25 ms back
		taken bool
	}{
		{buckettest.NoFault, nil, 40 * time.Millisecond, true},
		{buckettest.LoseRequest, context.DeadlineExceeded, 250 * time.Millisecond, false},
		{buckettest.LoseReply, context.DeadlineExceeded, 250 * time.Millisecond, true},
		{buckettest.FailBefore, buckettest.ErrFault, 0, false},
		{buckettest.FailAfter, buckettest.ErrFault, 40 * time.Millisecond, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(15*time.Millisecond, 25*time.Millisecond)
			m.Fail(func(call int, op string) buckettest.Fault {
				require.Equal(t, 1, call)
				require.Equal(t, "Take", op)
				m.Now() // The Memory is not locked.
				return c.fault
			})
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
			defer cancel()
			taken, err := m.Take(ctx, take(1, 0))
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.err == nil, taken.OK)
			require.Equal(t, c.after, time.Since(start))
			require.Equal(t, c.taken, m.Level("k") != shared.BucketLevel{})
			log := m.Log()
			require.Equal(t, c.fault, log[0].Fault)
			require.Equal(t, c.taken, log[0].Done)
			require.Equal(t, c.taken, log[0].Taken.OK)
			if c.taken {
				require.Equal(t, start.Add(15*time.Millisecond).UnixMicro(), log[0].Taken.Now)
			}
			require.Equal(t, start.Add(c.after), log[0].Returned)
		})
	}
}

func TestAMemoryForgetsWhatABucketMayForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		_, err := m.Take(t.Context(), take(10, 0))
		require.NoError(t, err)
		time.Sleep(61 * time.Second)
		require.NotZero(t, m.Level("k"))
		time.Sleep(time.Microsecond)
		require.Zero(t, m.Level("k"))

		m.Set("k", shared.BucketLevel{Empty: shared.Instant{Micros: m.Now()}, Rate: tenPerSecond, At: m.Now()})
		require.NotZero(t, m.Level("k"))
		m.Wipe()
		require.Zero(t, m.Level("k"))
	})
}

func TestAMemoryForgetsSeatsAndKeepersAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		q := shared.Seating{Key: "k", ID: "a", Cap: 2, Want: 1}
		k := shared.Keeping{Key: "k", ID: "a", Lease: time.Second}
		both := func() (shared.Seated, shared.Kept) {
			seated, err := m.Seats(t.Context(), q)
			require.NoError(t, err)
			kept, err := m.Keep(t.Context(), k)
			require.NoError(t, err)
			return seated, kept
		}
		value := []byte("x")
		k.Value = value
		seated, _ := both()
		require.Equal(t, shared.Seated{Target: 2, Now: m.Now()}, seated)
		both()
		value[0] = 'y'
		require.Equal(t, shared.KeepState{ID: "a", Lease: time.Second, Ends: m.Now() + micros(time.Second), Value: []byte("x")}, m.KeepState("k"))
		k.ID = "b"
		_, kept := both()
		kept.Value[0] = 'z'
		require.Equal(t, "x", string(m.KeepState("k").Value))
		require.Equal(t, m.Now()+micros(shared.SeatGuard), m.SeatState("k").Ready)

		k.Lease = 0
		time.Sleep(23 * time.Hour)
		seated, kept = both()
		require.Equal(t, 1, seated.Held)
		require.Equal(t, "x", string(kept.Value))
		time.Sleep(time.Hour) // A look does not make a value last.
		require.Equal(t, "x", string(m.KeepState("k").Value))
		time.Sleep(time.Microsecond)
		require.Zero(t, m.KeepState("k"))
		time.Sleep(23*time.Hour - time.Microsecond)
		require.NotZero(t, m.SeatState("k"))
		time.Sleep(time.Microsecond)
		require.Zero(t, m.SeatState("k"))

		for _, lose := range []func(){m.Wipe, func() { require.NoError(t, m.Forget("k")) }} {
			m.SetSeats("k", shared.SeatState{Ready: 1, Holders: []shared.SeatHolder{{ID: "x", Held: 1, Expires: m.Now() + 1}}})
			m.SetKeep("k", shared.KeepState{ID: "x", Lease: time.Second, Ends: m.Now() + 1})
			require.NotZero(t, m.SeatState("k"))
			require.NotZero(t, m.KeepState("k"))
			lose()
			require.Zero(t, m.SeatState("k"))
			require.Zero(t, m.KeepState("k"))
		}
	})
}

// Seats and kept keys meet the same faults as levels, and their requests arrive as late.
func TestSeatsAndKeepersOfAMemoryMeetFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetSeats("k", shared.SeatState{Ready: 1})
		m.SetDelay(300*time.Millisecond, 0)
		var ops []string
		m.Fail(func(_ int, op string) buckettest.Fault {
			ops = append(ops, op)
			return buckettest.NoFault
		})
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		_, err := m.Seats(ctx, shared.Seating{Key: "k", ID: "a", Cap: 3, Want: 5, Number: 1})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		_, err = m.Keep(ctx, shared.Keeping{Key: "k", ID: "a", Lease: time.Minute})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []string{"Seats", "Keep"}, ops)
		require.Equal(t, 3, m.SeatState("k").Holders[0].Held)
		require.Zero(t, m.KeepState("k"))
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, "a", m.KeepState("k").ID)

		m.Fail(func(int, string) buckettest.Fault { return buckettest.FailAfter })
		_, err = m.Seats(t.Context(), shared.Seating{Key: "k", ID: "a", Cap: 3, Held: 1, Want: 1, Number: 2})
		require.ErrorIs(t, err, buckettest.ErrFault)
		_, err = m.Keep(t.Context(), shared.Keeping{Key: "k", ID: "a", Value: []byte("last")})
		require.ErrorIs(t, err, buckettest.ErrFault)
		log := m.Log()
		require.Equal(t, 1, log[2].Seated.Held)
		require.Equal(t, int64(2), log[2].Seating.Number)
		require.Equal(t, "last", string(log[3].Kept.Value))
		require.Equal(t, "a", log[3].Keeping.ID)
	})
}

func TestAMemoryTakesNoCallThatIsWrong(t *testing.T) {
	m := buckettest.NewMemory()
	for _, spoil := range []func(*shared.Take){
		func(t *shared.Take) { t.Key = "" },
		func(t *shared.Take) { t.Cost = 0 },
		func(t *shared.Take) { t.First = 0 },
		func(t *shared.Take) { t.Ahead = -1 },
		func(t *shared.Take) { t.Ahead = time.Nanosecond },
		func(t *shared.Take) { t.Ahead = shared.MaxAhead + time.Microsecond },
		func(t *shared.Take) { t.Guard = time.Nanosecond },
		func(t *shared.Take) { t.Rate.Parts = 0 },
		func(t *shared.Take) { t.Rate.Part = 1 },
		func(t *shared.Take) { t.Rate.Micros = 0 },
		func(t *shared.Take) { t.Rate.Burst = 0 },
		func(t *shared.Take) { t.Rate.Version = -1 },
		func(t *shared.Take) { t.High.Part = 1 },
		func(t *shared.Take) { t.Hold = -1 },
	} {
		wrong := take(1, 0)
		spoil(&wrong)
		require.Panics(t, func() { _, _ = m.Take(t.Context(), wrong) }, "%+v", wrong)
	}
	for _, spoil := range []func(*shared.Seating){
		func(q *shared.Seating) { q.Key = "" },
		func(q *shared.Seating) { q.ID = "" },
		func(q *shared.Seating) { q.Cap = 0 },
		func(q *shared.Seating) { q.Held = -1 },
		func(q *shared.Seating) { q.Want = -1 },
		func(q *shared.Seating) { q.Number = -1 },
		func(q *shared.Seating) { q.Number = 1<<53 + 1 },
		func(q *shared.Seating) { q.Answered = -1 },
		func(q *shared.Seating) { q.Number, q.Answered = 1, 2 },
	} {
		wrong := shared.Seating{Key: "k", ID: "a", Cap: 1}
		spoil(&wrong)
		require.Panics(t, func() { _, _ = m.Seats(t.Context(), wrong) }, "%+v", wrong)
	}
	for _, spoil := range []func(*shared.Keeping){
		func(k *shared.Keeping) { k.Key = "" },
		func(k *shared.Keeping) { k.ID = "" },
		func(k *shared.Keeping) { k.Lease = -time.Second },
		func(k *shared.Keeping) { k.Lease = time.Microsecond },
		func(k *shared.Keeping) { k.Lease = time.Minute + time.Millisecond },
		func(k *shared.Keeping) { k.Value = make([]byte, 1<<20+1) },
	} {
		wrong := shared.Keeping{Key: "k", ID: "a"}
		spoil(&wrong)
		require.Panics(t, func() { _, _ = m.Keep(t.Context(), wrong) }, "%+v", wrong)
	}
	require.Empty(t, m.Log())
}

// A suite that passes whatever an engine does proves nothing. So each mistake that an engine
// of the tests can have is told from a right one, by a check that was made for it or by
// another.
func TestRunTellsMistakes(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		require.Empty(t, told(t, "", func() shared.Bucket { return newEngine("") }))
	})
	for _, mistake := range mistakes(t) {
		t.Run(mistake, func(t *testing.T) {
			about := "" // Mistakes of seats and of kept keys are told by their own checks.
			if topic, _, ok := strings.Cut(mistake, ": "); ok {
				about = topic + ": "
			}
			said := told(t, about, func() shared.Bucket { return newEngine(mistake) })
			require.NotEmpty(t, said)
			t.Log(said)
		})
	}
}

// told returns the report of the checks on a Bucket whose names begin so. In a bubble the checks do not wait.
func told(t *testing.T, about string, newBucket func() shared.Bucket) (said string) {
	synctest.Test(t, func(t *testing.T) { said = buckettest.Told(t.Context(), about, newBucket) })
	return said
}

// mistakes returns the mistakes that the engine has.
func mistakes(t *testing.T) (found []string) {
	seen := map[string]bool{}
	for _, file := range []string{"engine_test.go", "engine_seats_test.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`e\.is\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
			if !seen[m[1]] {
				seen[m[1]] = true
				found = append(found, m[1])
			}
		}
	}
	require.Greater(t, len(found), 100)
	return found
}

// Checks that need an optional method are left out where it is missing, and no other check is.
func TestRunNeedsNoOptionalMethods(t *testing.T) {
	require.Empty(t, told(t, "", func() shared.Bucket { return struct{ shared.Bucket }{newEngine("")} }))
	type fleet struct {
		shared.Bucket
		shared.Seater
		shared.Keeper
	}
	require.Empty(t, told(t, "", func() shared.Bucket {
		e := newEngine("")
		return fleet{e, e, e}
	}))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryIsABucket(t *testing.T) {
	buckettest.Run(t, func(*testing.T) shared.Bucket { return buckettest.NewMemory() })
}
