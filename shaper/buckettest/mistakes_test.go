package buckettest_test

import (
	"os"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// A suite that passes whatever an engine does proves nothing. So each mistake that an engine
// of the tests can have is told from a right one, by a check that was made for it or by
// another.
func TestRunTellsMistakes(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		require.Empty(t, told(t, func() shared.Bucket { return newEngine("") }))
	})
	for _, mistake := range mistakes(t) {
		t.Run(mistake, func(t *testing.T) {
			said := told(t, func() shared.Bucket { return newEngine(mistake) })
			require.NotEmpty(t, said)
			t.Log(said)
		})
	}
}

// told returns the report of the checks on a Bucket. In a bubble the checks do not wait.
func told(t *testing.T, newBucket func() shared.Bucket) (said string) {
	synctest.Test(t, func(t *testing.T) { said = buckettest.Told(t.Context(), newBucket) })
	return said
}

// mistakes returns the mistakes that engine_test.go has.
func mistakes(t *testing.T) (found []string) {
	source, err := os.ReadFile("engine_test.go")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`e\.is\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			found = append(found, m[1])
		}
	}
	require.Greater(t, len(found), 40)
	return found
}

// Checks that need an optional method are left out where it is missing, and no other check is.
func TestRunNeedsNoOptionalMethods(t *testing.T) {
	require.Empty(t, told(t, func() shared.Bucket { return struct{ shared.Bucket }{newEngine("")} }))
}
