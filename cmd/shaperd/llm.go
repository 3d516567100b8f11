package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/caddyfile"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
)

// llmCommand is the command that serves in front of the API of a language model.
const llmCommand = "llm"

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  llmCommand,
		Usage: "--provider <name> --requests <n> --tokens <n> [--upstream <url>] [--fair header:<name>] [--print] [--demo]",
		Short: "Shares the quota of a language-model API among teams",
		Long: `
Listens in front of the API of a language model, and lets calls wait in a line so that their
actual usage stays within the quota of requests and tokens a minute. Each team gets its turn.
Everything is passed on as it comes; a call for which there is no place gets 429 in the
provider's own format.

	shaperd llm --provider openai --requests 500 --tokens 90000 --fair header:X-Team

Callers send their own key of the provider, or, with --key-env and --teams, a token of their
team. --teams names a file of lines such as "gold: 9f86d0…", the name of a team and the
SHA-256 of its token: printf %s TOKEN | sha256sum. It is read again when it changes.

With --store several gateways are replicas behind any load balancer: one of them has the line,
and the others pass their calls on to it.

	shaperd llm --requests 500 --listen :8080 --store redis://redis:6379 --advertise $POD_IP:8080

The page is for browsers of this machine. --print prints a Caddyfile that does the same, for
shaperd run. --demo shows it all with a provider in memory and ten teams.`,
		Flags: llmFlags(),
		Func:  inWords(llmCommand, serveLLM),
	})
	caddy.RegisterNetwork(ownPort, func(ctx context.Context, _, host, port string, _ uint, c net.ListenConfig) (any, error) {
		return c.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	})
}

// ownPort is the network of the command's listeners: no other process may listen at their ports. Caddy's own listeners share a port
// with other processes, and each connection reaches one of them, so a second gateway by mistake would double the quota.
const ownPort = "shaperd"

func llmFlags() *flag.FlagSet {
	fs := flag.NewFlagSet(llmCommand, flag.ExitOnError)
	fs.String("upstream", "", "`URL` of the API, without a path; openai, anthropic and gemini have their own as the default")
	fs.String("provider", "openai", "whose API it is: "+strings.Join(gateway.Providers(), ", "))
	fs.Int("requests", 0, "requests of a minute, from the provider's page")
	fs.Int("tokens", 0, "tokens of a minute, of input and output together")
	fs.Int("input", 0, "input tokens of a minute")
	fs.Int("output", 0, "output tokens of a minute")
	fs.Var(&quotaFlags{}, "quota", "`limits` of some models, in place of the four above, and again for others, as in 'claude-sonnet-*: 1000 requests, 400k in, 80k out'; default: is for any other")
	fs.String("estimate", "", "what a call reserves: learned, what the calls of its team and model took; asked, what it may take; or so many `tokens` for each answer (default learned; at openai and bedrock, which count it, asked)")
	fs.Int("unasked", 0, "what a call asks for that does not bound its answer, where the provider says a number of `tokens`")
	fs.Int("output-factor", 0, "how many `tokens` bedrock counts for one of output; 0: by the model")
	fs.Var(&burstFlag{}, "burst", "how much of the quota may leave at once: the quota of this `time`, at most 1m (default 30s; bedrock 50s, gemini 5s)")
	fs.Int("depth", 1000, "how many calls may wait")
	fs.Duration("wait", 2*time.Minute, "for how long a call may have to wait; one that would wait longer gets 429")
	fs.Int("inflight", 0, "how many calls may be with the provider at a time; 0: as many as the quota lets through")
	fs.Int("team-inflight", 0, "how many calls of a team may be in the line or with the provider; its further ones hold up no other team. 0: any number")
	fs.Int("bodies", 64, "how many `MiB` of their bodies all calls hold; one that finds no room is estimated by its length until it has passed, and not sent again")
	fs.String("fair", "", "who takes turns: header:`NAME`, client_ip, host, team (of the token, with --teams), or none (default header:X-Team, or team)")
	fs.String("weights", "", "shares of teams where others have 1, as in gold=4,batch=1; each from 1 to 1000")
	fs.String("key-env", "", "environment `variable` with the key of the provider, which is sent in place of the token of a team")
	fs.String("teams", "", "`file` with the tokens of the teams")
	fs.String("listen", "127.0.0.1:8080", "`address` for callers")
	fs.String("store", "", "`URL` of Redis (redis://) or PostgreSQL (postgres://), by which replicas agree which of them has the line; {env.NAME} in it is replaced")
	fs.String("advertise", "", "`host:port` at which the other replicas reach this one by plain HTTP (default that of --listen, or an address of this machine with its port)")
	fs.Int("store-fallback", 0, "how many replicas there are: each has so large a part of the quota while the store can't be asked. 0: calls wait, and get 503")
	fs.String("name", "", "of the line, in metrics, logs and the store; gateways of other quotas with one store need names of their own (default the provider)")
	fs.String("page", "127.0.0.1:8081", "`address` of the page and of /metrics; off: there is none")
	fs.String("state", "", "`file` that keeps the levels while the gateway does not run; off: there is none (default: in the user's state folder)")
	fs.String("usage", "", "`file` for a line of JSON about each call")
	fs.Int("team-metrics", 0, "how many teams have metrics of their own, the others together as \"other\"")
	fs.Bool("forwarded", false, "tell the provider of the callers: X-Forwarded-For, -Host and -Proto, and Via")
	fs.Var(&keepAlive{d: 15 * time.Second}, "keepalive", "`interval` of TCP keep-alive probes to callers that wait; nothing is sent within the connection before the answer")
	fs.Bool("print", false, "print the Caddyfile, and end")
	fs.Bool("demo", false, "serve a provider in memory and ten teams")
	return fs
}

