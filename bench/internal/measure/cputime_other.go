//go:build !unix

package measure

// CPUTime is not known on this system.
func CPUTime() float64 { return Unknown }
