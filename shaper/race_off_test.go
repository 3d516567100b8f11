//go:build !race

package shaper_test

// underRace reports whether the race detector is on, which takes five to ten times as long.
const underRace = false
