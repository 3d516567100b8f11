package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// limitsOf parses limits that a test relies on.
func limitsOf(t *testing.T, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
	return l
}
