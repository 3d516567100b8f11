package deploy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/internal/servers"
)

// A service of compose.yaml. Lines of text are enough for all that the file says of it.
type service struct {
	Image     string
	Build     struct{ Context, Dockerfile string }
	Ports     []string
	Volumes   []string
	DependsOn []string `yaml:"depends_on"`
	ReadOnly  bool     `yaml:"read_only"`
}

func composed(t *testing.T) (services map[string]service, volumes map[string]any) {
	var file struct {
		Services map[string]service
		Volumes  map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "compose.yaml")), &file))
	return file.Services, file.Volumes
}

func TestServicesOfComposeFitTogether(t *testing.T) {
	services, volumes := composed(t)
	var names []string
	published := map[string]string{}
	for name, s := range services {
		names = append(names, name)
		for _, port := range s.Ports {
			host := port[:strings.LastIndex(port, ":")]
			require.Emptyf(t, published[host], "port %s of %s", host, name)
			published[host] = name
		}
		for _, other := range s.DependsOn {
			require.Contains(t, services, other, name)
		}
		for _, mount := range s.Volumes {
			from, _, named := strings.Cut(mount, ":")
			switch {
			case strings.HasPrefix(from, "."): // Docker makes a folder of what is missing.
				// A file that is mounted alone shows its first text for ever, if
				// an editor, git or a deployment replaces it by renaming.
				require.DirExistsf(t, filepath.Join(folder, from), "%s: mount folders, and no single file", mount)
				require.Truef(t, strings.HasSuffix(mount, ":ro"), "%s: the files of the tree are not to be written", mount)
			case named:
				require.Contains(t, volumes, from, name)
			}
		}
		if s.Build.Dockerfile != "" {
			require.FileExists(t, filepath.Join(folder, s.Build.Context, s.Build.Dockerfile))
		} else {
			require.Regexpf(t, `:v?\d`, s.Image, "%s has no version", name)
		}
	}
	require.ElementsMatch(t, []string{"shaperd-1", "shaperd-2", "upstream", "redis", "prometheus", "grafana"}, names)
	require.True(t, services["shaperd-1"].ReadOnly && services["shaperd-2"].ReadOnly)
}

// What one file calls another service, another file must have as its name, and with the port
// at which it listens.
func TestFilesOfComposeNameEachOther(t *testing.T) {
	services, _ := composed(t)
	caddyfile := read(t, "Caddyfile")
	require.Contains(t, caddyfile, "redis://redis:6379")
	require.Contains(t, caddyfile, "upstream:80}")
	for _, s := range []string{"shaperd-1", "shaperd-2"} {
		require.Contains(t, read(t, "prometheus.yml"), s+":9180")
	}
	for _, mount := range services["shaperd-1"].Ports {
		port := mount[strings.LastIndex(mount, ":")+1:]
		require.Contains(t, caddyfile, ":"+port+"}", "the port that compose.yaml publishes")
	}
	require.Contains(t, caddyfile, ":9180}")

	var sources struct {
		Datasources []struct{ UID, URL string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "grafana", "provisioning", "datasources", "prometheus.yaml")), &sources))
	require.Len(t, sources.Datasources, 1)
	_, asked := expressions(t)
	for _, uid := range asked {
		require.Equal(t, uid, sources.Datasources[0].UID)
	}
	require.Equal(t, "http://prometheus:9090", sources.Datasources[0].URL)
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "grafana", "provisioning", "dashboards", "shaper.yaml")), &providers))
	require.Len(t, providers.Providers, 1)
	require.True(t, slices.ContainsFunc(services["grafana"].Volumes, func(mount string) bool {
		return strings.HasPrefix(mount, "./grafana:"+providers.Providers[0].Options.Path+":")
	}), "the board is where its provider looks")
	require.FileExists(t, filepath.Join(folder, "grafana", "shaper.json"))
}

// The image is built by the compiler that the tree is tested with.
func TestImageIsBuiltByTheToolchainOfTheWorkspace(t *testing.T) {
	workspace, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	toolchain := regexp.MustCompile(`(?m)^toolchain go(\S+)$`).FindSubmatch(workspace)
	require.NotNil(t, toolchain)
	require.Contains(t, read(t, "Dockerfile"), "\nFROM golang:"+string(toolchain[1])+" AS build\n")
}

// A shaperd is a process that runs with the Caddyfile of compose.yaml.
type shaperd struct {
	*servers.Process
	command              *exec.Cmd
	front, page, metrics string // URLs
	data                 string // its folder
	serves               int    // the status of a request that the upstream has answered
}

