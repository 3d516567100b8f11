package find

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A candidate is a rate that is tried, as text and as a number.
type candidate struct {
	text string
	rate rate.Limit
}

// rates returns the rates that are tried, from 1/d to 999000000/s, in ascending order: all
// that have at most three digits in the longest unit of time in which they are at least 1.
// Between two of them is at most 1 %.
var rates = sync.OnceValue(func() []candidate {
	var all []candidate
	for _, unit := range []struct {
		name string
		less int64 // the rate in this unit from which on the next one is used
	}{{"d", 24}, {"h", 60}, {"min", 60}, {"s", 1_000_000_000}} {
		for scale := int64(1); scale < unit.less; scale *= 10 {
			for mantissa := int64(100); mantissa < 1000; mantissa++ {
				if mantissa*scale >= unit.less*100 {
					break
				}
				all = append(all, newCandidate(mantissa, scale, unit.name))
			}
		}
	}
	return all
})

// newCandidate returns the rate mantissa·scale/100 per unit.
func newCandidate(mantissa, scale int64, unit string) candidate {
	number := strconv.FormatInt(mantissa*scale/100, 10)
	if rest := mantissa * scale % 100; rest != 0 {
		number += strings.TrimRight(fmt.Sprintf(".%02d", rest), "0")
	}
	text := number + "/" + unit
	l, err := shaper.ParseLimits(text)
	if err != nil {
		panic(err) // All these rates are valid.
	}
	return candidate{text, l.Rate}
}
