package caddyshaper

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"example.com/leakybucket/shaper"
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
//		routes       <pattern>...
//		ipv6_bits    <number>
//		cost         <number>|{placeholder} [<most>]
//		site         <limits>
//		store        <url>...
//		fallback     closed | open | local <processes>
//		patience     <duration>
//		cold_guard   <duration>
//		rate_version <number>
//		state        <file>
//		max_keys     <number>
//		block        <duration>
//		coarse_timer
//		ratelimit_headers
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
		if err := read(s, args); err != nil {
			if takes, ok := errors.AsType[errTakes](err); ok {
				err = fmt.Errorf("%s: takes %w, got %d", option, takes, len(args))
			}
			return d.WrapErr(err)
		}
	}
	return nil
}

// An errTakes is for a subdirective that has more or fewer arguments than it may have. Its text says
// how many these are.
type errTakes string

func (e errTakes) Error() string { return string(e) }

const (
	takesNone errTakes = "no word"
	takesOne  errTakes = "one word"
	takesSome errTakes = "one word or more"
	takesTwo  errTakes = "one word or two"
)

// A subdirective reads the arguments of a line.
type subdirective func(s *Shape, args []string) error

var subdirectives = map[string]subdirective{
	"name":              text("name", func(s *Shape) *string { return &s.Name }),
	"rules":             texts(func(s *Shape) *[]string { return &s.Rules }),
	"limits":            limits("limits", func(s *Shape) *string { return &s.Limits }),
	"candidate":         limits("candidate", func(s *Shape) *string { return &s.Candidate }),
	"dry_run":           flag(func(s *Shape) *bool { return &s.DryRun }),
	"key":               texts(func(s *Shape) *[]string { return &s.Key }),
	"routes":            texts(func(s *Shape) *[]string { return &s.Routes }),
	"ipv6_bits":         number("ipv6_bits", func(s *Shape) *int { return &s.IPv6Bits }),
	"cost":              readCost,
	"site":              limits("site", func(s *Shape) *string { return &s.Site }),
	"store":             readStoreLine,
	"fallback":          readFallback,
	"patience":          readPatience,
	"cold_guard":        duration("cold_guard", func(s *Shape) *caddy.Duration { return &s.ColdGuard }),
	"rate_version":      readRateVersion,
	"state":             text("state", func(s *Shape) *string { return &s.State }),
	"max_keys":          number("max_keys", func(s *Shape) *int { return &s.MaxKeys }),
	"block":             duration("block", func(s *Shape) *caddy.Duration { return &s.Block }),
	"coarse_timer":      flag(func(s *Shape) *bool { return &s.CoarseTimer }),
	"ratelimit_headers": flag(func(s *Shape) *bool { return &s.RateLimitHeaders }),
	"server_timing":     flag(func(s *Shape) *bool { return &s.ServerTiming }),
	"verdict_header":    text("verdict_header", func(s *Shape) *string { return &s.VerdictHeader }),
	"retry_spread":      duration("retry_spread", func(s *Shape) *caddy.Duration { return &s.RetrySpread }),
	"log_refusals":      flag(func(s *Shape) *bool { return &s.LogRefusals }),
}

func text(option string, field func(*Shape) *string) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) != 1 {
			return takesOne
		}
		if args[0] == "" {
			return errors.New(option + `: "", must not be empty`)
		}
		*field(s) = args[0]
		return nil
	}
}

func texts(field func(*Shape) *[]string) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) == 0 {
			return takesSome
		}
		*field(s) = args
		return nil
	}
}

func flag(field func(*Shape) *bool) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) > 0 {
			return takesNone
		}
		*field(s) = true
		return nil
	}
}

func limits(option string, field func(*Shape) *string) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) == 0 {
			return takesSome
		}
		*field(s) = strings.Join(args, " ")
		_, err := parseLimits(option, *field(s))
		return err
	}
}

func number(option string, field func(*Shape) *int) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) != 1 {
			return takesOne
		}
		n, err := positive(option, args[0])
		*field(s) = n
		return err
	}
}

// positive reads a number of at least 1.
func positive(option, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New(option + ": " + strconv.Quote(text) + ", must be a number of at least 1")
	}
	return n, nil
}

