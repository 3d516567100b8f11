//go:build !linux

package nginx

import "time"

// pause sleeps for d.
func pause(d time.Duration) { time.Sleep(d) }
