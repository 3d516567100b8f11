//go:build !linux

package proxies

import "time"

// pause sleeps for d.
func pause(d time.Duration) { time.Sleep(d) }
