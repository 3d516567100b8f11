package config

import "testing"

// MaxRules returns how many rules a file may have.
func MaxRules() int { return maxRules }

// LowerMaxRules lowers that while a test runs, which must not be parallel.
func LowerMaxRules(t *testing.T, n int) {
	before := maxRules
	maxRules = n
	t.Cleanup(func() { maxRules = before })
}
