package caddyshaper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"github.com/dustin/go-humanize"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// Quota makes a [Shape] a gateway to a provider of language models: see [gateway.Gateway].
type Quota struct {
	// Provider is openai, anthropic, gemini, bedrock, or openai-compatible.
	Provider string `json:"provider"`

	// Requests, Tokens, Input and Output are the provider's limits per minute; 0 means that there is no such limit.
	Requests int `json:"requests,omitempty"`
	Tokens   int `json:"tokens,omitempty"`
	Input    int `json:"input,omitempty"`
	Output   int `json:"output,omitempty"`

	// Models are the limits of models, in place of those above, each with a line of its own ([gateway.Models]).
	Models []ModelQuota `json:"models,omitempty"`

	// Estimate says what a call reserves: learned, asked, or a number of tokens for each answer ([gateway.Config]). The default
	// is learned, and asked for openai and bedrock, which count what a call asks for.
	Estimate string `json:"estimate,omitempty"`

	// Unasked is the most output of a call that does not bound it, where the provider says a number.
	Unasked int `json:"unasked,omitempty"`

	// OutputFactor is how many tokens bedrock counts for a token of output; 0: by the model.
	OutputFactor int `json:"output_factor,omitempty"`

	// Burst is the time whose quota may be used at once, from 0 to a minute; 30s unless it is set, 50s for bedrock and 5s for gemini.
	Burst *caddy.Duration `json:"burst,omitempty"`

	// Bodies bounds the bytes of bodies that all calls hold at a time; 64 MiB unless it is set. See [gateway.Config].
	Bodies int64 `json:"bodies,omitempty"`
}

// A ModelQuota has the limits of some models.
type ModelQuota struct {
	Pattern  string `json:"pattern,omitempty"` // of their names, in which * stands for any characters; "": any other model
	Requests int    `json:"requests,omitempty"`
	Tokens   int    `json:"tokens,omitempty"`
	Input    int    `json:"input,omitempty"`
	Output   int    `json:"output,omitempty"`
}

func (m ModelQuota) quota() llm.Quota {
	return llm.Quota{Requests: m.Requests, Tokens: m.Tokens, Input: m.Input, Output: m.Output}
}

// defaultModel is the word for any other model.
const defaultModel = "default"

// name returns the pattern as it is said.
func (m ModelQuota) name() string { return cmp.Or(m.Pattern, defaultModel) }

// The defaults of a gateway.
const (
	defaultDepth = 1000
	defaultWait  = 2 * time.Minute
)

// A quota is a Quota that has been checked, with the settings of the line beside it.
type quota struct {
	provider string // "": there is none
	pattern  string // of its models; "": any
	llm.Quota
	burst, wait     time.Duration
	depth, inFlight int
	bodies          int64
	estimate        string
	unasked, factor int
}

// limits returns the limits and the meters of the line; with the n-th part of the quota, while so many replicas share it.
func (q quota) limits(n int) (shaper.Limits, []shaper.Meter, error) {
	for _, limit := range []*int{&q.Requests, &q.Tokens, &q.Input, &q.Output, &q.inFlight} {
		if *limit > 0 {
			*limit = max(1, *limit/n)
		}
	}
	l, meters, err := gateway.Levels(q.provider, q.Quota, q.burst, q.depth)
	l.MaxWait, l.InFlight = q.wait, q.inFlight
	return l, meters, err
}

// units tell the levels of a line from those of another provider, or with other limits.
func (q quota) units() string { return fmt.Sprint(q.provider, " ", q.Kinds()) }

// sameUnit reports whether the first levels of two lines are in one unit, by their units: a level without a name is restored then.
// The further ones have names, so that a quota may gain or lose a limit.
func sameUnit(a, b string) bool {
	ofA, ofB := strings.Fields(a), strings.Fields(b)
	return slices.Equal(ofA[:min(2, len(ofA))], ofB[:min(2, len(ofB))])
}

