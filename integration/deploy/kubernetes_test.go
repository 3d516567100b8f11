package deploy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"example.com/leakybucket/internal/servers"
)

// A cluster is all that the files of the folder make, by names.
type cluster struct {
	configs     map[string]core.ConfigMap
	deployments map[string]apps.Deployment
	sets        map[string]apps.StatefulSet
	services    map[string]core.Service
	budgets     map[string]policy.PodDisruptionBudget
	networks    map[string]network.NetworkPolicy
}

// gatewayFolder has the manifests of the gateway, which kubectl apply does not take with those of the folder above.
const gatewayFolder = "kubernetes/gateway"

// readCluster reads the manifests into the types of the API, as strictly as it does: a field that
// there is not, or one that is there twice, is an error. more are folders beside that of the front.
func readCluster(t *testing.T, more ...string) cluster {
	c := cluster{
		map[string]core.ConfigMap{}, map[string]apps.Deployment{}, map[string]apps.StatefulSet{},
		map[string]core.Service{}, map[string]policy.PodDisruptionBudget{}, map[string]network.NetworkPolicy{},
	}
	var files []string
	for _, dir := range append(more, "kubernetes") {
		found, err := filepath.Glob(filepath.Join(folder, dir, "*"))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		files = append(files, found...)
	}
	for _, file := range files {
		if filepath.Join(folder, gatewayFolder) == file {
			continue
		}
		require.Regexp(t, `\.yaml$`, file, "kubectl apply -f takes the whole folder")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for manifest := range strings.SplitSeq(string(text), "\n---\n") {
			c.add(t, file, []byte(manifest))
		}
	}
	return c
}

func (c cluster) add(t *testing.T, file string, manifest []byte) {
	var kind struct{ APIVersion, Kind string }
	require.NoError(t, yaml.Unmarshal(manifest, &kind), file)
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 ConfigMap":
		addTo(t, c.configs, file, manifest, func(o core.ConfigMap) string { return o.Name })
	case "apps/v1 Deployment":
		addTo(t, c.deployments, file, manifest, func(o apps.Deployment) string { return o.Name })
	case "apps/v1 StatefulSet":
		addTo(t, c.sets, file, manifest, func(o apps.StatefulSet) string { return o.Name })
	case "v1 Service":
		addTo(t, c.services, file, manifest, func(o core.Service) string { return o.Name })
	case "networking.k8s.io/v1 NetworkPolicy":
		addTo(t, c.networks, file, manifest, func(o network.NetworkPolicy) string { return o.Name })
	case "policy/v1 PodDisruptionBudget":
		addTo(t, c.budgets, file, manifest, func(o policy.PodDisruptionBudget) string { return o.Name })
	default:
		require.FailNowf(t, "the test does not know this kind", "%s: %+v", file, kind)
	}
}

func addTo[T any](t *testing.T, all map[string]T, file string, manifest []byte, name func(T) string) {
	var object T
	require.NoError(t, yaml.UnmarshalStrict(manifest, &object), file)
	require.NotEmpty(t, name(object), file)
	require.NotContains(t, all, name(object), file)
	all[name(object)] = object
}

// front returns what the tests are about: the pods of shaperd, their container and the Caddyfile.
func (c cluster) front(t *testing.T) (d apps.Deployment, container core.Container, caddyfile string) {
	d = c.deployments["shaperd"]
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	caddyfile = c.configs["shaperd"].Data["Caddyfile"]
	require.NotEmpty(t, caddyfile)
	return d, d.Spec.Template.Spec.Containers[0], caddyfile
}

