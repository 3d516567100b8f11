package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbersAreRounded(t *testing.T) {
	for n, want := range map[int]string{0: "0", 12: "12", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		require.Equal(t, want, Number(n))
	}
	for _, test := range []struct {
		n, of int
		want  string
	}{{1, 1, "100%"}, {999, 1000, ">99%"}, {99, 100, "99%"}, {1, 3, "33%"}, {1, 10, "10%"}, {99, 1000, "9.9%"}, {1, 1000, "0.1%"}, {1, 7000, "0.014%"}, {1, 100_000, "<0.01%"}} {
		require.Equal(t, test.want, share(test.n, test.of))
	}
}