// besideQuota are the settings that mean nothing beside a quota, with the reason.
func (s *Shape) besideQuota() error {
	const ownRate, ownCost, ownFields = "the quota says how much may pass", "the cost of a call is its share of the quota", "the answers of a gateway have the provider's own fields and Server-Timing"
	for _, f := range []struct {
		field string
		given bool
		why   string
	}{
		{"rules", len(s.Rules) > 0, ownRate}, {"limits", s.Limits != "", ownRate}, {"site", s.Site != "", ownRate},
		{"key", len(s.Key) > 0, "all calls share one quota; fair says whose calls take turns"},
		{"cost", s.Cost != "", ownCost}, {"max_cost", s.MaxCost != 0, ownCost}, {"skip", s.Skip != "", "each call needs its token and its share of the quota"},
		{"candidate", s.Candidate != "", "in a dry run no call waits"}, {"dry_run", s.DryRun, "in a dry run no call waits"},
		{"shared_inflight", s.SharedInFlight != 0, "all calls of a quota have one line, so inflight is the cap of all"},
		{"patience", s.Patience != nil, "wait says for how long a call waits"},
		{"cold_guard", s.ColdGuard != 0, "a replica that takes the line over begins with full levels"},
		{"rate_version", s.RateVersion != 0, "the levels are those of the replica that has the line"},
		{"block", s.Block != 0, "teams share one line, and the burst of one would block all"},
		{"max_keys", s.MaxKeys != 0, "a team takes memory only while it has a call in line"},
		{"ratelimit_headers", s.RateLimitHeaders, ownFields}, {"x_ratelimit_headers", s.XRateLimitHeaders, ownFields}, {"server_timing", s.ServerTiming, ownFields},
		{"verdict_header", s.VerdictHeader != "", "in a dry run no call waits"},
	} {
		if f.given {
			return fmt.Errorf("%s: it stands beside quota; %s", f.field, f.why)
		}
	}
	return nil
}

// withoutQuota returns an error for a setting that is for a quota alone.
func (s *Shape) withoutQuota() error {
	for _, f := range []struct {
		field string
		given bool
	}{
		{"depth", s.Depth != 0}, {"wait", s.Wait != 0}, {"inflight", s.InFlight != 0}, {"team_inflight", s.TeamInFlight != 0},
		{"usage", s.Usage != ""}, {"teams", s.Teams != ""}, {"team_metrics", s.TeamMetrics != 0}, {"advertise", s.Advertise != ""},
	} {
		if f.given {
			return fmt.Errorf(`%s: it is for a quota, and there is none; beside limits it is a word of these, as in "limits 50/s depth 100 wait 5s inflight 8"`, f.field)
		}
	}
	return nil
}

// fieldsOfKeys matches the part of a key that is a field in which callers send their keys, or has it as a placeholder.
var fieldsOfKeys = regexp.MustCompile(`(?i)^header:(authorization|(x-(goog-)?)?api-key)$|header\.(authorization|(x-(goog-)?)?api-key)\b|query\.key\b`)

