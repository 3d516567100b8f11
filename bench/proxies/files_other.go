//go:build !unix

package proxies

// openFiles returns how many files a process may have open.
func openFiles() int { return 1024 }
