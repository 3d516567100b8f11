package http

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

// measureCost compares what each request is answered with what it should be.
func TestEveryRequestIsAnsweredAsItShould(t *testing.T) {
	names := map[string]bool{}
	for _, c := range costCases(run.Options{}) {
		require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			in := c.Input
			in.Batch = 100 * time.Microsecond
			found, err := measureCost(in)
			require.NoError(t, err)
			require.Positive(t, found.Ns)
			require.False(t, measure.Known(found.Own), "it is not known before the handler alone has been measured")
		})
	}
}

func TestACostIsMeasuredInAChild(t *testing.T) {
	found, err := costChild.Take(t.Context(), costInput{rivals.Ours, true, true, false, refused, time.Millisecond})
	require.NoError(t, err)
	require.Positive(t, found.Ns)
	require.Positive(t, found.Allocs)
}

func TestAMiddlewareThatAnswersOtherwiseIsNotMeasured(t *testing.T) {
	answering := func(status int, fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, field := range fields {
				w.Header().Set(field, "1")
			}
			w.WriteHeader(status)
		})
	}
	for _, c := range []struct {
		in   costInput
		does http.Handler
		err  string
	}{
		{costInput{Middleware: rivals.Ours, Outcome: admitted}, answering(204), ""},
		{costInput{Middleware: rivals.Ours, Outcome: admitted}, answering(429), "the request is answered with status 429, not 204"},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(429, "Retry-After"), ""},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(204, "Retry-After"), "the request is answered with status 204, not 429"},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(429), "the answer has a Retry-After: no"},
		{costInput{Middleware: chi, Outcome: refused}, answering(429), ""},
		{costInput{Middleware: rivals.Ours, Outcome: admitted, Fields: true}, answering(204), "the answer has fields of the limit: no"},
		{costInput{Middleware: httpRate, Outcome: admitted}, answering(204, "X-RateLimit-Limit"), "the answer has fields of the limit: yes"},
	} {
		err := c.in.check(&answer{header: http.Header{}}, c.does, nil)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.err)
		}
	}
}

// costsOf gives ours the time ours beyond that of the handler, and httprate theirs.
func costsOf(ours, theirs, allocs float64) []costResult {
	const handler = 10
	var results []costResult
	for _, c := range costCases(run.Options{}) {
		r := costResult{Case: c}
		for _, disturbed := range []float64{1, 9, 1} { // the round in the middle does not count
			one := cost{Own: measure.Unknown}
			one.Ns = handler * disturbed
			switch c.Input.Middleware {
			case rivals.Ours:
				one.Ns += ours * disturbed
				one.Allocs = allocs
			case httpRate:
				one.Ns += theirs * disturbed
			}
			r.Found = append(r.Found, one)
		}
		r.Median = measure.Medians(r.Found)
		results = append(results, r)
	}
	return ownCosts(results)
}

func TestCostGoals(t *testing.T) {
	reached := func(results []costResult) (which []bool) {
		for _, g := range costGoals(results) {
			which = append(which, g.Reached)
		}
		return which
	}
	// Allocations of an admitted request and of a refused one; the refusals without a
	// body, with one, and with fields.
	require.Equal(t, []bool{true, true, true, true, true}, reached(costsOf(100, 100, 1)))
	require.Equal(t, []bool{false, true, false, false, false}, reached(costsOf(101, 100, 4)))
	require.Equal(t, []bool{false, false, true, true, true}, reached(costsOf(99, 100, 4.02)))
	require.Equal(t, []bool{false, false, false, false, false}, reached(nil), "nothing is reached that was not measured")
}

func TestTheTablesHaveEachRequest(t *testing.T) {
	results := costsOf(40, 100, 1)
	both := []report.Table{admittedTable(results), refusedTable(results)}
	require.Len(t, append(both[0].Rows, both[1].Rows...), len(results))
	require.Contains(t, both[0].Rows, []string{bareHandler, "no", "no", "no", "10", "0", "0.00"})
	require.Contains(t, both[1].Rows, []string{"shaper", "yes", "yes", "no", "50", "40", "1.00"})
	require.Contains(t, both[1].Rows, []string{"httprate", "no", "no", "yes", "110", "100", "0.00"})
	for _, table := range both {
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns))
		}
	}
	lines := run.Lines(results)
	require.Equal(t, "HTTP/outcome=admitted/middleware=none/conncontext=no/body=no/fields=no", lines[0].Name)
	require.Equal(t, "[{10 ns/call} {0 allocs/call} {0 own-ns/call}]", fmt.Sprint(lines[0].Figures))
}

func waitingOf(name string, connContext, body bool, bytes float64) waitingResult {
	found := waitingFound{bytes, measure.Unknown}
	return waitingResult{
		Case:  run.Case[waitingInput]{Input: waitingInput{name, connContext, body, 10_000}},
		Found: []waitingFound{found}, Median: found,
	}
}

func TestTheMemoryOfAWaitIsBeyondThatOfTheSameRequest(t *testing.T) {
	require.Equal(t, report.NotMeasured, waitingGoal(nil).Got)
	results := []waitingResult{
		waitingOf(bareHandler, false, false, 17_000), waitingOf(rivals.Ours, false, false, 20_000), waitingOf(rivals.Ours, true, false, 18_000),
		waitingOf(bareHandler, false, true, 15_000), waitingOf(rivals.Ours, true, true, 16_024),
	}
	g := waitingGoal(beyondNetHTTP(results))
	require.Equal(t, "1,024 B", g.Got)
	require.True(t, g.Reached)
	require.Contains(t, waitingTable(results).Rows, []string{"shaper", "no", "no", "20000", "3000"})
	require.Contains(t, waitingTable(results).Rows, []string{"none", "no", "yes", "15000", "0"})

	results[4].Found[0].Bytes++
	require.False(t, waitingGoal(beyondNetHTTP(results)).Reached)

	g = waitingGoal(beyondNetHTTP([]waitingResult{waitingOf(rivals.Ours, true, false, 18_000)})) // net/http itself was not measured.
	require.Equal(t, report.NotMeasured, g.Got)
	require.False(t, g.Reached)
}

// The clients are a process of their own, or their memory would count.
func TestConnectionsThatWaitTakeMemory(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("not known on this system")
	}
	for _, c := range waitingCases(run.Options{Quick: true}) {
		in := c.Input
		in.Connections = 50
		found, err := waitingChild.Take(t.Context(), in)
		require.NoError(t, err, c.Name)
		require.Greater(t, found.Bytes, 8192., "net/http has two buffers of 4 KiB for each connection")
	}
}

// A line is refused to those who would leave after more than a year.
func TestAllConnectionsFindRoomInTheLine(t *testing.T) {
	for _, c := range waitingCases(run.Options{}) {
		l := setup{outcome: waits, room: c.Input.Connections}.limits()
		require.Less(t, float64(l.Depth)/float64(l.Rate), 365*24*time.Hour.Seconds())
	}
}

func TestRequestsThatDoNotWaitAreNotMeasured(t *testing.T) {
	_, err := memoryWaiting(served, waitingInput{Connections: 3})
	require.EqualError(t, err, "3 of 3 requests did not wait")
}

func TestCallersSayWhyTheyCannotCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	stop, err := startCallers(callersInput{listener.Addr().String(), false, 2})
	require.NoError(t, err)
	require.ErrorContains(t, stop(), "connection 1 of 2: dial tcp")
}