// readQuota checks the settings of a quota, and the settings beside it.
func readQuota(s *Shape, set *settings) error {
	if s.Quota == nil {
		return s.withoutQuota()
	}
	if err := s.besideQuota(); err != nil {
		return err
	}
	q := quota{
		provider: s.Quota.Provider, Quota: llm.Quota{Requests: s.Quota.Requests, Tokens: s.Quota.Tokens, Input: s.Quota.Input, Output: s.Quota.Output},
		burst: gateway.DefaultBurst(s.Quota.Provider), wait: cmp.Or(time.Duration(s.Wait), defaultWait), depth: cmp.Or(s.Depth, defaultDepth), inFlight: s.InFlight,
		bodies: s.Quota.Bodies, unasked: s.Quota.Unasked, factor: s.Quota.OutputFactor,
		estimate: cmp.Or(s.Quota.Estimate, gateway.DefaultEstimate(s.Quota.Provider)),
	}
	if s.Quota.Burst != nil {
		q.burst = time.Duration(*s.Quota.Burst)
	}
	quotas, err := q.ofModels(s.Quota.Models)
	if err != nil {
		return err
	}
	var wrong *llm.QuotaError
	switch errors.As(quotas[0].Validate(q.burst), &wrong); {
	case !slices.Contains(gateway.Providers(), q.provider):
		return fmt.Errorf("quota: the provider %q is unknown, must be one of %s", q.provider, strings.Join(gateway.Providers(), ", "))
	case wrong != nil && wrong.Setting == "":
		return errors.New(`quota: it has no limit; give the provider's limits per minute, as in "requests 500" and "tokens 90000"`)
	case wrong != nil:
		return fmt.Errorf("%s: %s, %s", wrong.Setting, wrong.Value, wrong.Must)
	case s.Wait < 0 || s.Depth < 0 || s.InFlight < 0 || s.TeamInFlight < 0 || s.TeamMetrics < 0:
		return errors.New("quota: depth, wait, inflight, team_inflight and team_metrics must not be negative")
	case q.bodies < 0:
		return fmt.Errorf("bodies: %d, must not be negative", q.bodies)
	case q.unasked < 0:
		return fmt.Errorf("unasked: %d, must not be negative", q.unasked)
	case q.factor < 0 || q.factor > 0 && q.provider != "bedrock":
		return fmt.Errorf("output_factor: %d, must not be negative, and is for bedrock alone", q.factor)
	case !gateway.IsEstimate(q.estimate):
		return fmt.Errorf("estimate: %q, must be learned, asked, or a number of tokens above 0", q.estimate)
	}
	parts := []string{}
	if s.Fair != nil {
		parts = s.Fair.By
	}
	for _, part := range parts {
		if fieldsOfKeys.MatchString(part) {
			return fmt.Errorf("fair: %q would show keys in metrics and logs; name a file of tokens by teams, and use team", part)
		}
	}
	for _, q := range quotas {
		limits, _, err := q.limits(1)
		if err != nil {
			return err
		}
		of := quotaLimits{q, limits}
		set.quotas = append(set.quotas, of)
	}
	set.quota, set.limits = set.quotas[0].quota, set.quotas[0].limits
	set.fixed.quota = set.quota.units()
	set.fixed.fair = true
	return nil
}

// quotaLimits are a quota with the limits of its line.
type quotaLimits struct {
	quota  quota
	limits shaper.Limits
}

// ofModels returns the quotas of models with the other settings of q; q itself if there are no models.
func (q quota) ofModels(models []ModelQuota) (quotas []quota, err error) {
	if len(models) == 0 {
		return []quota{q}, nil
	}
	if q.Quota != (llm.Quota{}) {
		return nil, errors.New("quota: limits stand beside models; put them into default { … }, for any other model")
	}
	seen := map[string]bool{}
	for _, m := range models {
		q := q
		q.Quota, q.pattern = m.quota(), m.Pattern
		var wrong *llm.QuotaError
		switch errors.As(q.Validate(q.burst), &wrong); {
		case seen[m.name()]: // A model may have the name default; then there is no line of this name for any other.
			return nil, fmt.Errorf("quota: the model %q is said twice", m.name())
		case wrong != nil && wrong.Setting == "":
			return nil, fmt.Errorf(`quota: the model %q has no limit; give the provider's limits per minute, as in "requests 500"`, m.name())
		case wrong != nil && wrong.Setting != "burst":
			return nil, fmt.Errorf("quota: the model %q: %s: %s, %s", m.name(), wrong.Setting, wrong.Value, wrong.Must)
		}
		seen[m.name()] = true
		quotas = append(quotas, q)
	}
	return quotas, nil
}

// lines returns the settings of each line of a handler: one, or one for each quota of models.
func (set settings) lines() (all []settings) {
	for _, of := range set.quotas {
		one := set
		one.quota, one.limits = of.quota, of.limits
		one.fixed.quota = of.quota.units()
		if len(set.quotas) > 1 || of.quota.pattern != "" {
			one.name += "/" + cmp.Or(of.quota.pattern, defaultModel)
		}
		all = append(all, one)
	}
	if all == nil {
		all = []settings{set}
	}
	return all
}

