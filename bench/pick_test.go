package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryContestantOfEveryPartCanBePicked(t *testing.T) {
	for _, name := range slices.Concat(goodputContestants, holeContestants, memoryContestants, cancelContestants, ceilingContestants) {
		c, err := contestantNamed(name)
		require.NoError(t, err)
		require.Equal(t, name, c.name)
	}
	_, err := contestantNamed("nobody")
	require.ErrorContains(t, err, `"nobody"`)
}
