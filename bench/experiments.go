package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/bench/admission"
	"example.com/leakybucket/bench/goodput"
	"example.com/leakybucket/bench/http"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/bench/keys"
	"example.com/leakybucket/bench/proxies"
	"example.com/leakybucket/bench/scale"
	"example.com/leakybucket/bench/shared"
	"example.com/leakybucket/bench/spacing"
)

// experiments returns everything that is measured, in the order in which it is.
func experiments() []run.Experiment {
	return slices.Concat(spacing.Experiments(), []run.Experiment{
		admission.Experiment, http.Experiment, goodput.Experiment, goodput.Hole, scale.Experiment, keys.Experiment, shared.Experiment, proxies.Experiment,
	})
}

// listed returns what -list prints.
func listed(all []run.Experiment) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "%-10s %s\n", e.Name, e.What)
	}
	return b.String()
}

// names returns those of experiments, for people.
func names(all []run.Experiment) string {
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}

// estimate returns about how long experiments take. Those without an estimate
// count as 0.
func estimate(all []run.Experiment, o run.Options) (sum time.Duration) {
	for _, e := range all {
		if e.Estimate != nil {
			sum += e.Estimate(o)
		}
	}
	return sum
}
