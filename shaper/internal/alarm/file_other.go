//go:build !(linux && (amd64 || arm64 || 386 || arm))

package alarm

import (
	"errors"
	"time"
)

// OpenFile returns an error: only Linux has timerfd.
func OpenFile(time.Time) (Alarm, error) {
	return nil, errors.New("no timerfd on this system")
}
