package redisbucket

import (
	"fmt"

	"example.com/leakybucket/shaper"
)

// Encode returns what a server has for a level.
func Encode(l shaper.BucketLevel) string {
	return fmt.Sprintf("%d %d %d %s", l.Empty.Micros, l.Empty.Part, l.At, rateText(l.Rate))
}

var (
	Slot       = slot
	ParseTaken = parseTaken
)