// keepAlive is a duration that may be left out.
type keepAlive struct{ d time.Duration }

func (k *keepAlive) String() string   { return k.d.String() }
func (k *keepAlive) IsBoolFlag() bool { return true }
func (k *keepAlive) Set(text string) (err error) {
	if text == "true" {
		k.d = 15 * time.Second
		return nil
	}
	if k.d, err = time.ParseDuration(text); err == nil && k.d < time.Second {
		err = errors.New("must be at least 1s")
	}
	return err
}

// quotaFlags are the values of a flag that may be said several times.
type quotaFlags struct{ texts []string }

func (q *quotaFlags) String() string { return strings.Join(q.texts, "\n") }

func (q *quotaFlags) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("must be a pattern of models, a colon and limits")
	}
	q.texts = append(q.texts, text)
	return nil
}

// burstFlag is a duration whose default is the provider's.
type burstFlag struct{ text string }

func (b *burstFlag) String() string { return b.text }

func (b *burstFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	b.text = d.String()
	return err
}

// A modelQuota is the quota of some models; pattern "": of any other.
type modelQuota struct {
	pattern string
	llm.Quota
}

// readModels reads the flags --quota.
func readModels(text string) (models []modelQuota, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, "\n") {
		m := modelQuota{}
		if m.pattern, m.Quota, err = llm.ParseModelQuota(one); err != nil {
			return nil, fmt.Errorf("--quota: %w", err)
		}
		if m.pattern == "default" {
			m.pattern = ""
		}
		if slices.ContainsFunc(models, func(o modelQuota) bool { return o.pattern == m.pattern }) {
			return nil, fmt.Errorf("--quota: %q has the models of another one", one)
		}
		if _, err := caddyfile.Literal(m.pattern); err != nil {
			return nil, fmt.Errorf("--quota: %w", err)
		}
		models = append(models, m)
	}
	return models, nil
}

// llmOptions are the flags of the command, after they have been checked.
type llmOptions struct {
	upstream     *url.URL
	provider     string
	quota        llm.Quota
	models       []modelQuota // in place of quota
	estimate     string       // "": the provider's default
	unasked      int
	factor       int
	teamInflight int
	state        string // "": the default; "off": none
	burst, wait  time.Duration
	depth        int
	inflight     int
	bodies       int    // MiB
	fair         string // "" for none
	weights      map[string]int
	keyEnv       string
	teams        string
	listen, page string // page: "" for none
	store        string // "": there are no replicas
	advertise    string
	fallback     int
	name         string
	usage        string
	teamMetrics  int
	forwarded    bool
	keepAlive    time.Duration
	grace        time.Duration
}

// upstreams are the addresses of the APIs of which there is just one.
var upstreams = map[string]string{
	"openai":    "https://api.openai.com",
	"anthropic": "https://api.anthropic.com",
	"gemini":    "https://generativelanguage.googleapis.com",
}

