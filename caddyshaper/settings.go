package caddyshaper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// settings are the checked configuration of the lines of a name.
type settings struct {
	name  string
	named bool                       // the configuration says the name
	said  map[string]json.RawMessage // of [Shape.common]
	fixed fixed

	rules     []string
	limits    shaper.Limits  // without rules
	candidate *shaper.Limits // without rules; nil: none
	site      *shaper.Limits // nil: none
	quota     quota          // without a provider: none
	quotas    []quotaLimits  // of all lines of a handler
	fair      Fair           // of a shape with fair queueing
	adapt     *adapt.Config  // of its line for all requests; nil: the rate does not adapt
	state     string         // absolute path; "": none
	replicas  fleetKey       // of a quota; without a store: there is one process
	fleet     *fleet         // by them
}

// fixed has the settings that can't change while lines are in use. A configuration with others
// has lines of its own, and the old ones go on until no request waits in them.
type fixed struct {
	maxKeys int
	block   time.Duration
	coarse  bool
	dryRun  bool
	fair    bool
	quota   string         // the provider of a gateway, and which limits it has; "": there is no quota
	store   string         // with placeholders replaced
	levels  shared.Options // for a level in the store

	siteInFlight int // in place of the InFlight of levels, for the level of the site

	lineTimeout time.Duration // 0: the wait of the limits; noLineTimeout
}

const defaultName = "shape"

// settings returns the settings of the handler's fields, or the mistake in them.
func (s *Shape) settings() (set settings, err error) {
	set = settings{name: s.Name, named: s.Name != "", said: s.common()}
	if !set.named {
		set.name = defaultName
	}
	err = readAll(s, &set, readLimits, readFixed, readQuota, readFair, readAdapt, readStore, readAnswers, resolve)
	return set, err
}

// check returns the mistake in the fields, whatever the machine that they are for.
func (s *Shape) check() error {
	if err := readAll(s, new(settings), readLimits, readFixed, readQuota, readFair, readAdapt, readStore, readAnswers); err != nil {
		return err
	}
	if _, err := newCost(s.Cost, s.MaxCost); err != nil {
		return err
	}
	_, err := s.newKey(new(config.Rules))
	return err
}

func readAll(s *Shape, set *settings, all ...func(*Shape, *settings) error) error {
	for _, read := range all {
		if err := read(s, set); err != nil {
			return err
		}
	}
	return nil
}

// readLimits reads the limits, rules, candidate, fair queueing and site.
func readLimits(s *Shape, set *settings) (err error) {
	switch {
	case s.Quota != nil:
		return nil // readQuota reads it.
	case len(s.Rules) == 0 && s.Limits == "":
		return errors.New(`limits: missing; say how much may pass, as in "limits 50/s depth 100", or name a file by "rules"`)
	case len(s.Rules) > 0 && s.Limits != "":
		return fmt.Errorf("limits: %q stands beside rules; only one of them can be", s.Limits)
	case len(s.Rules) > 0 && s.Candidate != "":
		return fmt.Errorf("candidate: %q stands beside rules; in a file of rules each rule has its own candidate", s.Candidate)
	case s.DryRun && s.Candidate != "":
		return fmt.Errorf("candidate: %q stands beside dry_run; there can be only one verdict", s.Candidate)
	}
	if s.Limits != "" {
		if set.limits, err = parseLimits("limits", s.Limits); err != nil {
			return err
		}
	}
	if set.candidate, err = parseOptional("candidate", s.Candidate); err != nil {
		return err
	}
	set.site, err = parseOptional("site", s.Site)
	return err
}

func parseLimits(field, text string) (shaper.Limits, error) {
	l, err := shaper.ParseLimits(text)
	if err != nil {
		return l, fmt.Errorf("%s: %w", field, err)
	}
	return l, nil
}

// parseOptional returns nil for no text.
func parseOptional(field, text string) (*shaper.Limits, error) {
	if text == "" {
		return nil, nil
	}
	l, err := parseLimits(field, text)
	return &l, err
}

