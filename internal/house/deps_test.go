package house_test

// Who may import whom.

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// importPolicy says what the packages of the root module may import. Don't
// change it to make a build pass. A line reads "package: what it may import";
// "test" stands for all tests, "*" for every package without a line. The words
// are import paths, paths within the module, and "std", the standard library but
// for unsafe and syscall: what calls the kernel itself has a wall around it.
const importPolicy = `
	# The idea knows no engine, no file format and no metrics library: whoever
	# needs a line pays for nothing else. The type of a rate is x/time's, so that
	# users of its limiter need not convert.
	shaper: std internal/exact internal/fair internal/histogram internal/httpfield internal/settle shaper/shared shaper/watch golang.org/x/time/rate

	# What a Bucket is knows no Shaper: whoever writes one needs nothing else.
	shaper/shared: std

	# What is shown to people is values, without the Shaper that they are of.
	shaper/watch: std internal/histogram

	# How values are counted in buckets says nothing of what they are.
	internal/histogram: std

	# Exact time knows rates and numbers, and nothing of what is counted with it. It is the
	# one arithmetic of the engine and of whatever computes what the engine would do.
	internal/exact: std golang.org/x/time/rate

	# An alarm knows the clocks of Go and of the kernel, and no shaper.
	shaper/internal/alarm: std unsafe syscall internal/exact

	# A header field means the same whoever reads or writes it, so the package knows
	# nothing of a Shaper.
	internal/httpfield: std

	# Leaves: what net/http does with a connection, and how a hijack is noticed, can be
	# read and tested without knowing what a Shaper is. An import of shaper would be a
	# circle.
	# (unsafe and syscall: a connection is asked by a call of the kernel's.)
	shaper/internal/serverconn: std unsafe syscall
	shaper/internal/hijack: std
	shaper/internal/httpin: std internal/httpfield
	shaper/internal/httpout: std

	# Two algorithms of the literature, which know nothing of a Shaper: whoever reads
	# them needs nothing else.
	shaper/internal/sketch: std

	# In which order the requests of many keys leave is arithmetic on costs and weights: it knows no
	# time, no lock and no Shaper. It is the one order of the engine and of whatever computes what the
	# engine would do.
	internal/fair: std

	# How much of an estimate comes back is arithmetic on levels: it knows no lock, no line and no
	# Shaper. It is the one rule of the engine and of whatever computes what the engine would do.
	internal/settle: std internal/exact

	# Containers for keys know no bucket, and so no Shaper: what they hold is the Group's.
	shaper/internal/keyed: std internal/exact shaper/internal/sketch

	# What a process knows and holds of a shared level is told to it by the engine: it calls nobody,
	# and knows no line.
	shaper/internal/lease: std internal/exact shaper/shared golang.org/x/time/rate

	# What proves a Bucket is for users' tests, so it brings no test library with it.
	shaper/buckettest: std shaper/shared

	# The demo shows itself in a browser: whoever runs it first sees the line at work.
	cmd/shapedemo: std syscall adapt shaper inspect internal/limitwords

	# What users copy from and what they run needs nothing beside the idea, or the
	# root module would bring them more than they asked for. (syscall for the names
	# of signals; limitwords, because what limits mean is said in one place.)
	*: std syscall shaper internal/limitwords

	# What shows shapers to people needs nothing beside them, so that whoever wants the page
	# gets no other module with it. (x/time for the type of a rate.)
	inspect: std adapt shaper shaper/shared shaper/watch internal/limitwords internal/replay golang.org/x/time/rate

	# What finds a rate needs nothing of the engine but that a rate may change, and of HTTP what a
	# Transport reads of an answer.
	adapt: std shaper internal/httpfield golang.org/x/time/rate

	# How a text stands in a Caddyfile is said in one place, for whoever writes one. It knows no Caddy.
	internal/caddyfile: std

	# What limits mean is said in one place, for the demo and for whoever checks a file
	# of limits. It is arithmetic: it runs no Shaper and reads no file.
	internal/limitwords: std shaper internal/exact

	# What arrivals would have met under other limits is arithmetic, for inspect and for
	# whoever replays a log: it runs no Shaper.
	internal/replay: std shaper internal/exact internal/fair internal/settle golang.org/x/time/rate

	# The model is played against shaper's public API and judges it, so it shares no
	# code with it. It is for tests alone: no other line allows it.
	internal/model: std shaper golang.org/x/time/rate

	# The queue that one writes first is what tests and bench/ compare the shaper with,
	# and must get nothing from it.
	internal/naive: std

	# What starts servers for tests must build wherever they do, nested modules included.
	# (syscall for the names of signals.)
	internal/servers: std syscall

	# How tests wait in real time, and how late the machine is, says nothing of a shaper; its
	# tests use it from within, so an import of shaper would be a circle.
	internal/realtime: std

	# Tests make shapers of the text of their limits, and questions to Buckets. No other line allows it.
	internal/made: std shaper shaper/shared

	# testify's require (assert goes on after a failure, and reports what follows
	# from it), goleak for goroutines left behind, x/time/rate as the rival.
	test: std unsafe syscall adapt shaper shaper/shared shaper/watch shaper/buckettest internal/exact internal/model internal/naive internal/limitwords github.com/stretchr/testify/require go.uber.org/goleak golang.org/x/time/rate internal/servers internal/realtime internal/made
`

