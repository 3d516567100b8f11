package proxies

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"example.com/leakybucket/bench/internal/measure"
)

// usage is what a process and those that it has started use, as Linux tells it.
type usage struct {
	cpu      float64 // user and system, in nanoseconds, since they started
	resident float64 // bytes
	files    int     // open
}

// tick is the unit in which Linux counts processor time, on every architecture.
const tick = 1e9 / 100

// usage asks the system. Where it does not tell, all is unknown, without an error.
func (p *process) usage() (usage, error) {
	if !measure.MemoryIsTold() {
		return usage{measure.Unknown, measure.Unknown, 0}, nil
	}
	sum := usage{}
	for _, pid := range family(strconv.Itoa(p.cmd.Process.Pid)) {
		one, err := usageOf(filepath.Join("/proc", pid))
		if err != nil {
			return usage{}, err
		}
		sum = usage{sum.cpu + one.cpu, sum.resident + one.resident, sum.files + one.files}
	}
	return sum, nil
}

// family returns a process and all that it has started: nginx has a process for each
// processor.
func family(pid string) []string {
	all := []string{pid}
	lists, _ := filepath.Glob(filepath.Join("/proc", pid, "task/*/children")) // The pattern is well formed.
	for _, list := range lists {
		children, _ := os.ReadFile(list) // The thread may have ended.
		for _, child := range strings.Fields(string(children)) {
			all = append(all, family(child)...)
		}
	}
	return all
}

// usageOf reads what a folder of /proc has.
func usageOf(dir string) (usage, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return usage{}, err
	}
	// The name of the program, which may have blanks, is the second field, in parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("%s/stat is %q", dir, stat)
	}
	u := usage{}
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseFloat(ticks, 64)
		if err != nil {
			return usage{}, fmt.Errorf("%s/stat is %q: %w", dir, stat, err)
		}
		u.cpu += n * tick
	}
	if u.resident, err = measure.ResidentOf(dir); err != nil {
		return usage{}, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	u.files = len(files)
	return u, err
}