// readFixed reads the fixed settings, except for the store's.
func readFixed(s *Shape, set *settings) error {
	switch {
	case s.MaxKeys < 0:
		return fmt.Errorf("max_keys: %d, must be at least 1, or 0 for %d", s.MaxKeys, shaper.DefaultMaxKeys)
	case s.Block < 0 || time.Duration(s.Block) > 365*24*time.Hour:
		return fmt.Errorf("block: %v, must be from 0 to 365 days", time.Duration(s.Block))
	}
	set.fixed = fixed{maxKeys: s.MaxKeys, block: time.Duration(s.Block), coarse: s.CoarseTimer, dryRun: s.DryRun}
	if s.LineTimeout != "" {
		var err error
		if set.fixed.lineTimeout, err = parseLineTimeout(s.LineTimeout); err != nil {
			return fmt.Errorf("line_timeout: %q, must %w", s.LineTimeout, err)
		}
	}
	if s.MaxKeys == 0 {
		set.fixed.maxKeys = shaper.DefaultMaxKeys
	}
	return nil
}

// readStore reads the settings of the store.
func readStore(s *Shape, set *settings) (err error) {
	if s.Store == "" {
		for _, f := range []struct {
			field string
			given bool
		}{
			{"advertise", s.Advertise != ""}, {"fallback", s.Fallback != ""}, {"instances", s.Instances != 0}, {"patience", s.Patience != nil},
			{"shared_inflight", s.SharedInFlight != 0}, {"site_shared_inflight", s.SiteSharedInFlight != 0},
			{"cold_guard", s.ColdGuard != 0}, {"rate_version", s.RateVersion != 0},
		} {
			if f.given {
				return fmt.Errorf("%s: there is no store that it could be for", f.field)
			}
		}
		return nil
	}
	if s.Quota != nil {
		return readReplicas(s, set)
	}
	f := &set.fixed
	for _, c := range []struct {
		field string
		cap   int
	}{{"shared_inflight", s.SharedInFlight}, {"site_shared_inflight", s.SiteSharedInFlight}} {
		if c.cap < 0 || c.cap > math.MaxInt32 {
			return fmt.Errorf("%s: %d, must be from 1 to %d, or 0 for any number", c.field, c.cap, math.MaxInt32)
		}
	}
	var patience time.Duration
	if s.Patience != nil {
		patience = time.Duration(*s.Patience)
		if err := checkPatience(patience); err != nil {
			return err
		}
		f.levels.Patience = cmp.Or(patience, -1) // With 0 a request waits without a bound.
	}
	switch {
	case s.DryRun:
		return errors.New("store: dry_run can't be combined with a store, because a dry run must not use up a shared level")
	case set.site != nil && set.site.Rate == rate.Inf:
		return fmt.Errorf("site: %q stands beside a store, in which a level needs a rate", s.Site)
	case set.fixed.fair && set.limits.Rate == rate.Inf: // It is 0 if a file has the limits.
		return fmt.Errorf("limits: %q stand beside fair and a store, in which a level needs a rate", s.Limits)
	case s.ColdGuard < 0 || time.Duration(s.ColdGuard) > time.Minute:
		return fmt.Errorf("cold_guard: %v, must be from 0 to 1m", time.Duration(s.ColdGuard))
	case s.RateVersion < 0 || s.RateVersion > 1<<53:
		return fmt.Errorf("rate_version: %d, must be from 1 to 2⁵³, or 0 for the time", s.RateVersion)
	case s.SiteSharedInFlight > 0 && set.site == nil:
		return fmt.Errorf("site_shared_inflight: %d, but there is no site; for the requests of each key say shared_inflight", s.SiteSharedInFlight)
	case s.Patience != nil && (s.Fallback == "open" || s.Fallback == "local"):
		return fmt.Errorf("patience: %v stands beside the fallback %s, with which no request in line waits for the store; it is for the fallback closed", patience, s.Fallback)
	case s.Instances < 0 || s.Instances > 0 && s.Fallback != "local":
		return fmt.Errorf("instances: %d, must be at least 1, and only with the fallback local", s.Instances)
	}
	f.levels.ColdGuard, f.levels.RateVersion = time.Duration(s.ColdGuard), s.RateVersion
	f.levels.InFlight, f.siteInFlight = s.SharedInFlight, s.SiteSharedInFlight
	f.levels.Fallback, err = parseFallback(s.Fallback, s.Instances)
	return err
}

