// Package http measures what middleware costs in net/http: the time and the
// allocations of a request that is admitted and of one that is refused, and the
// memory of a request that waits.
package http

import (
	"context"
	"errors"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "http".
var Experiment = run.Experiment{
	Name: "http",
	What: "what middleware costs per request in net/http, and the memory of connections that wait",
	Note: "HTTP: time per request in the middleware and a handler that sets a status, without net/http itself; own: without what the handler alone (none) took. " +
		"The request has come over a connection; the header of its answer is used again, and what is written is dropped. " +
		"body: 1 KiB, which nobody has read. fields: those that tell clients how much they may still send. " +
		"The shaper's line is full, of 100, where requests are refused; chi's throttle is full, and its answer does not tell when to come back. " +
		"HTTPWaiting: resident memory per connection in a server whose clients are another process. " +
		"beyond: without what net/http itself took, with a handler that is parked on a channel. Without ConnContext the shaper reads the body ahead.",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		costs, err1 := measureCosts(ctx, o)
		waiting, err2 := measureWaiting(ctx, o)
		return report.Report{Lines: append(run.Lines(costs), run.Lines(waiting)...)}, errors.Join(err1, err2)
	},
}

// goals bound the allocations of ours without fields, whatever the request is like, and hold a
// refusal against httprate's: without its fields, and with them.
func goals() []report.Goal {
	// The runtime allocates a little meanwhile, far below one per hundred requests.
	all := []report.Goal{
		{What: "allocations of an admitted HTTP request", Ours: "HTTP/outcome=admitted/middleware=shaper/conncontext=*/body=*/fields=no allocs/call", Most: 1.01},
		{What: "allocations of a refused HTTP request", Ours: "HTTP/outcome=refused/middleware=shaper/conncontext=*/body=*/fields=no allocs/call", Most: 4.01},
		{
			What: "memory per waiting HTTP/1 connection beyond net/http's, with ConnContext, in bytes", Most: 1024,
			Ours: "HTTPWaiting/middleware=shaper/conncontext=yes/body=*/connections=* beyond-B/connection",
		},
	}
	for _, refusal := range []struct{ what, body, fields string }{
		{"slower HTTP refusal against httprate's", "no", "no"},
		{"slower HTTP refusal of a request with a body against httprate's", "yes", "no"},
		{"slower HTTP refusal with RateLimit fields against httprate's", "no", "yes"},
	} {
		all = append(all, report.Goal{
			What: refusal.what, Most: 1,
			Ours:   "HTTP/outcome=refused/middleware=shaper/conncontext=*/body=" + refusal.body + "/fields=" + refusal.fields + " own-ns/call",
			Theirs: []string{"HTTP/outcome=refused/middleware=httprate/conncontext=no/body=no/fields=" + refusal.fields + " own-ns/call"},
		})
	}
	return all
}

// yesOrNo is for names of benchmarks and for tables.
func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
