package measure_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

func TestQuantiles(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	require.Equal(t, 1.0, measure.Quantile(values, 0))
	require.Equal(t, 2.5, measure.Quantile(values, 0.5))
	require.Equal(t, 4.0, measure.Quantile(values, 1))
	require.Equal(t, []float64{4, 1, 3, 2}, values, "the values stay as they are")
	require.Equal(t, 7.0, measure.Quantile([]float64{7}, 0.99))
	require.InDelta(t, 99.0, measure.Quantile([]float64{100, 0}, 0.99), 1e-9)
	require.Equal(t, 2.0, measure.Median(3, 1, 2))
	require.False(t, measure.Known(measure.Quantile(nil, 0.5)))
	require.False(t, measure.Known(measure.Median(1, measure.Unknown, 2)))
}

func TestRoundsBecomeMediansMaximaAndSums(t *testing.T) {
	type Timing struct{ Ns float64 }
	type round struct {
		Timing  // as results embed what they share
		Limiter string
		Burst   float64 `rounds:"max"`
		Count   int
		Bins    []int
		Each    []Timing
	}
	rounds := []round{
		{Timing{1}, "a", 7, 10, []int{1, 0}, []Timing{{5}, {1}}},
		{Timing{0.5}, "a", 9, 20, []int{2, 2}, []Timing{{6}, {2}}},
		{Timing{0.9}, "a", 8, 30, []int{3, 3}, []Timing{{7}, {9}}},
	}
	require.Equal(t, round{Timing{0.9}, "a", 9, 60, []int{6, 5}, []Timing{{6}, {2}}}, measure.Medians(rounds))
	require.Equal(t, []int{1, 0}, rounds[0].Bins, "the rounds stay as they are")
	require.Equal(t, []Timing{{2}}, measure.Medians([][]Timing{{{1}}, {{9}}, {{2}}}))
	none := measure.Medians[round](nil)
	require.False(t, measure.Known(none.Ns) || measure.Known(none.Burst))
	require.Zero(t, none.Count)
}