// nestedPolicy says the same of the nested modules that are libraries, with a line for
// each module, and for those of its packages that may import something else. Every one may import
// the packages of its module. A nested module joins the shaper to the one
// dependency it is there for: if one imported another, whoever wants gRPC would get Redis. So
// only caddyshaper, which brings them all into a server, may import other nested modules.
const nestedPolicy = `
	# Rules in a file: what reads YAML with lines and columns, and what notices that a
	# file has changed. Its command says in words what limits mean.
	config: std adapt shaper internal/limitwords golang.org/x/time/rate go.yaml.in/yaml/v4

	# The schema of the file is compared with the reader, by what editors do with it.
	config tests: github.com/santhosh-tekuri/jsonschema/v6

	# The shaper in Caddy: its core, its HTTP server and the adapter of its Caddyfile, with what
	# these log by. It brings everything that an operator may name in a Caddyfile, so it knows
	# the other modules too, except for those that are for Go programs.
	caddyshaper: std adapt shaper shaper/shared llm llm/gateway llm/promledger llm/replicas inspect config redisbucket pgbucket promshaper golang.org/x/time/rate github.com/caddyserver/caddy/v2 github.com/caddyserver/caddy/v2/caddyconfig/caddyfile github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile github.com/caddyserver/caddy/v2/modules/caddyevents github.com/caddyserver/caddy/v2/modules/caddyhttp github.com/caddyserver/caddy/v2/modules/logging github.com/dustin/go-humanize go.uber.org/zap go.uber.org/zap/exp/zapslog github.com/prometheus/client_golang/prometheus github.com/redis/go-redis/v9 github.com/jackc/pgx/v5/pgxpool

	# Its tests run it in front of a real upstream.
	caddyshaper tests: github.com/caddyserver/caddy/v2/caddyconfig github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy

	# What language models count, and how they say it, is for whoever calls them: it knows a
	# line, and no client library of a provider's. The gateway paces the calls of others as llm
	# paces its own, and knows no server and no configuration. Clients compress their requests
	# (Codex by zstd), and the standard library reads neither zstd nor brotli.
	llm: std shaper shaper/watch internal/httpfield github.com/andybalholm/brotli github.com/klauspost/compress/zstd

	# Replicas know a store and HTTP, and neither a provider nor a gateway.
	llm/replicas: std shaper/shared

	# The providers in memory know only what is counted.
	llm/llmtest: std

	# Prometheus' client is in a package of its own, which nobody else compiles.
	llm/promledger: std github.com/prometheus/client_golang/prometheus
	llm tests: github.com/prometheus/client_golang/prometheus/testutil

	# Shared buckets on Redis: its client, and for the tests a server without a clock of its
	# own.
	redisbucket: std shaper/shared github.com/redis/go-redis/v9
	redisbucket tests: shaper/buckettest github.com/alicebob/miniredis/v2

	# Shared buckets on PostgreSQL: its driver.
	pgbucket: std shaper/shared github.com/jackc/pgx/v5 github.com/jackc/pgx/v5/pgconn github.com/jackc/pgx/v5/pgxpool
	pgbucket tests: shaper/buckettest

	# Metrics for Prometheus: its client, whose client_model is needed for histograms that are
	# native and classic at once, with the protobuf runtime that makes values of its fields.
	promshaper: std adapt shaper shaper/shared shaper/watch golang.org/x/time/rate github.com/prometheus/client_golang/prometheus github.com/prometheus/client_model/go google.golang.org/protobuf/proto

	# What a scrape answers is read as Prometheus does.
	promshaper tests: shaper/buckettest github.com/prometheus/client_golang/prometheus/promhttp github.com/prometheus/client_golang/prometheus/testutil github.com/prometheus/common/expfmt google.golang.org/protobuf/encoding/protojson

	# Metrics and span events for OpenTelemetry: its API, as the SDK is the program's choice.
	otelshaper: std adapt shaper shaper/shared go.opentelemetry.io/otel go.opentelemetry.io/otel/attribute go.opentelemetry.io/otel/metric go.opentelemetry.io/otel/trace

	# The SDK reads back what was told.
	otelshaper tests: shaper/buckettest go.opentelemetry.io/otel/metric/noop go.opentelemetry.io/otel/sdk/metric go.opentelemetry.io/otel/sdk/metric/metricdata go.opentelemetry.io/otel/sdk/trace go.opentelemetry.io/otel/sdk/trace/tracetest

	# Interceptors of gRPC: its packages that name what an interceptor sees, and the message
	# that tells a client when to come back.
	grpcshaper: std shaper google.golang.org/grpc google.golang.org/grpc/codes google.golang.org/grpc/metadata google.golang.org/grpc/peer google.golang.org/grpc/status google.golang.org/genproto/googleapis/rpc/errdetails google.golang.org/protobuf/types/known/durationpb

	# Its tests call gRPC's own test service through memory.
	grpcshaper tests: google.golang.org/grpc/credentials/insecure google.golang.org/grpc/interop/grpc_testing google.golang.org/grpc/test/bufconn
`

