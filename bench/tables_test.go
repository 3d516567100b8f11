package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var sampleTable = table{
	Title:   "Pace",
	Note:    "Measured.",
	Columns: []string{"who", "µs", "allocations", "what"},
	Rows: [][]string{
		{"ours", "9.5", "0", "even | calm"},
		{"x-time", "1,029", "< 0.001"},
		{"µ", "-", "12", "2 words"},
	},
}

func TestTextIsAligned(t *testing.T) {
	require.Equal(t, strings.Join([]string{
		"Pace",
		"Measured.",
		"  who        µs  allocations  what",
		"  ours      9.5            0  even | calm",
		"  x-time  1,029      < 0.001",
		"  µ           -           12  2 words",
		"",
	}, "\n"), sampleTable.text())
}

func TestMarkdownIsATable(t *testing.T) {
	require.Equal(t, strings.Join([]string{
		"### Pace",
		"",
		"Measured.",
		"",
		"| who    |    µs | allocations | what        |",
		"| ------ | ----: | ----------: | ----------- |",
		`| ours   |   9.5 |           0 | even \| calm |`,
		"| x-time | 1,029 |     < 0.001 |             |",
		"| µ      |     - |          12 | 2 words     |",
		"",
	}, "\n"), sampleTable.markdown())
}

func TestWrappedBreaksBetweenWords(t *testing.T) {
	require.Equal(t, "one two\nthree\nlongerthanall\nfour", wrapped("one two three longerthanall four", 8))
	require.Empty(t, wrapped("", 8))
}

func TestFigures(t *testing.T) {
	for want, x := range map[string]float64{
		"0": 0, "< 0.001": 0.0004, "0.004": 0.0042, "0.290": 0.29, "0.999": 0.9994, "9.91": 9.91, "12.2": 12.24,
		"104": 104.4, "999": 999.4, "1,000": 999.6, "67,256": 67256.2, "-1,234,567": -1234567, "-2.50": -2.5,
	} {
		require.Equal(t, want, figure(x), "%v", x)
	}
}

func TestWordsForPeople(t *testing.T) {
	require.Equal(t, "100,000/s", perSecond(100_000))
	require.Equal(t, "1 waiter", counted(1, "waiter"))
	require.Equal(t, "10,000 waiters", counted(10_000, "waiter"))
	require.Equal(t, "some seconds", roughly(9*time.Second))
	require.Equal(t, "40 s", roughly(37*time.Second))
	require.Equal(t, "2 min", roughly(100*time.Second))
	require.Equal(t, "6 min", roughly(390*time.Second-31*time.Second))
}