func TestManifestsFitTogether(t *testing.T) {
	c := readCluster(t, gatewayFolder)
	pods := map[string]core.PodTemplateSpec{"redis": c.sets["redis"].Spec.Template}
	require.Equal(t, pods["redis"].Labels, c.sets["redis"].Spec.Selector.MatchLabels)
	require.Equal(t, "redis", c.sets["redis"].Spec.ServiceName)
	require.Len(t, c.services, 3)
	for _, name := range []string{"shaperd", "gateway"} {
		d := c.deployments[name]
		require.EqualValues(t, 3, *d.Spec.Replicas)
		pods[name] = d.Spec.Template
		require.Equal(t, pods[name].Labels, d.Spec.Selector.MatchLabels)
		budget := c.budgets[name].Spec
		require.Equal(t, pods[name].Labels, budget.Selector.MatchLabels)
		require.Less(t, budget.MinAvailable.IntVal, *d.Spec.Replicas, "else no node can be drained")
		for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
			require.Equal(t, pods[name].Labels, spread.LabelSelector.MatchLabels)
		}
	}
	ofRedis := c.networks["redis"].Spec
	require.Equal(t, pods["redis"].Labels, ofRedis.PodSelector.MatchLabels)
	require.Contains(t, portsOf(pods["redis"]), ofRedis.Ingress[0].Ports[0].Port.String())
	for _, from := range ofRedis.Ingress[0].From[0].PodSelector.MatchExpressions {
		require.Equal(t, "app", from.Key)
		require.ElementsMatch(t, []string{pods["shaperd"].Labels["app"], pods["gateway"].Labels["app"]}, from.Values)
	}
	for name, s := range c.services {
		require.Equal(t, pods[name].Labels, s.Spec.Selector, name)
		for _, port := range s.Spec.Ports {
			require.Contains(t, portsOf(pods[name]), port.TargetPort.String(), name)
		}
	}
	for name, pod := range pods {
		require.True(t, *pod.Spec.SecurityContext.RunAsNonRoot, name)
		var volumes []string
		for _, v := range pod.Spec.Volumes {
			volumes = append(volumes, v.Name)
			if v.ConfigMap != nil {
				require.Contains(t, c.configs, v.ConfigMap.Name)
			}
		}
		for _, claim := range c.sets[name].Spec.VolumeClaimTemplates {
			volumes = append(volumes, claim.Name)
		}
		for _, container := range pod.Spec.Containers {
			require.True(t, *container.SecurityContext.ReadOnlyRootFilesystem, name)
			for _, mount := range container.VolumeMounts {
				require.Contains(t, volumes, mount.Name)
				require.Empty(t, mount.SubPath, "a file that is mounted by subPath never changes")
			}
		}
	}
}

// portsOf returns the ports of a pod by their names.
func portsOf(pod core.PodTemplateSpec) map[string]int32 {
	ports := map[string]int32{}
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			ports[port.Name] = port.ContainerPort
		}
	}
	return ports
}

// durationOf returns the duration that stands behind the name of an option in a file. In a Caddyfile it may be
// the default of a variable.
func durationOf(t *testing.T, file, option string) time.Duration {
	m := regexp.MustCompile(`(?m)^\s*` + option + `[=: ]+(?:\{\$\w+:)?(\w+)`).FindStringSubmatch(file)
	require.NotNil(t, m, option)
	d, err := time.ParseDuration(m[1])
	require.NoError(t, err)
	return d
}

func TestPodsEndInGoodOrder(t *testing.T) {
	d, container, caddyfile := readCluster(t).front(t)
	delay, grace := durationOf(t, caddyfile, "shutdown_delay"), durationOf(t, caddyfile, "grace_period")
	whole := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	require.Greater(t, whole, delay+grace+5*time.Second, "the kubelet kills what still runs then")
	ready := container.ReadinessProbe
	noticed := time.Duration(ready.PeriodSeconds*ready.FailureThreshold) * time.Second
	require.Greater(t, delay, noticed, "requests must be taken until it is known that the pod is not ready")
	require.Greater(t, grace, 20*time.Second, "the line is as long as wait of the limits, at most 10 s")
	require.NotEqual(t, ready.HTTPGet.Path, container.LivenessProbe.HTTPGet.Path, "a pod that ends is not to be killed for it")
}

func TestManifestsSayWhatTheImageAndTheCaddyfileSay(t *testing.T) {
	c := readCluster(t)
	d, container, caddyfile := c.front(t)
	image := readDockerfile(t)
	require.Equal(t, image.entrypoint[1:], container.Args)
	require.Empty(t, container.Command)
	user := d.Spec.Template.Spec.SecurityContext
	require.Equal(t, image.user, fmt.Sprintf("%d:%d", *user.RunAsUser, *user.RunAsGroup))
	paths := map[string]string{}
	for _, mount := range container.VolumeMounts {
		paths[mount.Name] = mount.MountPath
	}
	require.Equal(t, "/data", paths["data"])
	require.True(t, image.owned["/data"])
	require.Contains(t, container.Args, paths["config"]+"/Caddyfile")
	require.Contains(t, caddyfile, "{$SHAPERD_CONFIG:"+paths["config"]+"}/shaper.yaml")
	require.Contains(t, c.configs["shaperd"].Data, "shaper.yaml")

	for name, port := range portsOf(d.Spec.Template) {
		require.Containsf(t, caddyfile, fmt.Sprintf(":%d} {", port), "nothing listens at the port %s", name)
	}
	require.Contains(t, caddyfile, fmt.Sprintf("fallback local %d ", *d.Spec.Replicas))
	store := c.services["redis"]
	require.Contains(t, caddyfile, fmt.Sprintf("redis://%s:%d", store.Name, store.Spec.Ports[0].Port))
}