// readQuotaLine reads the line with the provider.
func readQuotaLine(s *Shape, option string, args []string) error {
	s.Quota = new(Quota)
	return text(func(s *Shape) *string { return &s.Quota.Provider })(s, option, args)
}

// readBlock reads the block behind the line.
func (q *Quota) readBlock(d *caddyfile.Dispenser) error {
	limits := map[string]*int{"requests": &q.Requests, "tokens": &q.Tokens, "input": &q.Input, "output": &q.Output}
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option, args := d.Val(), d.RemainingArgs()
		n, isLimit := limits[option]
		read := quotaOptions[option]
		switch {
		case option == "model" && len(args) != 1 || option == defaultModel && len(args) != 0:
			return d.Errf("%s: it is a pattern of models and a block, as in model claude-sonnet-* { … }, or default { … }", option)
		case option == "model" || option == defaultModel:
			m := ModelQuota{}
			if option == "model" {
				m.Pattern = args[0]
			}
			if err := m.readBlock(d); err != nil {
				return err
			}
			q.Models = append(q.Models, m)
			continue
		case !isLimit && read == nil:
			return d.Errf("quota has no subdirective %q; there are requests, tokens, input, output, model, default, estimate, unasked, output_factor, burst and bodies", option)
		case len(args) != 1:
			return d.Errf("%s: takes %w, got %d", option, takesOne, len(args))
		case seen[option]:
			return d.Errf("%s: it is said twice", option)
		}
		seen[option] = true
		err := error(nil)
		if isLimit {
			*n, err = amount(args[0])
		} else {
			err = read(q, args[0])
		}
		if err != nil {
			return d.Errf("%s: %w", option, err)
		}
	}
	return nil
}

// readBlock reads the block with the limits of a model.
func (m *ModelQuota) readBlock(d *caddyfile.Dispenser) error {
	limits := map[string]*int{"requests": &m.Requests, "tokens": &m.Tokens, "input": &m.Input, "output": &m.Output}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option, args := d.Val(), d.RemainingArgs()
		n := limits[option]
		switch {
		case n == nil:
			return d.Errf("the quota of a model has no subdirective %q; there are requests, tokens, input and output", option)
		case len(args) != 1:
			return d.Errf("%s: takes %w, got %d", option, takesOne, len(args))
		case *n != 0:
			return d.Errf("%s: it is said twice", option)
		}
		var err error
		if *n, err = amount(args[0]); err != nil {
			return d.Errf("%s: %w", option, err)
		}
	}
	return nil
}

// amount reads a number as 500, 400k or 2M.
func amount(text string) (int, error) {
	n, err := llm.ParseAmount(text)
	if err != nil {
		return 0, fmt.Errorf("%q, must be a number of at least 1", text)
	}
	return n, nil
}

// quotaOptions read the settings of a quota that are no limits.
var quotaOptions = map[string]func(q *Quota, text string) error{
	"estimate": func(q *Quota, text string) error {
		if q.Estimate = text; !gateway.IsEstimate(text) {
			return fmt.Errorf("%q, must be learned, asked, or a number of tokens above 0", text)
		}
		return nil
	},
	"unasked": func(q *Quota, text string) (err error) {
		q.Unasked, err = amount(text)
		return err
	},
	"output_factor": func(q *Quota, text string) (err error) {
		if q.OutputFactor, err = positive(text); err != nil {
			return fmt.Errorf("%q, must %w", text, err)
		}
		return nil
	},
	"bodies": func(q *Quota, text string) error {
		size, err := humanize.ParseBytes(text)
		if q.Bodies = int64(min(size, math.MaxInt64)); err != nil || size == 0 {
			return fmt.Errorf("%q, must be a size above 0, such as 64MiB", text)
		}
		return nil
	},
	"burst": func(q *Quota, text string) error {
		burst, err := caddy.ParseDuration(text)
		if err != nil || burst < 0 || burst > time.Minute {
			return fmt.Errorf("%q, must be a duration from 0 to 1m, such as 30s", text)
		}
		q.Burst = (*caddy.Duration)(&burst)
		return nil
	},
}