// rootRequires are the modules that the root module may require directly.
// All of its users have them in their go.sum, so there will be no fourth: another
// dependency gets a nested module.
var rootRequires = []string{
	"github.com/stretchr/testify",
	"go.uber.org/goleak",
	"golang.org/x/time",
}

const (
	root       = "../.." // the tree, from this package's folder
	rootModule = "example.com/leakybucket"
)

// command matches the packages of a command, up to the command's name.
var command = regexp.MustCompile(`^` + rootModule + `/cmd/[^/]+`)

func TestRootModuleImportsOnlyWhatThePolicyAllows(t *testing.T) {
	t.Parallel()
	policy := parsePolicy(t, importPolicy)
	met := map[string]bool{"test": true, "*": true}
	for _, p := range listPackages(t, root) {
		name := "*"
		if policy[relative(p.ImportPath)] != nil {
			name = relative(p.ImportPath)
			met[name] = true
		}
		for _, imp := range p.Imports {
			require.Truef(t, p.owns(imp) || allowed(policy[name], imp),
				"%s imports %s; the policy allows %q", p.ImportPath, imp, policy[name])
		}
		for _, imp := range p.testImports() {
			require.Truef(t, p.owns(imp) || allowed(policy["test"], imp),
				"a test of %s imports %s; the policy allows %q", p.ImportPath, imp, policy["test"])
		}
	}
	for name := range policy {
		require.Truef(t, met[name], "the policy has a line for %s, which does not exist", name)
	}
}

func TestNestedLibrariesImportOnlyWhatThePolicyAllows(t *testing.T) {
	const tests = " tests" // ends the name of a line that is for a module's tests alone
	policy := parsePolicy(t, nestedPolicy)
	met := map[string]bool{}
	for _, dir := range usedDirs(t)[1:] {
		module := modulePath(dir)
		if command.MatchString(module) || notImported.MatchString(filepath.ToSlash(dir)) {
			continue
		}
		require.Containsf(t, policy, relative(module), "the policy has no line for the module %s", module)
		for _, p := range listPackages(t, dir) {
			name := relative(module)
			if policy[relative(p.ImportPath)] != nil {
				name = relative(p.ImportPath)
			}
			met[relative(module)], met[name] = true, true
			words := policy[name]
			inTests := slices.Concat(policy[relative(module)], words, policy[relative(module)+tests], parsePolicy(t, importPolicy)["test"])
			isOwn := func(imp string) bool { return strings.HasPrefix(imp+"/", module+"/") }
			for _, imp := range p.Imports {
				require.Truef(t, isOwn(imp) || allowed(words, imp), "%s imports %s; the policy allows %q", p.ImportPath, imp, words)
			}
			for _, imp := range p.testImports() {
				require.Truef(t, isOwn(imp) || allowed(inTests, imp), "a test of %s imports %s; the policy allows %q", p.ImportPath, imp, inTests)
			}
		}
	}
	for _, dir := range onlyInAll {
		met[filepath.ToSlash(dir)] = true // It may not be in this workspace; that it exists has a test of its own.
	}
	for name := range policy {
		require.Truef(t, met[strings.TrimSuffix(name, tests)], "the policy has a line for the module %s, which does not exist", name)
	}
}