// resolve reads the fields with placeholders, and the names of files.
func resolve(s *Shape, set *settings) (err error) {
	repl := caddy.NewReplacer()
	if s.Store != "" {
		store, err := repl.ReplaceOrErr(s.Store, true, true)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if err := CheckStore(store); err != nil {
			return err
		}
		if s.Quota == nil {
			set.fixed.store = store
		} else if err := set.replicas.resolve(s, store, repl); err != nil {
			return err
		}
	}
	for _, name := range s.Rules {
		if name, err = repl.ReplaceOrErr(name, true, true); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		set.rules = append(set.rules, name)
	}
	if s.State == "" {
		return nil
	}
	name, err := repl.ReplaceOrErr(s.State, true, true)
	if err == nil {
		set.state, err = filepath.Abs(name)
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	dir, err := os.Stat(filepath.Dir(set.state))
	switch {
	case err != nil:
		return fmt.Errorf("state: %w; the folder of the file must exist", err)
	case !dir.IsDir():
		return fmt.Errorf("state: %q is not in a folder", set.state)
	}
	return nil
}

// skipPreflight is the only word of Skip.
const skipPreflight = "preflight"

// readAnswers checks the fields about responses.
func readAnswers(s *Shape, _ *settings) error {
	switch {
	case s.RetrySpread < 0:
		return fmt.Errorf("retry_spread: %v, must be at least 0", time.Duration(s.RetrySpread))
	case s.Skip != "" && s.Skip != skipPreflight:
		return fmt.Errorf("skip: %q, must be %s", s.Skip, skipPreflight)
	case s.VerdictHeader != "" && !isFieldName(s.VerdictHeader):
		return fmt.Errorf("verdict_header: %q, must be the name of a header field", s.VerdictHeader)
	}
	return nil
}

// tries reports whether there may be verdicts of candidates.
func (set *settings) tries() bool {
	return set.candidate != nil || len(set.rules) > 0 && !set.fixed.fair
}

// timeouts are Caddy's timeouts that run from the beginning of a request. Package shaper
// restarts the deadlines of net/http after the wait; these are Caddy's own, and would go on
// while a request waits in line.
type timeouts struct {
	reader *caddyhttp.IdleTimeoutReader
	writer *caddyhttp.IdleTimeoutWriter
	from   time.Time

	readBy, writeBy time.Time // the deadlines that were removed; zero: there was none
}

// holdTimeouts removes the deadlines of a request that may wait. Nothing else uses them: the
// handlers behind the line do not run yet.
func holdTimeouts(ctx context.Context) timeouts {
	t := timeouts{from: time.Now()}
	t.reader, t.writer = caddyhttp.IdleTimeoutsFromContext(ctx)
	if t.reader != nil {
		t.readBy = hold(&t.reader.Deadline)
	}
	if t.writer != nil {
		t.writeBy = hold(&t.writer.Deadline)
	}
	return t
}

func hold(d *caddyhttp.IdleDeadline) (was time.Time) {
	was, d.HardDeadline = d.HardDeadline, time.Time{}
	return was
}

// resume puts the deadlines back, later by the time of the wait. It does nothing the second time.
func (t *timeouts) resume() {
	if t.from.IsZero() {
		return
	}
	waited := time.Since(t.from)
	if t.reader != nil {
		t.reader.Deadline.HardDeadline = t.readBy
	}
	if t.writer != nil {
		t.writer.Deadline.HardDeadline = t.writeBy
	}
	t.from = time.Time{}
	t.later(waited)
}

// finish gives the server the time of one write for the rest of a response: over HTTP/1 the deadline of the latest write would
// still count, and cut off the end of a response that has paused there.
func (t *timeouts) finish() {
	if t.writer == nil || t.writer.ClearBetweenWrites || t.writer.Deadline.MinRate > 0 {
		return
	}
	by := time.Now().Add(t.writer.Deadline.Timeout)
	if hard := t.writer.Deadline.HardDeadline; !hard.IsZero() && hard.Before(by) {
		by = hard
	}
	_ = t.writer.Ctrl.SetWriteDeadline(by) // If that can't be set, there is none.
}

// later moves the deadlines by the time of a wait.
func (t *timeouts) later(waited time.Duration) {
	if t.reader != nil {
		postpone(&t.reader.Deadline, waited)
	}
	if t.writer != nil {
		postpone(&t.writer.Deadline, waited)
	}
}

func postpone(d *caddyhttp.IdleDeadline, by time.Duration) {
	d.Start = d.Start.Add(by)
	if !d.HardDeadline.IsZero() {
		d.HardDeadline = d.HardDeadline.Add(by)
	}
}