// readLLM reads the flags. Its errors name the flag and quote its value.
func readLLM(f caddycmd.Flags) (o llmOptions, err error) {
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: the command takes flags alone; an interval of --keepalive stands behind =, as in --keepalive=30s", f.Arg(0))
	}
	o = llmOptions{
		provider: f.String("provider"),
		quota:    llm.Quota{Requests: f.Int("requests"), Tokens: f.Int("tokens"), Input: f.Int("input"), Output: f.Int("output")},
		estimate: f.String("estimate"), unasked: f.Int("unasked"), factor: f.Int("output-factor"), teamInflight: f.Int("team-inflight"), state: f.String("state"),
		burst: gateway.DefaultBurst(f.String("provider")), wait: f.Duration("wait"), depth: f.Int("depth"), inflight: f.Int("inflight"), bodies: f.Int("bodies"),
		keyEnv: f.String("key-env"), teams: f.String("teams"),
		listen: f.String("listen"), page: f.String("page"), usage: f.String("usage"), teamMetrics: f.Int("team-metrics"),
		forwarded: f.Bool("forwarded"), grace: time.Minute,
		store: f.String("store"), advertise: f.String("advertise"), fallback: f.Int("store-fallback"), name: cmp.Or(f.String("name"), f.String("provider")),
	}
	if text := f.String("burst"); text != "" {
		o.burst, _ = time.ParseDuration(text) // It has been checked.
	}
	if o.models, err = readModels(f.String("quota")); err != nil {
		return o, err
	}
	if o.keepAlive, err = time.ParseDuration(f.String("keepalive")); err != nil {
		return o, fmt.Errorf("--keepalive: %w", err)
	}
	if !slices.Contains(gateway.Providers(), o.provider) {
		return o, fmt.Errorf("--provider: %q, must be one of %s", o.provider, strings.Join(gateway.Providers(), ", "))
	}
	if err := o.checkNumbers(); err != nil {
		return o, err
	}
	if o.upstream, err = readUpstream(f.String("upstream"), o.provider); err != nil {
		return o, err
	}
	if err := o.checkKeys(); err != nil {
		return o, err
	}
	if o.fair, err = readFairFlag(f.String("fair"), o.teams != ""); err != nil {
		return o, err
	}
	if o.weights, err = llm.ParseWeights(f.String("weights")); err != nil {
		return o, fmt.Errorf("--weights: %w", err)
	}
	for team := range o.weights {
		if team == "" || strings.ContainsAny(team, "\n\r") {
			return o, fmt.Errorf("--weights: %q, must name teams, each in one line", f.String("weights"))
		}
	}
	if strings.IndexAny(o.name, "/@*") == 0 { // In a Caddyfile it would be a matcher.
		return o, fmt.Errorf("--name: %q, must not begin with /, @ or *", o.name)
	}
	if o.fair == "" && len(o.weights) > 0 {
		return o, fmt.Errorf("--weights: %q, but with --fair none all calls have one line", f.String("weights"))
	}
	for _, text := range append([]string{o.teams, o.usage, o.state, o.name}, slices.Collect(maps.Keys(o.weights))...) {
		if _, err := caddyfile.Literal(text); err != nil {
			return o, err
		}
	}
	if err := o.checkAddresses(); err != nil {
		return o, err
	}
	return o, o.checkReplicas()
}

// checkReplicas checks the flags about replicas, and chooses the address at which the others reach this one.
func (o *llmOptions) checkReplicas() (err error) {
	switch {
	case o.store == "" && o.advertise != "":
		return fmt.Errorf("--advertise: %q, but without --store there are no other replicas", o.advertise)
	case o.store == "" && o.fallback != 0:
		return fmt.Errorf("--store-fallback: %d, but without --store there are no other replicas", o.fallback)
	case o.store == "":
		return nil
	case o.fallback < 0:
		return fmt.Errorf("--store-fallback: %d, must not be negative", o.fallback)
	}
	if _, err := caddyfile.Word(o.store); err != nil {
		return errors.New("--store: it can't be written in a Caddyfile") // The word may have a password.
	}
	if !strings.Contains(o.store, "{") { // Its placeholders are replaced when the gateway starts.
		if err := caddyshaper.CheckStore(o.store); err != nil {
			return fmt.Errorf("--%w", err)
		}
	}
	if o.advertise == "" {
		if o.advertise, err = reachable(o.listen); err != nil {
			return err
		}
	}
	if err := caddyshaper.CheckAdvertise(o.advertise); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}

