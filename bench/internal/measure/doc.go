// Package measure turns the observations of an experiment into figures:
// quantiles and medians, how even departures are, the cost of a call, and the
// resources of a process. Each figure is computed in one place only, so that
// the figures that the README compares were computed by the same function.
package measure
