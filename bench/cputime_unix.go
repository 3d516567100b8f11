//go:build unix

package main

import (
	"fmt"
	"syscall"
	"time"
)

// cpuTime is what the process has used of the processors so far, in its own
// code and in the kernel's.
func cpuTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