// provisionQuota makes the gateways of a handler whose lines are known.
func (s *Shape) provisionQuota(ctx caddy.Context, entries []*entry) (err error) {
	if s.Quota == nil {
		return nil
	}
	log := slog.New(newLatestLog("http.handlers.shape")).With("shape", s.lines.name) // Calls outlive a configuration.
	if s.Teams != "" {
		path, err := caddy.NewReplacer().ReplaceOrErr(s.Teams, true, true)
		if err == nil {
			s.tokens, err = gateway.OpenTeams(path, log)
		}
		if err != nil {
			return fmt.Errorf("teams: %w", err)
		}
	}
	if s.usage, err = openUsage(ctx, s.Usage); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	for _, e := range entries {
		q := e.settings.quota
		config := gateway.Config{
			Provider: q.provider, Quota: q.Quota, Estimate: q.estimate, Unasked: q.unasked, OutputFactor: q.factor,
			Line: e.lines.fair.Load, TeamInFlight: s.TeamInFlight,
			Team:   func(r *http.Request) (string, bool) { c := callOf(r); return c.key, !c.isStranger },
			Bodies: q.bodies, Weight: e.lines.weightOf, Labels: s.TeamMetrics, Ledger: e.lines.ledger,
			Log: log, Refuse: s.refuse, RetrySpread: time.Duration(s.RetrySpread),
		}
		if s.fleet != nil {
			config.Leaves = leaves
		}
		if s.LogRefusals {
			config.Refusals = log
		}
		if s.usage != nil {
			config.Record = s.usage.record
		}
		g, err := gateway.New(config)
		if err != nil {
			return err
		}
		if s.models = append(s.models, gateway.Model{Pattern: q.pattern, Gateway: g}); e.gateway == nil {
			e.gateway = g
		}
	}
	s.gateway = s.models[0].Gateway
	return nil
}

// pass runs the handlers behind a gateway. If they got no response of the provider, and there are no error routes for it,
// the gateway responds in the provider's format.
func (s *Shape) pass(w http.ResponseWriter, r *http.Request) {
	const groups = caddy.CtxKey("route_group") // of which one route has run; a second attempt is to run it again
	if ran, ok := r.Context().Value(groups).(map[string]struct{}); ok {
		*r = *r.WithContext(context.WithValue(r.Context(), groups, maps.Clone(ran)))
	}
	// Whose call it is concerns the gateway alone, as a token does.
	if s.Fair != nil {
		for _, part := range s.Fair.By {
			if name, ok := strings.CutPrefix(part, "header:"); ok {
				r.Header.Del(name)
			}
		}
	}
	admit(w, r)
	c := callOf(r)
	failed, ok := errors.AsType[caddyhttp.HandlerError](c.err)
	if !ok || failed.StatusCode < http.StatusBadGateway || failed.StatusCode > http.StatusGatewayTimeout || s.errors.match(r, failed) {
		return
	}
	if s.gateway.WriteUnreachable(w, failed.StatusCode) {
		s.failures.note(failed.StatusCode, fmt.Errorf("the provider can't be reached, or did not answer: %w", failed.Err))
		c.err = nil
	}
}

// authorize finds the team of a call, if there are tokens.
func (s *Shape) authorize(r *http.Request, repl *caddy.Replacer) (isStranger bool) {
	if s.tokens == nil {
		return false
	}
	team, ok := s.tokens.Of(r)
	repl.Set("http.shape.team", team)
	return !ok
}

// usageLogs has the usage logs of all configurations, by the names of their files, as only one writer can rotate a file.
// A call that ends after the last configuration is written too: Caddy's writer takes a line even when it has been closed.
var usageLogs = caddy.NewUsagePool()

// A usageLog takes a line for each call. A goroutine writes them, so that no call waits for a disk; it ends with the log.
type usageLog struct {
	name string
	log  *slog.Logger

	failures seldom[error]

	wake chan struct{} // has room for one, which says that there are lines; the writer takes all that it finds. Closed by Destruct
	done chan struct{} // closed when the writer has ended

	writing  sync.Mutex // held by whoever writes
	to       io.WriteCloser
	isCutOff bool // the latest line

	mu      sync.Mutex // held for no longer than it takes to note a line
	lines   [][]byte   // to be written
	bytes   int        // of lines
	isEnded bool
}

