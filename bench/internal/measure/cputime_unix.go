//go:build unix

package measure

import (
	"fmt"
	"syscall"
)

// CPUTime returns the processor time, in nanoseconds, that the process has used
// so far in its own code and in the kernel's.
func CPUTime() (float64, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return float64(used.Utime.Nano() + used.Stime.Nano()), nil
}