// Whoever wants a line must not get language models, Redis or gRPC with it. Within the workspace such an import
// compiles; a release of the root module, which does not require the others, would not.
func TestRootModuleImportsNoOtherModuleOfTheTree(t *testing.T) {
	nested := moduleDirs(t)[1:]
	require.Contains(t, nested, filepath.Join(root, "llm"))
	for _, p := range listPackages(t, root) {
		for _, imp := range append(p.testImports(), p.Imports...) {
			for _, dir := range nested {
				require.Falsef(t, strings.HasPrefix(imp+"/", modulePath(dir)+"/"), "%s imports %s, which is of another module", p.ImportPath, imp)
			}
		}
	}
}

func TestRootModuleRequiresThreeModulesDirectly(t *testing.T) {
	var direct []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\S+$`).FindAllStringSubmatch(modFile(t, root), -1) {
		direct = append(direct, m[1])
	}
	require.ElementsMatch(t, rootRequires, direct)
}

// Commands are where everything meets, and so are the modules that are there to be run or read. Code that would
// import one shows that a package is missing.
func TestNothingImportsACommandOrWhatIsThereToBeRun(t *testing.T) {
	for _, dir := range usedDirs(t) {
		for _, p := range listPackages(t, dir) {
			for _, imp := range append(p.testImports(), p.Imports...) {
				require.Falsef(t, command.MatchString(imp) && !p.owns(imp), "%s imports the command %s", p.ImportPath, imp)
				module := notImported.FindString(root + strings.TrimPrefix(imp, rootModule))
				require.Falsef(t, module != "" && !notImported.MatchString(filepath.ToSlash(dir)), "%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// The model is the oracle of tests. Code that ran with it would be slow, and the
// model could no longer be changed without thought for its users. The naive queue is
// for tests too, and for the benchmarks of bench/, of which each can be read, measured and changed by itself.
func TestOnlyTestsImportTheModelAndTheNaiveQueue(t *testing.T) {
	for _, dir := range usedDirs(t) {
		for _, p := range listPackages(t, dir) {
			require.NotContainsf(t, p.Imports, rootModule+"/internal/model", "%s is not a test", p.ImportPath)
			if !strings.HasPrefix(p.ImportPath, rootModule+"/bench/") {
				require.NotContainsf(t, p.Imports, rootModule+"/internal/naive", "%s is neither a test nor a benchmark", p.ImportPath)
				continue
			}
			for _, imported := range p.Imports {
				other, isOfBench := strings.CutPrefix(imported, rootModule+"/bench/")
				require.Falsef(t, isOfBench && !strings.HasPrefix(other, "internal/"), "%s imports another experiment, %s", p.ImportPath, imported)
			}
		}
	}
}

func parsePolicy(t *testing.T, text string) map[string][]string {
	policy, reasoned := map[string][]string{}, false
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			reasoned = line != ""
			continue
		}
		name, words, ok := strings.Cut(line, ": ")
		require.Truef(t, ok && reasoned, "the policy's line %q must read \"package: imports\" and have its reason above it", line)
		policy[name] = strings.Fields(words)
	}
	return policy
}

func allowed(words []string, imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	isStd := !strings.Contains(first, ".") && imp != "unsafe" && imp != "syscall" // All other paths begin with a host's name.
	return isStd && slices.Contains(words, "std") || slices.Contains(words, relative(imp))
}

func relative(imp string) string { return strings.TrimPrefix(imp, rootModule+"/") }
