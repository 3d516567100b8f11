package report

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"example.com/leakybucket/bench/internal/measure"
)

// A Machine is what the figures depend on beside the code. Nothing in it
// distinguishes one machine from another of its kind.
type Machine struct {
	System, Processor  string
	CPUs               int
	Memory, Kernel, Go string
	GOMAXPROCS         int
}

// ThisMachine returns the one that this process runs on.
func ThisMachine() Machine {
	m := Machine{
		System:     runtime.GOOS + "/" + runtime.GOARCH,
		Processor:  "unknown",
		CPUs:       runtime.NumCPU(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
	if name := measure.ProcField("/proc/cpuinfo", "model name"); name != "" {
		m.Processor = name
	}
	var kib int
	if _, err := fmt.Sscan(measure.ProcField("/proc/meminfo", "MemTotal"), &kib); err == nil {
		m.Memory = fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	return m
}

func (m Machine) String() string {
	known := []string{fmt.Sprintf("%s, %s (%d CPUs)", m.System, m.Processor, m.CPUs)}
	if m.Memory != "" {
		known = append(known, m.Memory)
	}
	if m.Kernel != "" {
		known = append(known, "kernel "+m.Kernel)
	}
	return strings.Join(append(known, fmt.Sprintf("%s, GOMAXPROCS %d", m.Go, m.GOMAXPROCS)), ", ")
}