// reachable returns the address at which other machines reach a listener, whose address has been checked.
func reachable(listen string) (string, error) {
	host, port, _ := net.SplitHostPort(listen)
	switch ip := net.ParseIP(host); {
	case ip.IsLoopback() || host == "localhost":
		return "", fmt.Errorf("--advertise: it is missing, and no other machine reaches --listen %s; say --listen :%s, and --advertise with an address of this machine, such as 10.0.0.5:%[2]s; "+
			"or --advertise %[1]s, if all replicas are on this one", listen, port)
	case host != "" && !ip.IsUnspecified():
		return listen, nil
	}
	addresses, err := net.InterfaceAddrs()
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return net.JoinHostPort(network.IP.String(), port), nil
		}
	}
	return "", errors.Join(fmt.Errorf("--advertise: it is missing, and this machine has no address that others reach; say one, such as 10.0.0.5:%s", port), err)
}

func (o *llmOptions) checkNumbers() error {
	var wrong *llm.QuotaError
	all := o.quota
	if len(o.models) > 0 {
		all = o.models[0].Quota
	}
	switch errors.As(all.Validate(o.burst), &wrong); {
	case len(o.models) > 0 && o.quota != llm.Quota{}:
		return errors.New("--quota: it stands beside --requests, --tokens, --input or --output; say these as a --quota too, as in 'default: 50 requests'")
	case !gateway.IsEstimate(o.estimate):
		return fmt.Errorf("--estimate: %q, must be learned, asked, or a number of tokens above 0", o.estimate)
	case o.factor < 0 || o.factor > 0 && o.provider != "bedrock":
		return fmt.Errorf("--output-factor: %d, must not be negative, and is for bedrock alone", o.factor)
	case wrong == nil:
	case wrong.Setting == "":
		return errors.New("the quota is missing: say --requests, --tokens, --input or --output, as on the provider's page, or --demo to look at it first")
	default:
		return fmt.Errorf("--%s: %s, %s", wrong.Setting, wrong.Value, wrong.Must)
	}
	for _, n := range []struct {
		flag string
		n    int
	}{{"inflight", o.inflight}, {"team-inflight", o.teamInflight}, {"unasked", o.unasked}, {"team-metrics", o.teamMetrics}} {
		if n.n < 0 {
			return fmt.Errorf("--%s: %d, must not be negative", n.flag, n.n)
		}
	}
	if o.depth < 1 {
		return fmt.Errorf("--depth: %d, must be at least 1", o.depth)
	}
	if o.bodies < 1 || o.bodies > 1<<20 {
		return fmt.Errorf("--bodies: %d, must be from 1 to %d MiB", o.bodies, 1<<20)
	}
	if o.wait <= 0 {
		return fmt.Errorf("--wait: %v, must be above 0", o.wait)
	}
	return nil
}

