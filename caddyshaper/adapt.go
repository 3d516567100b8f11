package caddyshaper

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
)

// Adapt lets the rate of a [Shape] follow what the handlers behind it answer, between Min and Max: see package adapt. It is
// the rate of the line for all requests, which is that of Fair, or else the Site's.
type Adapt struct {
	// Min, Max and Start are rates, such as "5/s". Without Max it is the rate of the limits; without Min a hundredth of
	// Max; and without Start it is Min.
	Min   string `json:"min,omitempty"`
	Max   string `json:"max,omitempty"`
	Start string `json:"start,omitempty"`

	// Slow is the latency above which an answer is slow; without it latency is not judged.
	Slow caddy.Duration `json:"slow,omitempty"`
}

// readAdapt checks the settings of a rate that adapts.
func readAdapt(s *Shape, set *settings) error {
	if s.Adapt == nil {
		return nil
	}
	switch {
	case s.Quota != nil:
		return errors.New("adapt: it stands beside quota, whose limits are the provider's and need not be found")
	case s.Store != "":
		return errors.New("adapt: it stands beside store; the rate of a level in a store belongs to all processes")
	case s.DryRun:
		return errors.New("adapt: it stands beside dry_run; requests leave whatever the rate is then, so what is answered says nothing about it")
	case s.Fair == nil && s.Site == "":
		return errors.New("adapt: there is no line for all requests whose rate could adapt; say fair, or site, as each key has a rate of its own")
	}
	c := adapt.Config{Slow: time.Duration(s.Adapt.Slow)}
	for _, f := range []struct {
		field, text string
		to          *rate.Limit
	}{{"min", s.Adapt.Min, &c.Min}, {"max", s.Adapt.Max, &c.Max}, {"start", s.Adapt.Start, &c.Start}} {
		if f.text == "" {
			continue
		}
		l, err := shaper.ParseLimits(f.text)
		if err != nil || l != (shaper.Limits{Rate: l.Rate}) {
			return fmt.Errorf("adapt: the %s is %q, must be a rate such as 5/s", f.field, f.text)
		}
		*f.to = l.Rate
	}
	limits := set.site
	if s.Fair != nil && len(s.Rules) == 0 {
		limits = &set.limits
	}
	if limits != nil { // The limits of a file are not known yet.
		line, err := shaper.New(*limits)
		if err != nil {
			return err
		}
		if _, err := adapt.New(line, c); err != nil {
			return err
		}
	}
	set.adapt = &c
	return nil
}

// readAdaptLine reads pairs of words.
func readAdaptLine(s *Shape, _ string, args []string) error {
	s.Adapt = new(Adapt)
	if len(args)%2 == 1 {
		return fmt.Errorf("adapt: takes pairs of min, max, start or slow and a value, got %d words", len(args))
	}
	seen := map[string]bool{}
	for i := 0; i < len(args); i += 2 {
		name, value := args[i], args[i+1]
		if seen[name] {
			return fmt.Errorf("adapt: %s is said twice", name)
		}
		seen[name] = true
		switch name {
		case "min":
			s.Adapt.Min = value
		case "max":
			s.Adapt.Max = value
		case "start":
			s.Adapt.Start = value
		case "slow":
			d, err := caddy.ParseDuration(value)
			if err != nil || d <= 0 {
				return fmt.Errorf("adapt: slow is %q, must be a duration above 0, such as 300ms", value)
			}
			s.Adapt.Slow = caddy.Duration(d)
		default:
			return fmt.Errorf("adapt has no word %q; there are min, max, start and slow", name)
		}
	}
	return nil
}

// An adaptation is a line whose rate adapts.
type adaptation struct {
	line   *shaper.Shaper
	config adapt.Config
}

// adapts returns how the rate of the line for all requests adapts, by the Caddyfile or the file of rules; nil: it does not.
func (e *entry) adapts() *adapt.Config {
	if e.settings.adapt == nil && e.file != nil {
		if a, ok := e.file.Rules().Adapt(); ok {
			return &a.Config
		}
	}
	return e.settings.adapt
}

// setAdaptLocked lets the rate of the line for all requests adapt as an entry says. If that is as before, the rate that was found
// stays.
func (l *limiters) setAdaptLocked(e *entry) error {
	line := l.site.Load()
	if l.key.fixed.fair {
		line = l.fair.Load()
	}
	var want adaptation
	if c := e.adapts(); c != nil && line != nil {
		want = adaptation{line, *c}
	}
	if want == l.adapts {
		return nil
	}
	if old := l.finder.Swap(nil); old != nil {
		old.Close()
	}
	l.adapts = adaptation{}
	if want.line == nil {
		return nil
	}
	a, err := adapt.New(line, want.config)
	if err != nil {
		return err
	}
	l.adapts = want
	l.finder.Store(a)
	return nil
}

// A headObserver observes when the handlers behind the lines begin their answer, and what it is.
type headObserver struct {
	*caddyhttp.ResponseWriterWrapper
	a    *adapt.Controller
	r    *http.Request
	left time.Time
	done bool
}

// observing returns a writer for the handlers behind the lines, whose answer a Controller observes.
func observing(a *adapt.Controller, w http.ResponseWriter, r *http.Request) *headObserver {
	return &headObserver{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, a: a, r: r, left: time.Now()}
}

func (o *headObserver) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		o.observe(&http.Response{StatusCode: status, Header: o.Header()}, nil)
	}
	o.ResponseWriterWrapper.WriteHeader(status)
}

func (o *headObserver) Write(p []byte) (int, error) {
	o.observe(&http.Response{StatusCode: http.StatusOK}, nil)
	return o.ResponseWriterWrapper.Write(p)
}

// end is called when the handlers have returned. Caddy writes the answer to their error later.
func (o *headObserver) end(err error) {
	if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok && failed.StatusCode != 0 && o.r.Context().Err() == nil {
		o.observe(&http.Response{StatusCode: failed.StatusCode}, nil)
		return
	}
	if err != nil {
		o.observe(nil, err)
	}
	o.observe(&http.Response{StatusCode: http.StatusOK}, nil) // net/http writes it, if nothing was written.
}

func (o *headObserver) observe(response *http.Response, err error) {
	if o.done {
		return
	}
	o.done = true
	if outcome, ok := adapt.OutcomeOf(o.r, response, err); ok {
		o.a.Observe(outcome, time.Since(o.left))
	}
}
