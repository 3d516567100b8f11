//go:build !race

package sharedfaults_test

// fleets is how many tests run at once. Most of a test's time is waiting, but fleets of four
// processes need a processor each time they wake.
const fleets = 5
