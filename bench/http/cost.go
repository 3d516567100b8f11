package http

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// A costInput names one kind of request.
type costInput struct {
	Middleware  string // or bareHandler
	ConnContext bool   // the server has ours
	Body        bool   // the request has one, which has not been read
	Fields      bool   // the answer has fields that tell how much the client may still send
	Outcome     outcome
	Batch       time.Duration // how long requests are served
}

// A cost is what a request takes in a middleware and the handler behind it, and how
// much of the time is beyond what the handler alone took in the same round.
type cost struct {
	measure.Timing
	Own float64 `unit:"own-ns/call"`
}

type costResult = run.Result[costInput, cost]

var costChild = run.NewMeasurement("http-cost", measureCost)

// measureCost serves such requests again and again.
func measureCost(in costInput) (cost, error) {
	found := cost{Own: measure.Unknown}
	g, err := openers[in.Middleware](setup{outcome: in.Outcome, fields: in.Fields, next: served})
	if err != nil {
		return found, err
	}
	defer g.stop()
	err = inRequest(in.ConnContext, in.Body, func(w http.ResponseWriter, r *http.Request) (err error) {
		a := &answer{ResponseWriter: w, header: http.Header{}}
		if err := in.check(a, g, r); err != nil {
			return err
		}
		status := a.status
		each := func() func() bool { return func() bool { return a.again(g, r) == status } }
		found.Timing, err = measure.TimeCalls(each, 1, in.Batch)
		return err
	})
	return found, err
}

// check serves a request once, and returns what is wrong with the answer: a middleware
// that does something else than is measured would be compared with the others.
func (in costInput) check(a *answer, h http.Handler, r *http.Request) error {
	want := http.StatusNoContent
	if in.Outcome == refused {
		want = http.StatusTooManyRequests
	}
	if got := a.again(h, r); got != want {
		return fmt.Errorf("the request is answered with status %d, not %d", got, want)
	}
	tells := in.Outcome == refused && tellsRetryAfter(in.Middleware)
	if got := a.header.Get("Retry-After") != ""; got != tells {
		return fmt.Errorf("the answer has a Retry-After: %s", yesOrNo(got))
	}
	fields := a.header.Get("RateLimit") != "" || a.header.Get("X-RateLimit-Limit") != ""
	if fields != in.Fields {
		return fmt.Errorf("the answer has fields of the limit: %s", yesOrNo(fields))
	}
	return nil
}

// costCases are all kinds of requests for ours. The others look neither at connections
// nor at bodies.
func costCases(o run.Options) (cases []run.Case[costInput]) {
	batch := 30 * time.Millisecond
	if o.Quick {
		batch /= 10
	}
	add := func(name string, connContext, body, fields bool) {
		for _, becomes := range []outcome{admitted, refused} {
			if becomes == refused && name == bareHandler {
				continue // It refuses none.
			}
			cases = append(cases, run.Case[costInput]{
				Name: fmt.Sprintf("HTTP/outcome=%s/middleware=%s/conncontext=%s/body=%s/fields=%s",
					becomes, name, yesOrNo(connContext), yesOrNo(body), yesOrNo(fields)),
				Input:    costInput{name, connContext, body, fields, becomes, batch},
				Rounds:   o.Times(5, 1),
				Estimate: measure.TimeEstimate(batch),
			})
		}
	}
	const connContext, body, fields = true, true, true
	add(bareHandler, !connContext, !body, !fields)
	for _, with := range []bool{false, true} {
		add(rivals.Ours, with, !body, !fields)
		add(rivals.Ours, with, body, !fields)
		add(rivals.Ours, with, !body, fields)
	}
	add(rivals.Ours, connContext, body, fields)
	add(oursKeyed, connContext, !body, !fields)
	add(chi, !connContext, !body, !fields)
	add(httpRate, !connContext, !body, !fields)
	add(httpRate, !connContext, !body, fields)
	return cases
}

