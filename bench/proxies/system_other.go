//go:build !linux

package proxies

import "time"

// openFiles returns how many files a process may have open.
func openFiles() int { return 1024 }

// pause sleeps for d.
func pause(d time.Duration) { time.Sleep(d) }