func readUpstream(text, provider string) (*url.URL, error) {
	if text == "" {
		if text = upstreams[provider]; text == "" {
			return nil, fmt.Errorf("--upstream: it is missing; with the provider %q it has no default", provider)
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--upstream: %q, must be a URL such as https://api.openai.com", text)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("--upstream: %q, must be a scheme and a host; callers choose the path", text)
	}
	return u, nil
}

func (o *llmOptions) checkKeys() error {
	switch {
	case o.keyEnv == "" && o.teams != "":
		return fmt.Errorf("--teams: %q, but without --key-env there is no key to send in place of a team's token", o.teams)
	case o.keyEnv != "" && o.teams == "":
		return fmt.Errorf("--key-env: %q, but without --teams anybody could use the key", o.keyEnv)
	case strings.ContainsAny(o.keyEnv, "{} \t\n="):
		return fmt.Errorf("--key-env: %q, must be the name of an environment variable, not the key", o.keyEnv)
	}
	return nil
}

func readFairFlag(text string, hasTeams bool) (string, error) {
	name, isHeader := strings.CutPrefix(text, "header:")
	switch {
	case text == "" && hasTeams:
		return "team", nil
	case text == "":
		return "header X-Team", nil
	case text == "none" && hasTeams:
		return "", errors.New(`--fair: "none", but with --teams the teams take turns`)
	case text == "none":
		return "", nil
	case text == "team" && !hasTeams:
		return "", errors.New(`--fair: "team", but without --teams no team is known`)
	case text == "client_ip", text == "host", text == "team":
		return text, nil
	case isHeader && name != "" && !strings.ContainsAny(name, " \t\n\"`{}:"):
		return "header " + name, nil
	}
	return "", fmt.Errorf("--fair: %q, must be header:NAME, client_ip, host, team or none", text)
}

func (o *llmOptions) checkAddresses() error {
	if o.page == "off" {
		o.page = ""
	}
	for _, a := range []struct{ flag, address string }{{"listen", o.listen}, {"page", o.page}} {
		if a.flag == "page" && a.address == "" {
			continue
		}
		host, port, err := net.SplitHostPort(a.address)
		if n, _ := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || strings.ContainsAny(host, " \t\n\"`{}/") {
			return fmt.Errorf("--%s: %q, must be an address and a port, such as 127.0.0.1:8080", a.flag, a.address)
		}
	}
	if o.page != "" && overlap(o.listen, o.page) {
		return fmt.Errorf("--page: %q, must not be the address of --listen", o.page)
	}
	return nil
}

// overlap reports whether a connection may be meant for both of two addresses, which have been checked.
func overlap(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	isAny := func(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }
	return portA == portB && (hostA == hostB || isAny(hostA) || isAny(hostB))
}

// hostLine tells the upstream its own name. With https Caddy does that by itself, and warns of the line.
const hostLine = "header_up Host {upstream_hostport}"

// keyLines give a call the key of the provider, which is in an environment variable.
var keyLines = map[string]string{
	"anthropic":         "header_up X-Api-Key {env.%s}",
	"bedrock":           `header_up Authorization "Bearer {env.%s}"`,
	"gemini":            "header_up X-Goog-Api-Key {env.%s}",
	"openai":            `header_up Authorization "Bearer {env.%s}"`,
	"openai-compatible": `header_up Authorization "Bearer {env.%s}"`,
}

// withoutKeys keeps keys out of the log. Caddy logs the header of a call whose response breaks off, and hides only
// Authorization. A call to Gemini may have its key in the query.
const withoutKeys = `	log {
		format filter {
			request>headers>Api-Key delete
			request>headers>X-Api-Key delete
			request>headers>X-Goog-Api-Key delete
			request>uri query {
				delete key
			}
		}
	}
`

// bodyTimeouts end clients that hardly send their body, or hardly read a response: they would hold places for ever. A body has
// 20 s, and more as it comes; each write of a response has 20 s, so that a model may pause for as long as it thinks.
const bodyTimeouts = `		timeouts {
			read_body_idle 20s 10000
			write_idle 20s
		}
`

// caddyfile returns the Caddyfile for the flags.
func (o *llmOptions) caddyfile() string {
	var b strings.Builder
	line := func(depth int, format string, args ...any) {
		fmt.Fprintf(&b, strings.Repeat("\t", depth)+format+"\n", args...)
	}
	number := func(depth int, name string, n int) {
		if n > 0 {
			line(depth, "%s %d", name, n)
		}
	}
	line(0, "{")
	line(1, "auto_https off")
	line(1, "grace_period %s # for calls that wait or run, when the server is told to end", short(o.grace))
	b.WriteString(withoutKeys)
	line(1, "servers {")
	b.WriteString(bodyTimeouts)
	line(2, "keepalive_interval %s", short(o.keepAlive))
	line(1, "}")
	line(0, "}\n")

	site := func(address string) {
		host, port, _ := net.SplitHostPort(address) // It has been checked.
		line(0, "http://:%s {", port)
		if host != "" {
			line(1, "bind %s", host)
		}
	}
	site(o.listen)
	line(1, "shape_healthy /-/healthy")
	line(1, "shape_ready /-/ready")
	line(1, "shape %s {", word(o.name))
	line(2, "quota %s {", o.provider)
	limits := func(depth int, q llm.Quota) {
		number(depth, "requests", q.Requests)
		number(depth, "tokens", q.Tokens)
		number(depth, "input", q.Input)
		number(depth, "output", q.Output)
	}
	limits(3, o.quota)
	for _, m := range o.models {
		head := "default"
		if m.pattern != "" {
			head = "model " + word(m.pattern)
		}
		line(3, "%s {", head)
		limits(4, m.Quota)
		line(3, "}")
	}
	if o.estimate != "" {
		line(3, "estimate %s", o.estimate)
	}
	number(3, "unasked", o.unasked)
	number(3, "output_factor", o.factor)
	line(3, "burst %s", short(o.burst))
	if o.bodies != gateway.DefaultBodies>>20 {
		line(3, "bodies %dMiB", o.bodies)
	}
	line(2, "}")
	line(2, "depth %d", o.depth)
	line(2, "wait %s", short(o.wait))
	number(2, "inflight", o.inflight)
	number(2, "team_inflight", o.teamInflight)
	if o.teams != "" {
		line(2, "teams %s", word(o.teams))
	}
	switch {
	case len(o.weights) > 0:
		line(2, "fair %s {", o.fair)
		for _, team := range slices.Sorted(maps.Keys(o.weights)) {
			line(3, "weight %s %d", word(team), o.weights[team])
		}
		line(2, "}")
	case o.fair != "":
		line(2, "fair %s", o.fair)
	}
	if o.usage != "" {
		line(2, "usage %s", word(o.usage))
	}
	if o.state != "" && o.state != "off" {
		line(2, "state %s", word(o.state))
	}
	if o.store != "" {
		store, _ := caddyfile.Word(o.store) // It has been checked.
		line(2, "store %s", store)
		line(2, "advertise %s", o.advertise)
		number(2, "fallback local", o.fallback)
	}
	number(2, "team_metrics", o.teamMetrics)
	line(1, "}")
	line(1, "reverse_proxy %s {", word(o.upstream.Scheme+"://"+o.upstream.Host))
	line(2, hostLine)
	if !o.forwarded {
		line(2, "header_up -X-Forwarded-* # The provider need not know who calls.")
		line(2, "header_up -Via")
	}
	if o.keyEnv != "" {
		line(2, keyLines[o.provider], o.keyEnv)
	}
	line(1, "}")
	line(0, "}")

	if o.page != "" {
		line(0, "")
		site(o.page)
		line(1, "handle /metrics {")
		line(2, "metrics")
		line(1, "}")
		line(1, "handle {")
		line(2, "shape_inspect {")
		line(3, "title %s", word("shaperd llm: "+o.provider))
		line(2, "}")
		line(1, "}")
		line(0, "}")
	}
	return caddyfile.Plain(b.String())
}

// short returns a duration without parts that are zero.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// word returns a text as one word of a Caddyfile. The flags have been checked for texts that can't be written.
func word(text string) string {
	w, _ := caddyfile.Literal(text)
	return w
}

// serveLLM is the command. Like Caddy's run it does not return once it serves.
func serveLLM(f caddycmd.Flags) (int, error) {
	if f.Bool("demo") {
		return demoLLM(f)
	}
	o, err := readLLM(f)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	if f.Bool("print") {
		_, err := fmt.Print(o.caddyfile())
		return caddy.ExitCodeSuccess, err
	}
	if o.keyEnv != "" && os.Getenv(o.keyEnv) == "" {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("--key-env: %q, but there is no such environment variable, or it is empty", o.keyEnv)
	}
	if err := o.makeState(); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	caddy.TrapSignals()
	if err := o.serve(); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Print(o.welcome())
	select {}
}

// serve starts, or says at which port another process listens.
func (o *llmOptions) serve() error {
	err := inOwnFolder(o.start)
	if err == nil || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // Caddy wraps its text alone.
		return err
	}
	for _, a := range []struct{ flag, address string }{{"page", o.page}, {"listen", o.listen}} {
		if a.address != "" && strings.Contains(err.Error(), a.address) {
			return fmt.Errorf("--%s: %q: address already in use, perhaps by another gateway; two of them would pass twice the quota on", a.flag, a.address)
		}
	}
	return err
}

