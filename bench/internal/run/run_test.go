package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
)

func TestMain(m *testing.M) { Tests(m, self) }

type pace struct {
	PID  float64       `unit:"pid"`
	Time time.Duration `unit:"ns"`
}

// self is an experiment of this test program.
var self = Experiment{
	Name: "self", What: "itself", Note: "It tells who measures.",
	Groups: func(o Options) []Group {
		here := func(context.Context) (pace, error) { return pace{PID: float64(os.Getpid())}, nil }
		return []Group{{Cases: []Case{
			One("Self", 2, here),
			One("Virtual", 1, InTest(func(t *testing.T) (found pace) {
				synctest.Test(t, func(*testing.T) {
					start := time.Now()
					time.Sleep(time.Hour)
					found.Time = time.Since(start)
				})
				return found
			})),
			One("Nobody", 1, func(context.Context) (pace, error) { return pace{}, errors.New("nobody is there") }),
		}}}
	},
	Conclude: func(r *report.Report, _ Options) error { r.Note = " All have been measured."; return nil },
}

func TestEachCaseIsMeasuredInAChildProcess(t *testing.T) {
	var said bytes.Buffer
	r, err := self.Run(t.Context(), Options{Log: log.New(&said, "", 0)})
	require.EqualError(t, err, "Nobody: exit status 1: nobody is there", "it costs only its own results")
	require.Contains(t, said.String(), "Nobody is measured once more: exit status 1: nobody is there\n")
	require.Len(t, r.Lines, 3)
	require.Equal(t, "Self", r.Lines[1].Name)
	require.NotEqual(t, float64(os.Getpid()), report.Median(r.Lines[:1], "Self", "pid"))
	require.Equal(t, float64(time.Hour), report.Median(r.Lines, "Virtual", "ns"))
	require.Equal(t, "It tells who measures. All have been measured.", r.Note)
}

var forEver = NewChild("for-ever", func(int) (int, error) {
	time.Sleep(time.Hour)
	return 0, nil
})

func TestAChildThatIsNotKnownSaysSo(t *testing.T) {
	_, err := ChildProcess[int, int]("nothing").Take(t.Context(), 1)
	require.ErrorContains(t, err, `no child process is named "nothing"`)
	_, err = InChild(Options{})(t.Context(), Case{Name: "Nothing"})
	require.ErrorContains(t, err, `no case is named "Nothing"`)
	require.Panics(t, func() { Register("for-ever", func(io.Reader, io.Writer) error { return nil }) })
}

func TestAnInterruptEndsTheChild(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, interrupt)
	_, err := forEver.Take(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
}

// Each case appends its name, so that the order is seen.
func TestCasesTakeTurnsAndAnotherBeginsEachRound(t *testing.T) {
	order := ""
	of := func(name string, rounds int) Case {
		return One(name, rounds, func(context.Context) (pace, error) {
			order += name
			return pace{Time: time.Duration(len(order))}, nil
		})
	}
	lines, err := Take(t.Context(), Options{}, Here, Group{Cases: []Case{of("a", 3), of("b", 3), of("c", 3), of("d", 1)}}, Group{Cases: []Case{of("e", 2)}})
	require.NoError(t, err)
	require.Equal(t, "abcd"+"bca"+"cab"+"ee", order)
	require.Len(t, lines, 12)
	for i, at := range []float64{1, 7, 9} {
		require.Equal(t, at, report.Median(lines[i:i+1], "a", "ns"))
	}
}

// With one of them waiting for the other, each by itself would never end.
func TestCasesAreMeasuredAtOnce(t *testing.T) {
	meet := make(chan struct{})
	lines, err := Take(t.Context(), Options{}, Here, Group{AtOnce: true, Cases: []Case{
		One("a", 1, func(context.Context) (pace, error) { <-meet; return pace{}, nil }),
		One("b", 1, func(context.Context) (pace, error) { meet <- struct{}{}; return pace{}, nil }),
	}})
	require.NoError(t, err)
	require.Len(t, lines, 2)
}

func TestACaseThatFailsOnceIsMeasuredOnceMore(t *testing.T) {
	calls := 0
	lines, err := Take(t.Context(), Options{}, Here, Group{Cases: []Case{One("a", 2, func(context.Context) (pace, error) {
		if calls++; calls == 1 {
			return pace{}, errors.New("lost")
		}
		return pace{}, nil
	})}})
	require.NoError(t, err)
	require.Len(t, lines, 2)
}

func TestAnInterruptEndsTheRounds(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		ctx, interrupt := context.WithCancel(t.Context())
		calls := 0
		lines, err := Take(ctx, Options{}, Here, Group{AtOnce: atOnce, Cases: []Case{One("a", 5, func(context.Context) (pace, error) {
			calls++
			interrupt()
			return pace{}, nil
		})}})
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, lines)
		require.Equal(t, 1, calls)
	}
}

func TestEachFreeAddressIsAnother(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		address, err := FreeAddress()
		require.NoError(t, err)
		require.False(t, seen[address])
		seen[address] = true
		at, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		require.True(t, at.IP.IsLoopback())
		require.Less(t, at.Port, 32768, "no client gets it")
	}
}
