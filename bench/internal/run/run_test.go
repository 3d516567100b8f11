package run

import (
	"bytes"
	"context"
	"errors"
	"log"
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
		return []Group{{Cases: []Case{
			One("Self", 2, func(*testing.T) pace { return pace{PID: float64(os.Getpid())} }),
			One("Virtual", 1, func(t *testing.T) (found pace) {
				synctest.Test(t, func(*testing.T) {
					start := time.Now()
					time.Sleep(time.Hour)
					found.Time = time.Since(start)
				})
				return found
			}),
			One("Nobody", 1, func(t *testing.T) pace {
				t.Fatal("nobody is there")
				return pace{}
			}),
		}}}
	},
	Conclude: func(r *report.Report, _ Options) error { r.Note += " All have been measured."; return nil },
}

func TestEachCaseIsMeasuredInAChildProcess(t *testing.T) {
	var said bytes.Buffer
	r, err := self.Run(t.Context(), Options{Log: log.New(&said, "", 0)})
	require.ErrorContains(t, err, "Nobody: exit status 1: --- FAIL", "it costs only its own results")
	require.ErrorContains(t, err, "nobody is there")
	require.Contains(t, said.String(), "Nobody is measured once more: exit status 1")
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
	_, err = InChild(t.Context(), Options{}, Case{Name: "Nothing"})
	require.ErrorContains(t, err, `no case is named "Nothing"`)
	require.Panics(t, func() { NewChild("for-ever", func(int) (int, error) { return 0, nil }) })
}

func TestAnInterruptEndsTheChild(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, interrupt)
	_, err := forEver.Take(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
}

// takeHere takes cases in this process. measure returns the figure of the case with that name.
func takeHere(ctx context.Context, measure func(name string) (float64, error), groups ...Group) ([]report.Line, error) {
	return take(ctx, Options{}, func(c Case) ([]report.Line, error) {
		found, err := measure(c.Name)
		return []report.Line{{Name: c.Name, Figures: []report.Figure{{Value: found, Unit: "ns"}}}}, err
	}, groups...)
}

// Each case appends its name, so that the order is seen.
func TestCasesTakeTurnsAndAnotherBeginsEachRound(t *testing.T) {
	order := ""
	lines, err := takeHere(t.Context(), func(name string) (float64, error) {
		order += name
		return float64(len(order)), nil
	}, Group{Cases: []Case{{Name: "a", Rounds: 3}, {Name: "b", Rounds: 3}, {Name: "c", Rounds: 3}, {Name: "d", Rounds: 1}}}, Group{Cases: []Case{{Name: "e", Rounds: 2}}})
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
	lines, err := takeHere(t.Context(), func(name string) (float64, error) {
		if name == "a" {
			<-meet
		} else {
			meet <- struct{}{}
		}
		return 0, nil
	}, Group{AtOnce: true, Cases: []Case{{Name: "a", Rounds: 1}, {Name: "b", Rounds: 1}}})
	require.NoError(t, err)
	require.Len(t, lines, 2)
}

func TestACaseThatFailsOnceIsMeasuredOnceMore(t *testing.T) {
	calls := 0
	lines, err := takeHere(t.Context(), func(string) (float64, error) {
		if calls++; calls == 1 {
			return 0, errors.New("lost")
		}
		return 0, nil
	}, Group{Cases: []Case{{Name: "a", Rounds: 2}}})
	require.NoError(t, err)
	require.Len(t, lines, 2)
}

func TestAnInterruptEndsTheRounds(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		ctx, interrupt := context.WithCancel(t.Context())
		calls := 0
		lines, err := takeHere(ctx, func(string) (float64, error) {
			calls++
			interrupt()
			return 0, nil
		}, Group{AtOnce: atOnce, Cases: []Case{{Name: "a", Rounds: 5}}})
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, lines)
		require.Equal(t, 1, calls)
	}
}
