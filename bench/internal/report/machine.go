package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// A Machine is what the figures depend on beside the code. It has nothing by
// which one machine can be told from another of its kind.
type Machine struct {
	System     string
	Processor  string
	CPUs       int
	Memory     string
	Kernel     string
	Go         string
	GOMAXPROCS int
	Commit     string // of the benchmark, where Go has noted it
}

// ThisMachine returns the one that this process runs on.
func ThisMachine() Machine {
	m := Machine{
		System:     runtime.GOOS + "/" + runtime.GOARCH,
		Processor:  "unknown",
		CPUs:       runtime.NumCPU(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		Commit:     commit(),
	}
	if name := fieldOf("/proc/cpuinfo", "model name"); name != "" {
		m.Processor = name
	}
	var kib int
	if _, err := fmt.Sscan(fieldOf("/proc/meminfo", "MemTotal"), &kib); err == nil {
		m.Memory = fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	return m
}

// fieldOf returns the first value of a field in a file of "field: value" lines, as
// Linux has them; "" where there is none.
func fieldOf(file, field string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, is := strings.Cut(lines.Text(), ":"); is && strings.TrimSpace(name) == field {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// commit returns what go build has noted of the source; go run notes nothing.
func commit() string {
	about, known := debug.ReadBuildInfo()
	if !known {
		return ""
	}
	settings := make(map[string]string)
	for _, s := range about.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision != "" && settings["vcs.modified"] == "true" {
		revision += ", modified"
	}
	return revision
}

func (m Machine) String() string {
	known := []string{fmt.Sprintf("%s, %s (%s)", m.System, m.Processor, Counted(m.CPUs, "CPU"))}
	if m.Memory != "" {
		known = append(known, m.Memory)
	}
	if m.Kernel != "" {
		known = append(known, "kernel "+m.Kernel)
	}
	known = append(known, fmt.Sprintf("%s, GOMAXPROCS %d", m.Go, m.GOMAXPROCS))
	if m.Commit != "" {
		known = append(known, "commit "+m.Commit)
	}
	return strings.Join(known, ", ")
}
