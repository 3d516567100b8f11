package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BuildShaperd builds the command shaperd of this tree, and returns its path. The folder in which it is
// goes when the test ends.
func BuildShaperd(t testing.TB) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "shaperd")
	if err := BuildShaperdAs(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	return program
}

// BuildShaperdAs builds the command shaperd of the tree in which this process runs as a program. The end of ctx ends it.
func BuildShaperdAs(ctx context.Context, program string) error {
	tree, err := os.Getwd() // Tests run in the folder of their package.
	if err != nil {
		return err
	}
	for !exists(filepath.Join(tree, "all.work")) {
		if tree == filepath.Dir(tree) {
			return errors.New("there is no file all.work above this folder")
		}
		tree = filepath.Dir(tree)
	}
	command := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	command.Dir = filepath.Join(tree, "cmd", "shaperd")
	command.Env = append(os.Environ(), "GOWORK="+filepath.Join(tree, "all.work"))
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", errors.Join(err, ctx.Err()), text)
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Shaperd returns a command of shaperd, which has a folder of its own for all that it may write, and is started in it.
func Shaperd(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(program, args...)
	command.Dir = t.TempDir()
	command.Env = append(os.Environ(), "HOME="+command.Dir, "TMPDIR="+command.Dir, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=")
	return command
}

// A Gateway is a shaperd llm.
type Gateway struct {
	*Process
	URL   string
	usage string // the file of its usage log
}

// StartLLM starts shaperd llm with more options, on a free port and without a page, and returns when it takes connections. It is killed
// when the test ends.
func StartLLM(t testing.TB, program, upstream, provider, options string) *Gateway {
	t.Helper()
	return startLLM(t, program, address(FreePort(t)), "off", upstream, provider, options)
}

func startLLM(t testing.TB, program, addr, page, upstream, provider, options string) *Gateway {
	t.Helper()
	usage := filepath.Join(t.TempDir(), "usage.log")
	args := []string{"llm", "--listen", addr, "--page", page, "--upstream", upstream, "--provider", provider, "--usage", usage}
	p := Start(t, Shaperd(t, program, append(args, strings.Fields(options)...)...))
	p.eventually(func() error { return canConnect(addr) })
	return &Gateway{p, "http://" + addr, usage}
}

// Replicas are several shaperd llm with one store: one of them has the line. Each can be killed, and started again at its address.
// The methods are for the goroutine of the test.
type Replicas struct {
	All []*Gateway

	t        testing.TB
	start    func(addr, page string) *Gateway
	pages    []string
	provider string
}

// StartReplicas is [StartLLM] for so many replicas, and returns when one of them has the line. They write no state files.
func StartReplicas(t testing.TB, n int, program, store, upstream, provider, options string) *Replicas {
	t.Helper()
	r := &Replicas{t: t, provider: provider, start: func(addr, page string) *Gateway {
		return startLLM(t, program, addr, page, upstream, provider, options+" --state off --store "+store+" --advertise "+addr)
	}}
	for range n {
		addr, page := address(FreePort(t)), address(FreePort(t))
		r.All, r.pages = append(r.All, r.start(addr, page)), append(r.pages, page)
	}
	r.All[0].Until(func() bool { return r.Keeper() >= 0 }, "a replica has the line")
	return r
}

// Keeper returns which replica says that it has the line; -1: none does.
func (r *Replicas) Keeper() int {
	return slices.IndexFunc(r.pages, func(page string) bool {
		return strings.Contains(textAt("http://"+page+"/metrics"), "\nshaper_replica_keeper{rule=\""+r.provider+"\"} 1\n")
	})
}

// Page returns the address of the page of a replica, without a slash at its end.
func (r *Replicas) Page(i int) string { return "http://" + r.pages[i] }

// Restart starts a replica again that has ended.
func (r *Replicas) Restart(i int) {
	r.t.Helper()
	r.All[i] = r.start(strings.TrimPrefix(r.All[i].URL, "http://"), r.pages[i])
}

// textAt returns the body of an answer; "" if there is none.
func textAt(url string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
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
	var text []byte
	g.eventually(func() (err error) {
		text, err = os.ReadFile(g.usage)
		if err == nil && strings.Count(string(text), "\n") < atLeast {
			return fmt.Errorf("fewer than %d calls in the usage log: %s", atLeast, text)
		}
		return err
	})
	for line := range strings.Lines(string(text)) {
		var used Used
		if err := json.Unmarshal([]byte(line), &used); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, used)
	}
	return all
}

// Memory returns how much memory the gateway has, in bytes (VmRSS of Linux). Elsewhere the test is skipped.
func (g *Gateway) Memory(t testing.TB) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.Command.Process.Pid))
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
