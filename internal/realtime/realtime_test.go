package realtime_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A failing is a test that notes how it fails.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.said = args[0].(string)
	runtime.Goexit()
}

func (f *failing) Fatalf(_ string, args ...any) { f.Fatal(args...) }

// fails returns the message of a test that fails by f.
func fails(f func(t testing.TB)) string {
	t, over := new(failing), make(chan struct{})
	go func() {
		defer close(over)
		f(t)
	}()
	<-over
	return t.said
}

func TestUntilReturnsWhenTheConditionHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{0, 7 * time.Millisecond, time.Second, realtime.Patience} {
			began := time.Now()
			realtime.Until(t, func() bool { return time.Since(began) >= after }, "so long has passed")
			require.LessOrEqual(t, time.Since(began)-after, 10*time.Millisecond)
		}
	})
}

func TestWhatNeverComesFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		require.Equal(t, "it rains", fails(func(t testing.TB) {
			realtime.Until(t, func() bool { asked++; return false }, "it rains")
		}))
		require.InDelta(t, realtime.Patience.Seconds(), time.Since(began).Seconds(), 0.02)
		require.Greater(t, asked, 10_000)

		began = time.Now()
		require.Equal(t, "nothing came", fails(func(t testing.TB) { realtime.Next(t, make(chan int)) }))
		require.Equal(t, realtime.Patience, time.Since(began))
	})
}

// Time that passes is no stall, however much of it.
func TestASleepThatEndsInTimeIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Zero(t, realtime.LongestStall(func() { time.Sleep(time.Minute) }))
		require.Zero(t, realtime.LongestStall(func() {}))
	})
}

// The goroutine that measures must not outlive a test that fails: TestMain looks for it.
func TestLongestStallEndsWithATestThatFails(t *testing.T) {
	require.Equal(t, "wrong", fails(func(t testing.TB) {
		realtime.LongestStall(func() { t.Fatal("wrong") })
	}))
}
