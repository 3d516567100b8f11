package caddyshaper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"example.com/leakybucket/shaper/shared"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	shape [<matcher>] [<name>] {
//		name         <name>
//		rules        <file>...
//		limits       <limits>
//		candidate    <limits>
//		dry_run
//		key          route|client_ip|host|header:NAME|{placeholder}... | all
//		fair         [<part>... | header <name>] {
//			weight <part>... <number>
//		}
//		adapt        [min <rate>] [max <rate>] [start <rate>] [slow <duration>]
//		quota        openai|anthropic|gemini|bedrock|openai-compatible {
//			requests <number>
//			tokens   <number>
//			input    <number>
//			output   <number>
//			model    <pattern> {
//				requests|tokens|input|output <number>
//			}
//			default {
//				requests|tokens|input|output <number>
//			}
//			estimate      learned | asked | <number>
//			unasked       <number>
//			output_factor <number>
//			burst    <duration>
//			bodies   <size>
//		}
//		depth        <number>
//		wait         <duration>
//		inflight     <number>
//		team_inflight <number>
//		teams        <file>
//		usage        <file> | stdout | stderr
//		team_metrics <number>
//		routes       <pattern>...
//		ipv6_bits    <number>
//		cost         <number>|{placeholder} [<most>]
//		skip         preflight
//		site         <limits>
//		store        <url>...
//		advertise    <host>:<port>
//		fallback     closed | open | local <processes>
//		patience     <duration>
//		shared_inflight      <number>
//		site_shared_inflight <number>
//		cold_guard   <duration>
//		rate_version <number>
//		state        <file>
//		max_keys     <number>
//		line_timeout <duration> | off
//		block        <duration>
//		coarse_timer
//		ratelimit_headers
//		x_ratelimit_headers
//		server_timing
//		verdict_header <name>
//		retry_spread <duration>
//		log_refusals
//	}
//
// Limits are a text as in "50/s burst 10 depth 100 wait 2s slack 10ms inflight 8", with or
// without quotes. Without a block there is a short form:
//
//	shape [<matcher>] [<name>] limits <limits>
func (s *Shape) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the directive
	args := d.RemainingArgs()
	if len(args) > 0 && (args[0] != "limits" || len(args) == 1) {
		s.Name, args = args[0], args[1:]
	}
	if len(args) > 0 {
		if args[0] != "limits" || len(args) == 1 {
			return d.Errf("%q stands after the name; that must be a block, or limits", strings.Join(args, " "))
		}
		s.Limits = strings.Join(args[1:], " ")
		if _, err := parseLimits("limits", s.Limits); err != nil {
			return d.WrapErr(err)
		}
	}
	seen := map[string]bool{"name": s.Name != "", "limits": s.Limits != ""}
	for d.NextBlock(0) {
		option := d.Val()
		read := subdirectives[option]
		switch {
		case read == nil:
			return d.Errf("shape has no subdirective %q", option)
		case seen[option]:
			return d.Errf("%s: it is said twice", option)
		}
		seen[option] = true
		args := d.RemainingArgs()
		if err := read(s, option, args); err != nil {
			if takes, ok := errors.AsType[errTakes](err); ok {
				err = fmt.Errorf("%s: takes %w, got %d", option, takes, len(args))
			}
			return d.WrapErr(err)
		}
		var err error
		switch option {
		case "fair":
			err = s.Fair.readWeights(d)
		case "quota":
			err = s.Quota.readBlock(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// An errTakes is for a subdirective with too many or too few arguments. Its text says how many it
// takes.
type errTakes string

func (e errTakes) Error() string { return string(e) }

const (
	takesNone errTakes = "no word"
	takesOne  errTakes = "one word"
	takesSome errTakes = "one word or more"
	takesTwo  errTakes = "one word or two"
)

// A subdirective reads the arguments of a line.
type subdirective func(s *Shape, option string, args []string) error

var subdirectives = map[string]subdirective{
	"name":                text(func(s *Shape) *string { return &s.Name }),
	"rules":               texts(func(s *Shape) *[]string { return &s.Rules }),
	"limits":              limits(func(s *Shape) *string { return &s.Limits }),
	"candidate":           limits(func(s *Shape) *string { return &s.Candidate }),
	"dry_run":             flag(func(s *Shape) *bool { return &s.DryRun }),
	"key":                 texts(func(s *Shape) *[]string { return &s.Key }),
	"fair":                readFairLine,
	"adapt":               readAdaptLine,
	"quota":               readQuotaLine,
	"depth":               number(func(s *Shape) *int { return &s.Depth }),
	"wait":                duration(func(s *Shape) *caddy.Duration { return &s.Wait }),
	"inflight":            number(func(s *Shape) *int { return &s.InFlight }),
	"team_inflight":       number(func(s *Shape) *int { return &s.TeamInFlight }),
	"teams":               text(func(s *Shape) *string { return &s.Teams }),
	"usage":               text(func(s *Shape) *string { return &s.Usage }),
	"team_metrics":        number(func(s *Shape) *int { return &s.TeamMetrics }),
	"routes":              readRoutes,
	"ipv6_bits":           number(func(s *Shape) *int { return &s.IPv6Bits }),
	"cost":                readCost,
	"skip":                text(func(s *Shape) *string { return &s.Skip }),
	"site":                limits(func(s *Shape) *string { return &s.Site }),
	"store":               readStoreLine,
	"advertise":           readAdvertise,
	"fallback":            readFallback,
	"patience":            readPatience,
	"cold_guard":          duration(func(s *Shape) *caddy.Duration { return &s.ColdGuard }),
	"rate_version":        one(readRateVersion),
	"state":               text(func(s *Shape) *string { return &s.State }),
	"max_keys":            number(func(s *Shape) *int { return &s.MaxKeys }),
	"line_timeout":        one(readLineTimeout),
	"block":               duration(func(s *Shape) *caddy.Duration { return &s.Block }),
	"coarse_timer":        flag(func(s *Shape) *bool { return &s.CoarseTimer }),
	"ratelimit_headers":   flag(func(s *Shape) *bool { return &s.RateLimitHeaders }),
	"x_ratelimit_headers": flag(func(s *Shape) *bool { return &s.XRateLimitHeaders }),
	"server_timing":       flag(func(s *Shape) *bool { return &s.ServerTiming }),
	"verdict_header":      text(func(s *Shape) *string { return &s.VerdictHeader }),
	"retry_spread":        duration(func(s *Shape) *caddy.Duration { return &s.RetrySpread }),
	"log_refusals":        flag(func(s *Shape) *bool { return &s.LogRefusals }),

	"shared_inflight":      number(func(s *Shape) *int { return &s.SharedInFlight }),
	"site_shared_inflight": number(func(s *Shape) *int { return &s.SiteSharedInFlight }),
}

// one returns a subdirective with one argument. An error of read says how the argument must be; the
// name of the subdirective and the argument are put in front of it.
func one(read func(s *Shape, arg string) error) subdirective {
	return func(s *Shape, option string, args []string) error {
		if len(args) != 1 {
			return takesOne
		}
		if err := read(s, args[0]); err != nil {
			return fmt.Errorf("%s: %q, must %w", option, args[0], err)
		}
		return nil
	}
}

func text(field func(*Shape) *string) subdirective {
	return one(func(s *Shape, arg string) error {
		if *field(s) = arg; arg == "" {
			return errors.New("not be empty")
		}
		return nil
	})
}

func texts(field func(*Shape) *[]string) subdirective {
	return func(s *Shape, _ string, args []string) error {
		if len(args) == 0 {
			return takesSome
		}
		*field(s) = args
		return nil
	}
}

// readRoutes reads patterns, in which no placeholder is replaced.
func readRoutes(s *Shape, option string, args []string) error {
	return texts(func(s *Shape) *[]string { return &s.Routes })(s, option, literals(args))
}

// literals undoes the escaping of words without placeholders: Caddy's adapter takes {path} for a placeholder in any word, but not
// \{path\}.
func literals(words []string) (meant []string) {
	for _, w := range words {
		meant = append(meant, strings.NewReplacer(`\{`, "{", `\}`, "}").Replace(w))
	}
	return meant
}

func flag(field func(*Shape) *bool) subdirective {
	return func(s *Shape, _ string, args []string) error {
		if len(args) > 0 {
			return takesNone
		}
		*field(s) = true
		return nil
	}
}

func limits(field func(*Shape) *string) subdirective {
	return func(s *Shape, option string, args []string) error {
		if len(args) == 0 {
			return takesSome
		}
		*field(s) = strings.Join(args, " ")
		_, err := parseLimits(option, *field(s))
		return err
	}
}

func number(field func(*Shape) *int) subdirective {
	return one(func(s *Shape, arg string) (err error) {
		*field(s), err = positive(arg)
		return err
	})
}

// positive reads a number of at least 1.
func positive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New("be a number of at least 1")
	}
	return n, nil
}

func duration(field func(*Shape) *caddy.Duration) subdirective {
	return one(func(s *Shape, arg string) error {
		d, err := caddy.ParseDuration(arg)
		if *field(s) = caddy.Duration(d); err != nil || d <= 0 {
			return errors.New("be a duration above 0, such as 1.5s")
		}
		return nil
	})
}

// readPatience reads a duration that may be 0.
func readPatience(s *Shape, option string, args []string) error {
	read := one(func(s *Shape, arg string) error {
		d, err := caddy.ParseDuration(arg)
		if s.Patience = (*caddy.Duration)(&d); err != nil || d < 0 {
			return errors.New("be a duration such as 5s, or 0 to wait for as long as it takes")
		}
		return nil
	})
	if err := read(s, option, args); err != nil {
		return err
	}
	return checkPatience(time.Duration(*s.Patience))
}

// noLineTimeout is for lines in which a wait has no bound.
const noLineTimeout = -1

func readLineTimeout(s *Shape, arg string) error {
	s.LineTimeout = arg
	_, err := parseLineTimeout(arg)
	return err
}

// parseLineTimeout returns the argument of [shaper.WithLineTimeout], or noLineTimeout.
func parseLineTimeout(text string) (time.Duration, error) {
	if text == "off" {
		return noLineTimeout, nil
	}
	d, err := caddy.ParseDuration(text)
	if err != nil || d <= 0 || d > 365*24*time.Hour {
		return 0, errors.New("be off, or a duration above 0 and up to 365 days, such as 30s")
	}
	return d, nil
}

func readRateVersion(s *Shape, arg string) (err error) {
	if s.RateVersion, err = strconv.ParseInt(arg, 10, 64); err != nil || s.RateVersion < 1 || s.RateVersion > 1<<53 {
		return errors.New("be a number from 1 to 2⁵³")
	}
	return nil
}

// readCost reads a cost, and if it has placeholders perhaps the most that it may be.
func readCost(s *Shape, option string, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return takesTwo
	}
	if s.Cost = args[0]; len(args) == 2 {
		most := number(func(s *Shape) *int { return &s.MaxCost })
		if err := most(s, option, args[1:]); err != nil {
			return err
		}
	}
	_, err := newCost(s.Cost, s.MaxCost)
	return err
}

// readStoreLine reads one URL, or the URLs of several servers.
func readStoreLine(s *Shape, _ string, args []string) error {
	if len(args) == 0 {
		return takesSome
	}
	for i, arg := range args {
		if i > 0 && !strings.Contains(arg, "{") && !strings.Contains(arg, "://") { // It may be a part of a password.
			return fmt.Errorf("store: word %d of the line is no URL; a blank in a URL is written %%20", i+1)
		}
	}
	s.Store = strings.Join(args, ",")
	if strings.Contains(s.Store, "{") {
		return nil // Its placeholders are replaced when the configuration is loaded.
	}
	return CheckStore(s.Store)
}

// readAdvertise reads an address, which may have placeholders such as {env.POD_IP}.
func readAdvertise(s *Shape, option string, args []string) error {
	if err := text(func(s *Shape) *string { return &s.Advertise })(s, option, args); err != nil || strings.Contains(s.Advertise, "{") {
		return err
	}
	return CheckAdvertise(s.Advertise)
}

func readFallback(s *Shape, option string, args []string) error {
	if len(args) < 1 || len(args) > 2 || (args[0] == "local") != (len(args) == 2) {
		return errTakes("closed, open, or local and a number of processes")
	}
	if s.Fallback = args[0]; len(args) == 2 {
		return number(func(s *Shape) *int { return &s.Instances })(s, option, args[1:])
	}
	_, err := parseFallback(s.Fallback, 0)
	return err
}

// parseFallback returns the fallback of a name; instances is for local.
func parseFallback(name string, instances int) (shared.Fallback, error) {
	switch name {
	case "", "closed":
		return shared.FallbackClosed, nil
	case "open":
		return shared.FallbackOpen, nil
	case "local":
		if instances == 0 {
			return 0, errors.New("instances: missing; the fallback local needs the number of processes that share the rate")
		}
		return shared.FallbackLocal(instances), nil
	}
	return 0, errors.New("fallback: " + strconv.Quote(name) + ", must be closed, open or local")
}

// checkPatience returns an error for a patience that no line can have.
func checkPatience(d time.Duration) error {
	if d < 0 || d > 365*24*time.Hour {
		return fmt.Errorf("patience: %v, must be from 0 to 365 days", d)
	}
	return nil
}

var _ caddyfile.Unmarshaler = (*Shape)(nil)

func init() {
	httpcaddyfile.RegisterDirective("shape", parseDirective)
	// After directives that change a request, or authenticate it; before handle and route, so that a
	// shape of the site also holds for requests in these blocks.
	httpcaddyfile.RegisterDirectiveOrder("shape", httpcaddyfile.Before, "invoke")
}

// parseDirective reads a directive, and gives the handler a name if it has none.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if !h.Next() {
		return nil, h.ArgErr()
	}
	matcher := ""
	if h.NextArg() && isMatcher(h.Val()) {
		matcher = h.Val()
	}
	h.Reset()
	h.Next()
	matchers, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	s := new(Shape)
	if err := s.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	named := s.Name != ""
	if !named {
		s.Name = siteOf(h) + strings.TrimPrefix(matcher, "*")
	}
	h.Reset()
	h.Next() // An error about several lines names the first.
	if err := s.check(); err != nil {
		return nil, h.WrapErr(err)
	}
	if err := noteName(h, s, named); err != nil {
		return nil, h.WrapErr(err)
	}
	return h.NewRoute(matchers, s), nil
}

