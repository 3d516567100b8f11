//go:build race

package sharedfaults_test

// fleets is how many tests run at once: fewer, as the race detector needs more of the
// processors.
const fleets = 3
