package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
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
				// A file that is mounted alone shows what it had at first for ever, if
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
