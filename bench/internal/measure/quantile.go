package measure

import (
	"math"

	"github.com/aclements/go-moremath/stats"
)

// Unknown stands for a figure that could not be measured on this system. Results leave it
// out.
var Unknown = math.NaN()

// Known reports whether a figure was measured.
func Known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Quantile returns the value below which the share q of the values lies. Of no values it is
// [Unknown].
func Quantile(values []float64, q float64) float64 { return stats.Sample{Xs: values}.Quantile(q) }