// Prometheus finds the pods by the label and the port that they have. Debian's promtool knows no discovery in
// Kubernetes, so it judges the rest.
func TestPrometheusFindsThePods(t *testing.T) {
	text := read(t, "prometheus-kubernetes.yml")
	d, _, _ := readCluster(t).front(t)
	require.Contains(t, text, "[__meta_kubernetes_pod_label_app, __meta_kubernetes_pod_container_port_name]\n        regex: "+d.Spec.Template.Labels["app"]+";metrics\n")
	require.Contains(t, portsOf(d.Spec.Template), "metrics")
	const discovery = "    kubernetes_sd_configs:\n      - role: pod\n"
	require.Contains(t, text, discovery)
	require.Contains(t, text, "job_name: shaperd\n", "rules.yml has an alert for the job")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(read(t, "rules.yml")), 0o600))
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(text, discovery, "", 1)), 0o600))
	promtool(t, "check", "config", file)
}

// The program takes what the ConfigMap has, answers the probes as the kubelet asks them, has metrics where
// Prometheus looks, and notices that the kubelet has brought another file.
func TestShaperdRunsWithTheConfigMap(t *testing.T) {
	t.Parallel()
	binary := program(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := readCluster(t)
	d, container, _ := c.front(t)
	redis := servers.StartRedis(t)
	upstream := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(upstream.Close)

	// The kubelet keeps the files in a folder of their own, to which a link leads that it replaces.
	mounted := t.TempDir()
	bring := func(version string, files map[string]string) {
		dir := filepath.Join(mounted, version)
		require.NoError(t, os.Mkdir(dir, 0o755))
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		require.NoError(t, os.Symlink(version, filepath.Join(mounted, "new")))
		require.NoError(t, os.Rename(filepath.Join(mounted, "new"), filepath.Join(mounted, "..data")))
	}
	files := c.configs["shaperd"].Data
	bring("..1", files)
	for name := range files {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(mounted, name)))
	}

	data := t.TempDir()
	args := append([]string{}, container.Args...)
	for i, arg := range args {
		args[i] = strings.Replace(arg, "/etc/shaperd", mounted, 1)
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{"HOME=" + data, "XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + data, "SHAPERD_CONFIG=" + mounted}
	s := settle(t, cmd, redis, upstream.URL)
	s.serves = http.StatusNotFound // the upstream's answer
	s.run(t)

	bases := map[string]string{"http": s.front, "metrics": s.metrics}
	probe := func(p *core.Probe) int {
		status, _ := get(bases[p.HTTPGet.Port.String()] + p.HTTPGet.Path)
		return status
	}
	require.Equal(t, http.StatusOK, probe(container.ReadinessProbe))
	require.Equal(t, http.StatusOK, probe(container.LivenessProbe))
	require.Contains(t, portsOf(d.Spec.Template), container.ReadinessProbe.HTTPGet.Port.String())
	require.Contains(t, portsOf(d.Spec.Template), container.LivenessProbe.HTTPGet.Port.String())
	s.Until(func() bool {
		_, metrics := get(s.metrics + "/metrics")
		return strings.Contains(metrics, `shaper_bucket_state{rule="front",state="shared"} 1`) &&
			strings.Contains(metrics, `shaper_config_last_reload_successful{rule="front"} 1`)
	}, "Prometheus is told of the bucket and of the rules")
	status, _ := get(s.page)
	require.Equal(t, http.StatusOK, status)

	bring("..2", map[string]string{"Caddyfile": files["Caddyfile"], "shaper.yaml": "default: what?\n"})
	s.Until(func() bool {
		_, metrics := get(s.metrics + "/metrics")
		return strings.Contains(metrics, `shaper_config_last_reload_successful{rule="front"} 0`)
	}, "it notices the new file, and that it has a mistake")

	require.Zero(t, s.Stop(syscall.SIGTERM))
}

// The pods of the gateway have one line through the Service's Redis, at the addresses that they advertise.
func TestThePodsOfTheGatewayHaveOneLine(t *testing.T) {
	t.Parallel()
	binary := program(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := readCluster(t, gatewayFolder)
	d := c.deployments["gateway"]
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	container, ports := d.Spec.Template.Spec.Containers[0], portsOf(d.Spec.Template)
	require.Equal(t, "status.podIP", container.Env[0].ValueFrom.FieldRef.FieldPath)
	require.Contains(t, container.Args, fmt.Sprintf("--store-fallback=%d", *d.Spec.Replicas))
	whole := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	drain := time.Duration(container.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	require.Greater(t, whole, drain+time.Minute+5*time.Second, "shaperd llm gives calls a minute, and the kubelet kills what still runs then")
	store := c.services["redis"]
	redis := servers.StartRedis(t)
	came := make(chan string, 10)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came <- r.URL.Path
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(upstream.Close)

	var pods []*servers.Process
	var fronts, pages []string
	for range int(*d.Spec.Replicas) {
		front, page := fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))
		args := []string{}
		for _, arg := range container.Args {
			args = append(args, strings.NewReplacer(
				fmt.Sprintf("=:%d", ports["http"]), "="+front, fmt.Sprintf("=:%d", ports["metrics"]), "="+page,
				fmt.Sprintf("=$(%s):%d", container.Env[0].Name, ports["http"]), "="+front,
				fmt.Sprintf("redis://%s:%d", store.Name, store.Spec.Ports[0].Port), "redis://"+redis.Addr,
			).Replace(arg))
		}
		pod := servers.Start(t, servers.Shaperd(t, binary, append(args, "--upstream", upstream.URL)...))
		pod.Says("Other replicas reach this one at " + front)
		pods, fronts, pages = append(pods, pod), append(fronts, "http://"+front), append(pages, "http://"+page)
	}
	keepers := func() (n int) {
		for _, page := range pages {
			_, metrics := get(page + "/metrics")
			n += strings.Count(metrics, `shaper_replica_keeper{rule="openai"} 1`)
		}
		return n
	}
	pods[0].Until(func() bool { return keepers() == 1 }, "one has the line")
	for i, front := range fronts {
		for _, probe := range []*core.Probe{container.ReadinessProbe, container.LivenessProbe} {
			require.Equal(t, "http", probe.HTTPGet.Port.String())
			status, _ := get(front + probe.HTTPGet.Path)
			require.Equal(t, http.StatusOK, status)
		}
		path := fmt.Sprintf("/v1/models/%d", i)
		status, _ := get(front + path)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, path, <-came)
	}
	require.Equal(t, 1, keepers())
	for _, pod := range pods {
		require.Zero(t, pod.Stop(syscall.SIGTERM))
	}
}

