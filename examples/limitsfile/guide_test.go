package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

// The files that docs/limits-file.md shows are accepted, and its mistakes are reported
// as it says.
func TestTheGuideIsTrue(t *testing.T) {
	guide, err := os.ReadFile("../../docs/limits-file.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)(<!-- mistakes -->\n)?```yaml\n(.*?)```\n(?:\n```\n(.*?)\n```)?").FindAllSubmatch(guide, -1)
	require.Len(t, files, 3)
	mistakes := 0
	for _, file := range files {
		_, err := config.Parse("shaper.yaml", file[2])
		if len(file[1]) == 0 {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, string(file[3]))
		mistakes++
	}
	require.Equal(t, 1, mistakes)
}
