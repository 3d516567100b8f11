package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

var sampleTable = Table{
	Title:   "Pace",
	Note:    strings.Repeat("Measured. ", 11),
	Columns: []string{"who", "µs", "allocations", "what"},
	Rows: [][]string{
		{"ours", "9.5", "0", "even | calm"},
		{"x-time", "1,029", "< 0.001", ""},
		{"µ", "-", "12", "2 words"},
	},
}

func TestMarkdownIsATable(t *testing.T) {
	require.Equal(t, strings.Join([]string{
		"### Pace",
		"",
		strings.TrimSpace(strings.Repeat("Measured. ", 10)),
		"Measured.",
		"",
		"| who    |    µs | allocations | what        |",
		"| ------ | ----: | ----------: | ----------- |",
		`| ours   |   9.5 |           0 | even \| calm |`,
		"| x-time | 1,029 |     < 0.001 |             |",
		"| µ      |     - |          12 | 2 words     |",
		"",
	}, "\n"), sampleTable.Markdown())
}

func TestATableWithoutColumnsIsItsNote(t *testing.T) {
	note := Table{Title: "nginx", Note: "Not measured."}
	require.Equal(t, "### nginx\n\nNot measured.\n\n", note.Markdown())
}

func TestFigures(t *testing.T) {
	for want, x := range map[string]float64{
		"0": 0, "< 0.001": 0.0004, "0.004": 0.0042, "0.290": 0.29, "0.999": 0.9994, "1.00": 0.9996, "10.0": 9.996, "9.91": 9.91, "12.2": 12.24,
		"104": 104.4, "999": 999.4, "1,000": 999.6, "67,256": 67256.2, "-1,234,567": -1234567, "-2.50": -2.5,
	} {
		require.Equal(t, want, Figure(x), "%v", x)
	}
	require.Equal(t, "-", Figure(measure.Unknown))
	require.Equal(t, "-", Fixed(measure.Unknown, 2))
	require.Equal(t, "1.50", Fixed(1.5, 2))
}

func TestWordsForPeople(t *testing.T) {
	require.Equal(t, "100,000/s", PerSecond(100_000))
	require.Equal(t, "1 waiter", Counted(1, "waiter"))
	require.Equal(t, "10,000 waiters", Counted(10_000, "waiter"))
	require.Equal(t, "some seconds", Roughly(9*time.Second))
	require.Equal(t, "40 s", Roughly(37*time.Second))
	require.Equal(t, "2 min", Roughly(100*time.Second))
	require.Equal(t, "6 min", Roughly(390*time.Second-31*time.Second))
}

func TestWordsWrapAtTheirWidth(t *testing.T) {
	require.Equal(t, []string{"a bc", "def", "g"}, Wrap(" a bc\n def g", 4))
	require.Equal(t, []string{"longer", "than"}, Wrap("longer than", 4))
	require.Empty(t, Wrap("", 4))
}
