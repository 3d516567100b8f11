//go:build unix

package proxies

import "syscall"

// mostFiles bounds what nginx reserves for connections where the system has no bound.
const mostFiles = 1 << 15

// openFiles returns how many files a process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // which every system allows
	}
	return int(min(uint64(limit.Max), mostFiles))
}