// measureCosts adds to what was measured how much is beyond the handler alone.
func measureCosts(ctx context.Context, o run.Options) ([]costResult, error) {
	results, err := run.InTurns(ctx, o, costChild.Take, costCases(o))
	return ownCosts(results), err
}

// ownCosts subtracts from each round what the handler alone took in it.
func ownCosts(results []costResult) []costResult {
	for _, bare := range results {
		if bare.Input.Middleware != bareHandler {
			continue
		}
		for i := range results {
			r := &results[i]
			for round := range r.Found {
				r.Found[round].Own = r.Found[round].Ns - bare.Found[round].Ns
			}
			r.Median = measure.Medians(r.Found)
		}
	}
	return results
}

func admittedTable(results []costResult) report.Table {
	t := costTable(results, admitted)
	t.Title = "A request that is admitted at once"
	t.Note += "No request ever waits. none is the handler without middleware."
	return t
}

func refusedTable(results []costResult) report.Table {
	t := costTable(results, refused)
	t.Title = "A request that is refused"
	t.Note += fmt.Sprintf("The shaper's line is full, of %d; chi's throttle is full, and its answer does not tell when to come back.", fullLine)
	return t
}

func costTable(results []costResult, of outcome) report.Table {
	t := report.Table{
		Note: fmt.Sprintf("Time per request in the middleware and a handler that sets a status, without net/http itself; medians of %d interleaved rounds, "+
			"each in a process of its own. Own: without what the handler alone took. The request has come over a connection; "+
			"the header of its answer is used again, and what is written is dropped. Body: 1 KiB, which nobody has read. "+
			"Fields: those that tell clients how much they may still send. ", len(results[0].Found)),
		Columns: []string{"middleware", "ConnContext", "body", "fields", "ns", "own", "allocations"},
	}
	for _, r := range results {
		if r.Input.Outcome != of {
			continue
		}
		t.Rows = append(t.Rows, []string{
			r.Input.Middleware, yesOrNo(r.Input.ConnContext), yesOrNo(r.Input.Body), yesOrNo(r.Input.Fields),
			report.Fixed(r.Median.Ns, 0), report.Fixed(r.Median.Own, 0), report.Fixed(r.Median.Allocs, 2),
		})
	}
	return t
}

// costGoals bounds the allocations of ours without fields, whatever the request is like,
// and holds a refusal against httprate's: without its fields, and with them.
func costGoals(results []costResult) []report.Goal {
	ours := func(of outcome, wanted func(costInput) bool, figure func(cost) float64) float64 {
		var found []float64
		for _, r := range results {
			if r.Input.Middleware == rivals.Ours && r.Input.Outcome == of && wanted(r.Input) {
				found = append(found, figure(r.Median))
			}
		}
		return measure.Quantile(found, 1)
	}
	allocations := func(what string, of outcome, most float64) report.Goal {
		got := ours(of, func(in costInput) bool { return !in.Fields }, func(c cost) float64 { return c.Allocs })
		// What the runtime allocates meanwhile is far below one per hundred requests.
		return report.Bounded(what, most+0.01, got, "allocations")
	}
	against := func(what string, body, fields bool) report.Goal {
		own := func(c cost) float64 { return c.Own }
		slowest := ours(refused, func(in costInput) bool { return in.Body == body && in.Fields == fields }, own)
		theirs, _ := run.MedianWhere(results, func(in costInput) bool {
			return in.Middleware == httpRate && in.Outcome == refused && in.Fields == fields
		})
		return report.AtMost(what, 1, slowest, theirs.Own, "ns")
	}
	return []report.Goal{
		allocations("an admitted HTTP request", admitted, 1),
		allocations("a refused HTTP request", refused, 4),
		against("slower HTTP refusal against httprate's", false, false),
		against("slower HTTP refusal of a request with a body against httprate's", true, false),
		against("slower HTTP refusal with RateLimit fields against httprate's", false, true),
	}
}