func duration(option string, field func(*Shape) *caddy.Duration) subdirective {
	return func(s *Shape, args []string) error {
		if len(args) != 1 {
			return takesOne
		}
		d, err := caddy.ParseDuration(args[0])
		if err != nil || d <= 0 {
			return errors.New(option + ": " + strconv.Quote(args[0]) + ", must be a duration above 0, such as 1.5s")
		}
		*field(s) = caddy.Duration(d)
		return nil
	}
}

// readCost reads a cost, and if it has placeholders perhaps the most that it may be.
func readCost(s *Shape, args []string) (err error) {
	if len(args) < 1 || len(args) > 2 {
		return takesTwo
	}
	s.Cost = args[0]
	if len(args) == 2 {
		if s.MaxCost, err = positive("cost", args[1]); err != nil {
			return err
		}
	}
	_, err = newCost(s.Cost, s.MaxCost)
	return err
}

// readStoreLine reads one URL, or the URLs of several servers.
func readStoreLine(s *Shape, args []string) error {
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
	return checkStore(s.Store)
}

func readFallback(s *Shape, args []string) (err error) {
	if len(args) < 1 || len(args) > 2 || (args[0] == "local") != (len(args) == 2) {
		return errTakes("closed, open, or local and a number of processes")
	}
	s.Fallback = args[0]
	if len(args) == 2 {
		s.Instances, err = positive("fallback", args[1])
		return err
	}
	_, err = parseFallback(s.Fallback, 0)
	return err
}

// parseFallback returns the fallback of a name; instances is for local.
func parseFallback(name string, instances int) (shaper.Fallback, error) {
	switch name {
	case "", "closed":
		return shaper.FallbackClosed, nil
	case "open":
		return shaper.FallbackOpen, nil
	case "local":
		if instances == 0 {
			return 0, errors.New("instances: missing; the fallback local needs the number of processes that share the rate")
		}
		return shaper.FallbackLocal(instances), nil
	}
	return 0, errors.New("fallback: " + strconv.Quote(name) + ", must be closed, open or local")
}

// readPatience reads a duration that may be 0.
func readPatience(s *Shape, args []string) error {
	if len(args) != 1 {
		return takesOne
	}
	d, err := caddy.ParseDuration(args[0])
	if err != nil || d < 0 {
		return errors.New("patience: " + strconv.Quote(args[0]) + ", must be a duration such as 5s, or 0 to wait for as long as it takes")
	}
	s.Patience = (*caddy.Duration)(&d)
	return checkPatience(d)
}

// checkPatience returns an error for a patience that no line can have.
func checkPatience(d time.Duration) error {
	if d < 0 || d > 365*24*time.Hour {
		return fmt.Errorf("patience: %v, must be from 0 to 365 days", d)
	}
	return nil
}

func readRateVersion(s *Shape, args []string) error {
	if len(args) != 1 {
		return takesOne
	}
	n, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || n < 1 || n > 1<<53 {
		return errors.New("rate_version: " + strconv.Quote(args[0]) + ", must be a number from 1 to 2⁵³")
	}
	s.RateVersion = n
	return nil
}

var _ caddyfile.Unmarshaler = (*Shape)(nil)

func init() {
	httpcaddyfile.RegisterDirective("shape", parseDirective)
	// After what changes a request, or asks who sends it; before handle and route, so that a
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
	h.Next() // What is wrong with several lines together is told of the first.
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
	lines string
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
	this := namedHandler{fmt.Sprintf("%s:%d", h.File(), h.Line()), named, s.linesText()}
	other, ok := names[s.Name]
	switch {
	case !ok:
		names[s.Name] = this
	case !named && !other.named:
		return fmt.Errorf(`name: the handlers at %s and %s would both be called %q; give one of them a name, as in "shape uploads {"`, other.where, this.where, s.Name)
	case this.lines != other.lines:
		return fmt.Errorf("name: the handlers at %s and %s are both called %q, and differ: handlers of one name share their lines, so give one of them another name", other.where, this.where, s.Name)
	}
	return nil
}

// linesText returns all settings that handlers of one name must have in common.
func (s *Shape) linesText() string {
	text, _ := json.Marshal(s) // There is nothing in it that JSON can't hold.
	var fields map[string]any
	_ = json.Unmarshal(text, &fields)
	for _, own := range [...]string{"key", "routes", "ipv6_bits", "cost", "max_cost", "ratelimit_headers", "server_timing", "verdict_header", "retry_spread", "log_refusals"} {
		delete(fields, own)
	}
	text, _ = json.Marshal(fields) // Its keys are sorted.
	return string(text)
}