// start serves as the Caddyfile says, beside any Caddy that runs already.
func (o *llmOptions) start() error {
	text := o.caddyfile()
	if o.upstream.Scheme == "https" {
		text = strings.Replace(text, "\t\t"+hostLine+"\n", "", 1)
	}
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	config := map[string]any{}
	if err := json.Unmarshal(adapted, &config); err != nil {
		return err
	}
	config["admin"] = map[string]any{"disabled": true, "config": map[string]any{"persist": false}}
	log := config["logging"].(map[string]any)["logs"].(map[string]any)["default"].(map[string]any)
	log["level"], log["exclude"] = "WARN", []string{"admin"}
	if o.store != "" { // Whoever starts a replica wants to know who has the line.
		log["exclude"] = []string{"admin", replicasLog}
		replicas := maps.Clone(log)
		delete(replicas, "exclude")
		replicas["level"], replicas["include"] = "INFO", []string{replicasLog}
		config["logging"].(map[string]any)["logs"].(map[string]any)["replicas"] = replicas
	}
	for _, server := range config["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any) {
		server := server.(map[string]any)
		server["protocols"] = []string{"h1", "h2c"} // The others need TLS, and Caddy would warn of that.
		for i, address := range server["listen"].([]any) {
			server["listen"].([]any)[i] = ownPort + "/" + address.(string)
		}
	}
	if adapted, err = json.Marshal(config); err != nil {
		return err
	}
	return caddy.Load(adapted, true)
}

