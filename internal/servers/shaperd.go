package servers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BuildShaperd builds the command shaperd of this tree, and returns its path. The folder in which it is
// goes when the test ends.
func BuildShaperd(t testing.TB) (program string) {
	t.Helper()
	tree, err := os.Getwd() // Tests run in the folder of their package.
	if err != nil {
		t.Fatal(err)
	}
	for !exists(filepath.Join(tree, "all.work")) {
		if tree == filepath.Dir(tree) {
			t.Fatal("there is no file all.work above this folder")
		}
		tree = filepath.Dir(tree)
	}
	program = filepath.Join(t.TempDir(), "shaperd")
	command := exec.Command("go", "build", "-o", program, ".")
	command.Dir = filepath.Join(tree, "cmd", "shaperd")
	command.Env = append(os.Environ(), "GOWORK="+filepath.Join(tree, "all.work"))
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	return program
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// A Gateway is a shaperd llm.
type Gateway struct {
	URL     string
	usage   string // the file of its usage log
	process *process
}

// StartLLM starts shaperd llm with more options, on a free port and without a page, and returns when it takes connections. It is killed
// when the test ends.
func StartLLM(t testing.TB, program, upstream, provider, options string) *Gateway {
	t.Helper()
	home := t.TempDir()
	addr := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	usage := filepath.Join(home, "usage.log")
	args := []string{"llm", "--listen", addr, "--page", "off", "--upstream", upstream, "--provider", provider, "--usage", usage}
	command := exec.Command(program, append(args, strings.Fields(options)...)...)
	command.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=")
	p := start(t, filepath.Join(home, "log"), command)
	for deadline := time.Now().Add(patience); canConnect(addr) != nil; time.Sleep(20 * time.Millisecond) {
		if !p.running() || time.Now().After(deadline) {
			t.Fatalf("shaperd llm does not answer at %s:\n%s", addr, p.output())
		}
	}
	return &Gateway{"http://" + addr, usage, p}
}

// A Used is a line of the usage log of a Gateway, as far as tests look at it.
type Used struct {
	Team   string
	Status int
	Waited float64
	Actual *struct{ Output int }
}

// Usage returns the lines of the usage log as soon as there are so many, which is soon after the calls have ended.
func (g *Gateway) Usage(t testing.TB, atLeast int) (all []Used) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(g.usage)
		if err == nil && strings.Count(string(text), "\n") >= atLeast {
			for line := range strings.Lines(string(text)) {
				var used Used
				if err := json.Unmarshal([]byte(line), &used); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				all = append(all, used)
			}
			return all
		}
		if time.Now().After(deadline) {
			t.Fatalf("fewer than %d calls in the usage log: %v, %s", atLeast, err, text)
		}
	}
}

// Log returns what the gateway has logged.
func (g *Gateway) Log(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(g.process.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Memory returns how much memory the gateway has, in bytes (VmRSS of Linux). Elsewhere the test is skipped.
func (g *Gateway) Memory(t testing.TB) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.process.command.Process.Pid))
	if err != nil {
		t.Skip("the memory of a process is asked of Linux: ", err)
	}
	for line := range strings.Lines(string(text)) {
		if n, err := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 && err == nil {
			return bytes << 10
		}
	}
	t.Fatalf("VmRSS is missing:\n%s", text)
	return 0
}