// mostUnwritten is how many bytes of lines wait for the disk. Lines for which there is no room are lost, and told of.
const mostUnwritten = 4 << 20

var errDiskIsSlow = errors.New("the disk is too slow, and lines are lost")

// openUsage opens a usage log; nil for no name. Caddy's own writer rotates a file.
func openUsage(ctx caddy.Context, name string) (*usageLog, error) {
	if name == "" {
		return nil, nil
	}
	file := &logging.FileWriter{Filename: name}
	if err := file.Provision(ctx); err != nil {
		return nil, err
	}
	return loadOrNew(usageLogs, file.Filename, func() (*usageLog, error) {
		u := newUsageLog(nil)
		u.name, u.log = file.Filename, slog.New(newLatestLog("shape"))
		u.failures.tell = func(count int, latest error) {
			u.log.Error("the usage can't be written", "error", latest, "calls", count)
		}
		opener := caddy.WriterOpener(file)
		switch name {
		case "stdout":
			opener = caddy.StdoutWriter{}
		case "stderr":
			opener = caddy.StderrWriter{}
		}
		var err error
		if u.to, err = opener.OpenWriter(); err == nil {
			go u.writeAll()
		}
		return u, err
	})
}

func newUsageLog(to io.WriteCloser) *usageLog {
	return &usageLog{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// record writes the line of a call.
func (u *usageLog) record(r *http.Request, record gateway.Record) {
	if c := callOf(r); record.Status == 0 && c.returned { // Caddy answers only after this.
		switch failed, ok := errors.AsType[caddyhttp.HandlerError](c.err); {
		case ok:
			record.Status = failed.StatusCode
		case c.err != nil:
			record.Status = http.StatusInternalServerError
		default:
			record.Status = http.StatusOK
		}
	}
	line, err := json.Marshal(record)
	if err == nil {
		err = u.add(append(line, '\n'))
	}
	if err != nil {
		u.failures.note(err)
	}
}

// add leaves a line to the writer. A line that comes when the log has ended is written at once.
func (u *usageLog) add(line []byte) error {
	u.mu.Lock()
	if u.isEnded {
		u.mu.Unlock()
		return u.write(line)
	}
	defer u.mu.Unlock()
	if u.bytes+len(line) > mostUnwritten {
		return errDiskIsSlow
	}
	u.lines, u.bytes = append(u.lines, line), u.bytes+len(line)
	select {
	case u.wake <- struct{}{}:
	default: // The writer will find it.
	}
	return nil
}

// writeAll writes lines until the log ends. Lines that are being written take room until all have been.
func (u *usageLog) writeAll() {
	defer close(u.done)
	for range u.wake {
		u.mu.Lock()
		lines, bytes := u.lines, u.bytes
		u.lines = nil
		u.mu.Unlock()
		for _, line := range lines {
			if err := u.write(line); err != nil {
				u.failures.note(err)
			}
		}
		u.mu.Lock()
		u.bytes -= bytes
		u.mu.Unlock()
	}
}

// write writes a line. If a full disk has cut off the line before, it ends that first.
func (u *usageLog) write(line []byte) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	if u.isCutOff {
		line = append([]byte{'\n'}, line...)
	}
	n, err := u.to.Write(line)
	if n > 0 {
		u.isCutOff = n < len(line)
	}
	return err
}

// release ends the use of the log by one configuration.
func (u *usageLog) release() { _, _ = usageLogs.Delete(u.name) }

// Destruct implements [caddy.Destructor].
func (u *usageLog) Destruct() error {
	u.mu.Lock()
	u.isEnded = true
	close(u.wake) // A line that is there has left a word in it, which the writer takes first.
	u.mu.Unlock()
	<-u.done
	u.failures.close()
	return u.to.Close()
}