// replicasLog is the log in which package caddyshaper tells of replicas.
const replicasLog = "shape.replicas"

// welcome names the addresses, and their purposes.
func (o *llmOptions) welcome() string {
	var b strings.Builder
	fmt.Fprintf(&b, "shaperd llm: %s, until Ctrl-C.\n\n", o.provider)
	fmt.Fprintf(&b, "  gateway    http://%s   passes calls on to %s, within %s\n", o.listen, o.upstream, o.quotaWords())
	if o.page != "" {
		fmt.Fprintf(&b, "  page       http://%s   shows the line; /metrics is for Prometheus\n", o.page)
	}
	switch o.fair {
	case "":
		fmt.Fprintf(&b, "\nAll calls wait in one line.\n")
	case "team":
		fmt.Fprintf(&b, "\nThe teams of %s take turns.\n", o.teams)
	default:
		fmt.Fprintf(&b, "\nCalls with the same %s take turns with the others.\n", o.fair)
	}
	if o.store != "" {
		fmt.Fprintf(&b, "\nOther replicas reach this one at %s. One of them has the line, as told below, and the others pass their calls on to it.\n", o.advertise)
	}
	return b.String()
}

// makeState chooses the file for the levels, if there is to be one, and makes its folder. Without it three starts within a minute would
// let three bursts pass. Gateways at different addresses have files of their own.
func (o *llmOptions) makeState() error {
	said := o.state
	switch said {
	case "off":
		return nil
	case "":
		folder := os.Getenv("XDG_STATE_HOME")
		if folder == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil // A service without a home has no folder of its own, and keeps no levels unless it names a file.
			}
			folder = filepath.Join(home, ".local", "state")
		}
		name := strings.NewReplacer(":", "-", "[", "", "]", "", "%", "-").Replace(o.provider + "-" + o.listen)
		o.state = filepath.Join(folder, "shaperd", "llm-"+name+".json")
	}
	_, err := caddyfile.Literal(o.state)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(o.state), 0o700)
	}
	if err == nil { // Else the log alone would tell, when the levels are to be saved, that they can't be.
		var probe *os.File
		if probe, err = os.CreateTemp(filepath.Dir(o.state), ".shaperd-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err == nil {
		if _, read := os.ReadFile(o.state); !errors.Is(read, fs.ErrNotExist) {
			err = read
		}
	}
	switch {
	case err == nil:
		return nil
	case said == "":
		fmt.Fprintf(os.Stderr, "shaperd llm: the levels are not kept over a restart (%v); --state names a file for them.\n", err)
		o.state = "off"
		return nil
	}
	return fmt.Errorf("--state: %q: %w", o.state, err)
}

// quotaWords returns the quota in words, or the models that have one.
func (o *llmOptions) quotaWords() string {
	if len(o.models) == 0 {
		return quotaWords(o.quota)
	}
	var parts []string
	for _, m := range o.models {
		parts = append(parts, cmp.Or(m.pattern, "any other")+": "+quotaWords(m.Quota))
	}
	return strings.Join(parts, "; ")
}

// quotaWords returns a quota in words.
func quotaWords(q llm.Quota) string {
	var parts []string
	for _, l := range []struct {
		n    int
		what string
	}{{q.Requests, "requests"}, {q.Tokens, "tokens"}, {q.Input, "input tokens"}, {q.Output, "output tokens"}} {
		if l.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", l.n, l.what))
		}
	}
	return strings.Join(parts, " and ") + " a minute"
}