// isMatcher reports whether the first argument of a directive is a matcher.
func isMatcher(arg string) bool {
	return arg == "*" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "@")
}

// siteOf returns the first address of the site that a directive is in, as it is written; of a
// named route its name. Caddy does not export it. If it can't be had, handlers in different
// sites have to be named.
func siteOf(h httpcaddyfile.Helper) string {
	keys := reflect.ValueOf(h).FieldByName("parentBlock")
	if keys.Kind() == reflect.Struct {
		keys = keys.FieldByName("Keys")
	}
	if keys.Kind() != reflect.Slice || keys.Len() == 0 || keys.Index(0).Kind() != reflect.Struct {
		return defaultName
	}
	text := keys.Index(0).FieldByName("Text")
	if text.Kind() != reflect.String || text.String() == "" {
		return defaultName
	}
	return text.String()
}

// A namedHandler is a handler that has been read.
type namedHandler struct {
	where string // file and line
	named bool
	said  map[string]json.RawMessage
}

// noteName notes the name of a handler. It returns an error if another one has that name, and
// both can't share their lines.
func noteName(h httpcaddyfile.Helper, s *Shape, named bool) error {
	const key = "caddyshaper names"
	names, ok := h.State[key].(map[string]namedHandler)
	if !ok {
		names = map[string]namedHandler{}
		h.State[key] = names
	}
	this := namedHandler{fmt.Sprintf("%s:%d", h.File(), h.Line()), named, s.common()}
	other, ok := names[s.Name]
	if !ok {
		names[s.Name] = this
		return nil
	}
	differ := difference(other.said, this.said)
	switch {
	case !named && !other.named:
		return fmt.Errorf(`name: the handlers at %s and %s would both be called %q; give one of them a name, as in "shape uploads {"`, other.where, this.where, s.Name)
	case differ != "":
		return fmt.Errorf("name: the handlers at %s and %s are both called %q, and differ in %s: handlers of one name share their lines, so give one of them another name", other.where, this.where, s.Name, differ)
	}
	return nil
}

// common returns the settings that handlers of one name must have in common, as JSON.
func (s *Shape) common() (fields map[string]json.RawMessage) {
	text, _ := json.Marshal(s) // There is nothing in it that JSON can't hold.
	_ = json.Unmarshal(text, &fields)
	for _, own := range [...]string{"name", "key", "routes", "ipv6_bits", "cost", "max_cost", "skip", "ratelimit_headers", "x_ratelimit_headers", "server_timing", "verdict_header", "retry_spread", "log_refusals", "usage", "teams"} {
		delete(fields, own)
	}
	return fields
}

// difference returns the name of a setting in which two handlers differ; "" if there is none. It
// does not return the values, as a store may have a password.
func difference(a, b map[string]json.RawMessage) string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if !bytes.Equal(a[field], b[field]) {
			return field
		}
	}
	return ""
}