// settle gives a command its environment: addresses of this machine, where compose.yaml has
// addresses of services.
func settle(t *testing.T, cmd *exec.Cmd, redis *servers.Redis, upstream string) *shaperd {
	port := func() int { return servers.FreePort(t) }
	front, page, metrics := port(), port(), port()
	cmd.Env = append(cmd.Env,
		fmt.Sprintf("SHAPERD_PORT=%d", front), fmt.Sprintf("SHAPERD_PAGE_PORT=%d", page), fmt.Sprintf("SHAPERD_METRICS_PORT=%d", metrics),
		fmt.Sprintf("CADDY_ADMIN=127.0.0.1:%d", port()),
		"SHAPERD_STORE=redis://"+redis.Addr, "SHAPERD_UPSTREAM="+strings.TrimPrefix(upstream, "http://"),
		"SHAPERD_DELAY=10ms", "SHAPERD_GRACE=20s")
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	return &shaperd{command: cmd, serves: http.StatusOK, front: url(front), page: url(page), metrics: url(metrics)}
}

// run starts the process, and returns when it serves.
func (s *shaperd) run(t *testing.T) {
	s.Process = servers.Start(t, s.command)
	s.Says("serving initial configuration")
	s.Until(func() bool { // It asks the store for the first time.
		status, _ := get(s.front)
		return status == s.serves
	}, "a request leaves")
	status, _ := get(s.front + "/ready")
	require.Equal(t, http.StatusOK, status)
}

// get returns the status and the text of an answer; the status is 0 without one.
func get(url string) (status int, text string) {
	answer, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// together starts two shaperd with one Redis, and tries all that their Caddyfile promises. Whether
// two processes share the levels exactly is tried in caddyshaper; here their metrics say so.
func together(t *testing.T, make func(redis *servers.Redis, upstream string) *shaperd) {
	t.Helper()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	redis := servers.StartRedis(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "served")
	}))
	t.Cleanup(upstream.Close)
	both := []*shaperd{make(redis, upstream.URL), make(redis, upstream.URL)}
	for _, s := range both {
		s.run(t)
	}

	for i := range 10 {
		status, text := get(both[i%2].front)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "served", text)
	}
	// The rule has five, and gets one more after 12 s.
	both[0].Until(func() bool {
		answer, err := http.Post(both[0].front+"/login", "text/plain", nil)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") != ""
	}, "a client that tries too many passwords is refused")
	require.NotEmpty(t, redis.MustDo("KEYS", "*login*"))

	for _, s := range both {
		s.Until(func() bool {
			_, metrics := get(s.metrics)
			return strings.Contains(metrics, `shaper_bucket_state{rule="front",state="shared"} 1`)
		}, "the bucket is shared")
		_, metrics := get(s.metrics)
		require.Contains(t, metrics, `shaper_requests_total{result="departed",rule="front/site"}`)
		status, page := get(s.page)
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, page, "<title>")
		require.Zero(t, s.Stop(syscall.SIGTERM))
		require.FileExists(t, filepath.Join(s.data, "levels.json"), "for the next start")
	}
}

