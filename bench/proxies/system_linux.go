package proxies

import (
	"syscall"
	"time"
)

// pause sleeps for d to within some 60 µs, where time.Sleep, in an idle
// process, rounds up to a millisecond. It holds its thread.
func pause(d time.Duration) {
	// Go's own signals cut a sleep short.
	for until := time.Now().Add(d); d > 0; d = time.Until(until) {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil) // It fails only by a signal.
	}
}

// mostFiles bounds the files that nginx reserves for connections where the system has no bound.
const mostFiles = 1 << 15

// openFiles returns how many files a process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // which every system allows
	}
	return int(min(uint64(limit.Max), mostFiles))
}
