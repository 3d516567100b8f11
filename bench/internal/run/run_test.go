package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"math"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
)

func TestMain(m *testing.M) { Tests(m) }

type pace struct {
	PID  float64
	Time float64 `unit:"ns"`
}

var (
	measurePace = NewMeasurement("pace", func(in string) (pace, error) {
		if in == "nobody" {
			return pace{}, errors.New("nobody is there")
		}
		return pace{PID: float64(os.Getpid()), Time: math.NaN()}, nil
	})
	measureForEver = NewMeasurement("for-ever", func(int) (int, error) {
		time.Sleep(time.Hour)
		return 0, nil
	})
	measureNothing = Measurement[int, int]("nothing")
)

func TestAMeasurementIsTakenInAChildProcess(t *testing.T) {
	found, err := measurePace.Take(t.Context(), "somebody")
	require.NoError(t, err)
	require.NotEqual(t, float64(os.Getpid()), found.PID)
	require.True(t, math.IsNaN(found.Time), "what is not known comes back as such")
}

func TestAMeasurementThatFailsSaysWhy(t *testing.T) {
	_, err := measurePace.Take(t.Context(), "nobody")
	require.EqualError(t, err, "exit status 1: nobody is there")
	_, err = measureNothing.Take(t.Context(), 1)
	require.ErrorContains(t, err, `no child process is named "nothing"`)
	require.Panics(t, func() { Register("pace", func(io.Reader, io.Writer) error { return nil }) })
}

func TestAnInterruptEndsTheChild(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, interrupt)
	_, err := measureForEver.Take(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
}

// Each case appends its input, so that the order is seen.
func TestCasesTakeTurnsAndAnotherBeginsEachRound(t *testing.T) {
	var order string
	take := func(_ context.Context, in string) (pace, error) {
		order += in
		return pace{Time: float64(len(order))}, nil
	}
	cases := []Case[string]{{"A", "a", 3}, {"B", "b", 3}, {"C", "c", 3}, {"D", "d", 1}}
	results, err := InTurns(t.Context(), Options{}, take, cases, []Case[string]{{"E", "e", 2}})
	require.NoError(t, err)
	require.Equal(t, "abcd"+"bca"+"cab"+"ee", order)
	require.Len(t, results, 5)
	require.Equal(t, []pace{{Time: 1}, {Time: 7}, {Time: 9}}, results[0].Found)
	lines := Lines(results)
	require.Len(t, lines, 12)
	require.Equal(t, "A", lines[0].Name)
}

func TestACaseThatFailsCostsOnlyItsOwnResults(t *testing.T) {
	calls := 0
	take := func(_ context.Context, in string) (pace, error) {
		if in == "bad" {
			calls++
			return pace{}, errors.New("lost")
		}
		return pace{Time: 1}, nil
	}
	cases := []Case[string]{{"Bad", "bad", 2}, {"Good", "good", 2}}
	results, err := InTurns(t.Context(), Options{}, take, cases)
	require.EqualError(t, err, "Bad: lost")
	require.Equal(t, 2, calls, "it is measured once more, in one round")
	require.Len(t, results, 1)
	require.Equal(t, "Good", results[0].Name)
	results, err = AtOnce(t.Context(), Options{}, take, cases)
	require.EqualError(t, err, "Bad: lost")
	require.Len(t, results, 1)
}

func TestACaseThatFailsOnceIsMeasuredOnceMore(t *testing.T) {
	failed := false
	take := func(context.Context, string) (pace, error) {
		if !failed {
			failed = true
			return pace{}, errors.New("lost")
		}
		return pace{Time: 1}, nil
	}
	var said bytes.Buffer
	o := Options{Log: log.New(&said, "", 0)}
	cases := []Case[string]{{"A", "a", 2}}
	results, err := InTurns(t.Context(), o, take, cases)
	require.NoError(t, err)
	require.Len(t, results[0].Found, 2)
	require.Contains(t, said.String(), "A is measured once more: lost\n")
	failed = false
	said.Reset()
	results, err = AtOnce(t.Context(), o, take, cases)
	require.NoError(t, err)
	require.Len(t, results[0].Found, 1)
	require.Contains(t, said.String(), "A is measured once more: lost\n")
}

func TestAnInterruptEndsTheRounds(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	take := func(context.Context, int) (pace, error) { interrupt(); return pace{}, nil }
	cases := []Case[int]{{"A", 1, 5}}
	results, err := InTurns(ctx, Options{}, take, cases)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, results)
	_, err = AtOnce(ctx, Options{}, take, cases)
	require.ErrorIs(t, err, context.Canceled)
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

func TestTimingsAndSpacingsAreReported(t *testing.T) {
	lines := TimingLines("Call", []int{1, 64}, [][]measure.Timing{{{Ns: 1}, {Ns: 2}}, {{Ns: 3}, {Ns: 4}}})
	require.Len(t, lines, 4, "a line for each round")
	require.Equal(t, "Call/goroutines=64", lines[3].Name)
	require.Equal(t, report.Figure{Value: 4, Unit: "ns/call"}, lines[3].Figures[0])

	all := []Result[string, measure.Spread]{{Case[string]{Input: "a"}, make([]measure.Spread, 2)}, {Case[string]{Input: "b"}, nil}}
	itself := func(s measure.Spread) measure.Spread { return s }
	var r report.Report
	require.NoError(t, DrawSpacings(&r, report.Spacings{Name: "even"}, "a", all, func(in string) (string, bool) { return in, in == "a" }, itself))
	require.Len(t, r.Pictures, 1)
	require.Contains(t, string(r.Pictures[0].SVG), "a: median error")
	require.NotContains(t, string(r.Pictures[0].SVG), "b: median error")
	require.NoError(t, DrawSpacings(&r, report.Spacings{}, "a", all, func(string) (string, bool) { return "", false }, itself))
	require.Len(t, r.Pictures, 1, "without rows there is none")
}
