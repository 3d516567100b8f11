package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// A machine is where something was measured.
type machine struct {
	System     string `json:"system"`
	Processor  string `json:"processor,omitempty"` // empty: not known
	Processors int    `json:"processors"`
	Go         string `json:"go"`
}

func thisMachine() machine {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo") // Only Linux has it.
	return machine{
		System:     runtime.GOOS + "/" + runtime.GOARCH,
		Processor:  modelName(string(cpuinfo)),
		Processors: runtime.NumCPU(),
		Go:         runtime.Version(),
	}
}

func modelName(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m machine) String() string {
	processor := m.Processor
	if processor == "" {
		processor = "processors"
	}
	return fmt.Sprintf("%s, %d × %s, %s", m.System, m.Processors, processor, m.Go)
}
