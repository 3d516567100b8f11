//go:build !(linux && (amd64 || arm64 || 386 || arm))

package shaper

import (
	"errors"
	"time"
)

// openTimerFile is for Linux.
func openTimerFile(time.Time) (alarm, error) {
	return nil, errors.New("no timerfd on this system")
}
