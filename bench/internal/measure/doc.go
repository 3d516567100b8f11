// Package measure turns what an experiment observes into figures: quantiles and
// medians, how even departures are, what a call costs, and what a process uses.
// Each figure is computed in one place only, so that what the README compares
// was computed by the same function.
package measure