func TestTwoShaperdServeWithTheCaddyfileOfCompose(t *testing.T) {
	t.Parallel()
	binary := program(t)
	config, err := filepath.Abs(folder)
	require.NoError(t, err)
	together(t, func(redis *servers.Redis, upstream string) *shaperd {
		cmd := exec.Command(binary, "run", "--config", filepath.Join(config, "Caddyfile"))
		data := t.TempDir()
		cmd.Env = []string{"HOME=" + data, "XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + data, "SHAPERD_CONFIG=" + config}
		s := settle(t, cmd, redis, upstream)
		s.data = data
		return s
	})
}

func TestExampleForSystemdIsValid(t *testing.T) {
	t.Parallel()
	dir, binary := t.TempDir(), program(t)
	config, err := filepath.Abs(folder)
	require.NoError(t, err)
	caddyfile := strings.NewReplacer("/etc/shaperd", config, "/var/lib/shaperd", dir).Replace(read(t, "systemd", "Caddyfile"))
	file := filepath.Join(dir, "Caddyfile")
	require.NoError(t, os.WriteFile(file, []byte(caddyfile), 0o600))
	validate := exec.Command(binary, "validate", "--config", file)
	validate.Env = []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
	text, err := validate.CombinedOutput()
	require.NoErrorf(t, err, "%s", text)
	require.Contains(t, string(text), "Valid configuration")
}

// A dockerfile is a Dockerfile as far as the tests need it: enough of the format for
// the few instructions in it. No engine is needed to read it.
type dockerfile struct {
	build      []string          // the commands of the stage that builds
	copies     map[string]string // the folders of the image, by those of /out
	owned      map[string]bool   // those of the image that belong to the user
	env        []string
	user       string
	entrypoint []string // with the default arguments
}

// readDockerfile reads the Dockerfile. An instruction that it does not know is an error, so
// that none is forgotten.
func readDockerfile(t *testing.T) (d dockerfile) {
	d.copies, d.owned = map[string]string{}, map[string]bool{}
	stages := 0
	for line := range strings.Lines(read(t, "Dockerfile")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		require.Falsef(t, strings.HasSuffix(line, `\`), "%q goes on in the next line", line)
		instruction, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(rest)
		switch {
		case instruction == "FROM":
			stages++
			if stages == 2 {
				require.Equal(t, []string{"scratch"}, fields)
			}
		case stages == 1 && instruction == "RUN":
			d.build = append(d.build, rest)
		case stages == 1 && (line == "WORKDIR /src" || line == "COPY . ."):
		case stages == 2 && instruction == "COPY" && fields[0] == "--from=build":
			from, to := fields[len(fields)-2], fields[len(fields)-1]
			d.copies[from] = to
			d.owned[to] = len(fields) == 4 && fields[1] == "--chown=65532:65532"
		case stages == 2 && instruction == "ENV":
			d.env = fields
		case stages == 2 && instruction == "USER":
			d.user = rest
		case stages == 2 && (instruction == "ENTRYPOINT" || instruction == "CMD"):
			var words []string
			require.NoError(t, json.Unmarshal([]byte(rest), &words), line)
			d.entrypoint = append(d.entrypoint, words...)
		case stages == 2 && (instruction == "VOLUME" || instruction == "EXPOSE" || instruction == "STOPSIGNAL"):
		default:
			require.FailNowf(t, "the test does not know this instruction", "%q", line)
		}
	}
	require.Equal(t, 2, stages)
	return d
}

func TestImageRunsAsAUserWithoutRights(t *testing.T) {
	d := readDockerfile(t)
	require.Equal(t, "65532:65532", d.user)
	require.Equal(t, map[string]bool{"/usr": false, "/etc": false, "/data": true}, d.owned, "what the user may write to")
	require.Contains(t, d.env, "XDG_DATA_HOME=/data")
	require.Equal(t, []string{"/usr/bin/shaperd", "run", "--config", "/etc/shaperd/Caddyfile"}, d.entrypoint)
}

const unit = "shaperd.service"

// systemd names the lines that it does not understand, and goes on. So any output is a mistake.
func TestSystemdUnderstandsTheUnit(t *testing.T) {
	analyze := command(t, "systemd-analyze", "systemd", "verify")
	// It also asks whether the programs are there.
	program := filepath.Join(t.TempDir(), "shaperd")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700))
	text := read(t, "systemd", unit)
	const installed = "/usr/local/bin/shaperd"
	require.Equal(t, 2, strings.Count(text, "="+installed+" "), "ExecStart and ExecReload")
	copied := filepath.Join(t.TempDir(), unit)
	require.NoError(t, os.WriteFile(copied, []byte(strings.ReplaceAll(text, installed, program)), 0o600))
	analyze.Args = append(analyze.Args, copied)
	said, err := analyze.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Empty(t, string(said))
}

// The threshold is in tenths: what systemd calls an exposure of 2.0.
func TestUnitIsExposedToLittle(t *testing.T) {
	analyze := command(t, "systemd-analyze", "systemd", "security", "--offline=true", "--threshold=20", filepath.Join(folder, "systemd", unit))
	said, err := analyze.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "Overall exposure level for "+unit)
}

// Whoever is killed while the line drains loses those in it.
func TestNobodyIsKilledWhileTheLineDrains(t *testing.T) {
	drain := func(caddyfile string) time.Duration {
		return durationOf(t, caddyfile, "shutdown_delay") + durationOf(t, caddyfile, "grace_period")
	}
	stop := durationOf(t, read(t, "systemd", unit), "TimeoutStopSec")
	require.Greater(t, stop, drain(read(t, "systemd", "Caddyfile")))
	stop = durationOf(t, read(t, "compose.yaml"), "stop_grace_period")
	require.Greater(t, stop, drain(read(t, "Caddyfile")))
}
