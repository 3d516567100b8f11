package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A call that does not come out as it should would be measured as something
// else: a wait, or a refusal of another kind.
func TestEveryCallComesOutAsItShould(t *testing.T) {
	names := map[string]bool{}
	for _, c := range calls {
		require.False(t, names[c.name()], "two benchmarks have the name %s", c.name())
		names[c.name()] = true
		t.Run(c.name(), func(t *testing.T) {
			require.Len(t, c.measure(t, 100*time.Microsecond), len(goroutines))
		})
	}
}
