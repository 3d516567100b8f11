//go:build unix

package measure

import "syscall"

// CPUTime returns the processor time, in nanoseconds, that the process has used
// so far in its own code and in the kernel's.
func CPUTime() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return Unknown
	}
	return float64(used.Utime.Nano() + used.Stime.Nano())
}