// root is the tree.
const root = "../.."

func TestMain(m *testing.M) {
	status := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(status)
}

var (
	built     string // the path of shaperd, once it is built
	buildOnce = sync.OnceValues(func() (text []byte, err error) {
		dir, err := os.MkdirTemp("", "deploy-test-")
		if err != nil {
			return nil, err
		}
		built = filepath.Join(dir, "shaperd")
		build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "./cmd/shaperd")
		build.Dir = root
		workspace, err := filepath.Abs(filepath.Join(root, "all.work"))
		if err != nil {
			return nil, err
		}
		build.Env = append(os.Environ(), "GOWORK="+workspace)
		return build.CombinedOutput()
	})
)

// program returns the path of shaperd, which is built once for all tests that need it.
func program(t *testing.T) string {
	text, err := buildOnce()
	require.NoErrorf(t, err, "%s", text)
	return built
}

// command returns a command of a program that the tests need. pkg is the package of Debian
// that has the program.
func command(t *testing.T, program, pkg string, args ...string) *exec.Cmd {
	return exec.Command(servers.Need(t, "apt-get install "+pkg, program), args...)
}

// read returns the text of a file of the folder.
func read(t *testing.T, path ...string) string {
	text, err := os.ReadFile(filepath.Join(append([]string{folder}, path...)...))
	require.NoError(t, err)
	return string(text)
}
