package loadtest_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/llm/llmtest"
)

const getNode = "apt-get install nodejs npm"

func TestNodeClientsThroughAGateway(t *testing.T) {
	needLoad(t)
	node, folder := servers.Need(t, getNode, "node"), install(t)
	program := servers.BuildShaperd(t)
	for _, c := range []struct {
		client, provider string
		llmtest.Dialect
	}{
		{"openai", "openai", llmtest.OpenAI},
		{"responses", "openai", llmtest.OpenAI},
		{"anthropic", "anthropic", llmtest.Anthropic},
	} {
		t.Run(c.client, func(t *testing.T) {
			server := llmtest.New(llmtest.Config{Dialect: c.Dialect, Answer: func(c llmtest.Call) llmtest.Answer {
				a := llmtest.Answer{Output: 70, First: 20 * time.Millisecond, Took: 160 * time.Millisecond}
				if c.Stream {
					a.Took = 3 * time.Second // so that a busy client can give up in time
				}
				return a
			}})
			upstream := httptest.NewServer(server)
			defer upstream.Close()
			call := func(limits string, calls int) (r results, lines []servers.Used) {
				gateway := servers.StartLLM(t, program, upstream.URL, c.provider, "--fair header:X-Team "+limits)
				cmd := exec.Command(node, "clients.mjs", c.client, gateway.URL, fmt.Sprint(calls))
				cmd.Dir = folder
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(out, &r), string(out))
				require.Empty(t, r.Errors)
				require.Zero(t, server.Stats().Refused, "by the provider")
				return r, gateway.Usage(t, calls)
			}

			// Ten a second, and ten at once; 3 of 24 are given up.
			r, lines := call("--requests 600 --burst 1s", 24)
			require.Equal(t, 3, r.Abandoned)
			require.Equal(t, slices.Repeat([]string{strings.Repeat("word", 70)}, 21), r.Answers)
			require.Len(t, lines, 24)
			waited, unknown := 0, 0
			for _, l := range lines {
				require.Equal(t, 200, l.Status)
				require.Equal(t, "node", l.Team)
				if l.Waited > 0.05 {
					waited++
				}
				if l.Actual == nil {
					unknown++
					continue
				}
				require.Equal(t, 70, l.Actual.Output)
			}
			require.Greater(t, waited, 8)
			require.Equal(t, 3, unknown, "what was given up keeps its estimate")
			require.Eventually(t, func() bool { return server.Stats().Abandoned == 3 }, 10*time.Second, 10*time.Millisecond)

			// One leaves, one waits, and the third is refused, and comes again when it was told to.
			r, lines = call("--requests 120 --burst 500ms --depth 1", 3)
			require.Len(t, r.Answers, 3-r.Abandoned)
			refused := slices.IndexFunc(lines, func(l servers.Used) bool { return l.Status == 429 })
			require.GreaterOrEqual(t, refused, 0)
			require.Empty(t, lines[refused].Actual)
		})
	}
}

// results are what clients.mjs prints.
type results struct {
	Answers   []string
	Abandoned int
	Errors    []string
}

// install returns a folder with the script and what it imports, in the versions that package-lock.json has.
func install(t *testing.T) (folder string) {
	t.Helper()
	npm := servers.Need(t, getNode, "npm")
	folder = t.TempDir()
	for _, name := range []string{"clients.mjs", "package.json", "package-lock.json"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "npm ci: %s", out)
	return folder
}

// No script of a package runs, and no file names a server, as a mirror may serve the packages.
func TestPackagesComeFromAnyRegistry(t *testing.T) {
	lock, err := os.ReadFile("package-lock.json")
	require.NoError(t, err)
	require.NotContains(t, string(lock), "://", "npm install --package-lock-only --omit-lockfile-registry-resolved")
	var of struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	require.NoError(t, json.Unmarshal(lock, &of))
	var wanted struct{ Dependencies map[string]string }
	text, err := os.ReadFile("package.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &wanted))
	require.Len(t, wanted.Dependencies, 2)
	for name, version := range wanted.Dependencies {
		require.Equal(t, version, of.Packages["node_modules/"+name].Version, name)
	}
	for name, p := range of.Packages {
		if name != "" {
			require.NotEmpty(t, p.Integrity, name)
		}
	}
}
