package caddyshaper

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"example.com/leakybucket/shaper"
)

// Fair makes the keys of a [Shape] share its rate: see [shaper.WithFairQueue]. With the Rules of the
// Shape both fields are empty, as the files say it.
type Fair struct {
	// By has the parts of the key of a request, as in a Shape's Key, but without all.
	By []string `json:"by,omitempty"`

	// Weights are the shares of keys, from 1 to 1000. A key that is not here has 1. Keys are
	// written as [shaper.Join] makes them.
	Weights map[string]int `json:"weights,omitempty"`
}

// maxWeight is the greatest weight of a key.
const maxWeight = 1000

// readFair checks the settings of fair queueing.
func readFair(s *Shape, set *settings) error {
	if s.Fair == nil {
		return nil
	}
	inFile := len(s.Rules) > 0
	switch {
	case inFile && len(s.Fair.By)+len(s.Fair.Weights) > 0:
		return errors.New("fair: it stands alone beside rules, as their files have the parts of the keys and their weights")
	case !inFile && len(s.Fair.By) == 0:
		return errors.New("fair: by is missing; say whose requests take turns, such as client_ip, or name a file by rules that says it")
	case slices.Contains(s.Fair.By, "all"):
		return errors.New(`fair: "all" tells no requests apart, so none could take turns`)
	case len(s.Key) > 0:
		return fmt.Errorf("key: %q stands beside fair; with key each key has a rate of its own, and with fair all share one", s.Key)
	case s.Site != "":
		return fmt.Errorf("site: %q stands beside fair, whose limits are already for all requests together", s.Site)
	case s.Candidate != "":
		return fmt.Errorf("candidate: %q stands beside fair; in a dry run no request waits, so none could take turns", s.Candidate)
	case s.DryRun:
		return errors.New("dry_run: it stands beside fair; in a dry run no request waits, so none could take turns")
	case s.Block > 0:
		return errors.New("block: it stands beside fair; the burst of one key would block all others")
	case s.MaxKeys > 0:
		return errors.New("max_keys: it stands beside fair, with which a key takes memory only while it has a request in line")
	}
	for _, key := range slices.Sorted(maps.Keys(s.Fair.Weights)) {
		if weight := s.Fair.Weights[key]; weight < 1 || weight > maxWeight {
			return fmt.Errorf("fair: the weight of %q is %d, must be from 1 to %d", key, weight, maxWeight)
		}
		if parts := strings.Count(key, "/") + 1; parts != len(s.Fair.By) {
			return fmt.Errorf("fair: the weight of %q is for a key of %d parts, but each key has %d", key, parts, len(s.Fair.By))
		}
	}
	set.fair = *s.Fair
	set.fixed.fair = true
	return nil
}

// readFairLine reads the line with the parts of the key.
func readFairLine(s *Shape, _ string, args []string) error {
	s.Fair = &Fair{By: fairParts(args)}
	return nil
}

// fairParts returns the parts of a key by their words, as in a file of rules too.
func fairParts(words []string) (parts []string) {
	for i := 0; i < len(words); i++ {
		part := words[i]
		if part == "header" && i+1 < len(words) {
			i++
			part += ":" + words[i]
		}
		parts = append(parts, part)
	}
	return parts
}

// fairInFile reports whether a file of rules has the parts of the key.
func (s *Shape) fairInFile() bool { return s.Fair != nil && len(s.Rules) > 0 }

// readWeights reads the block behind the line.
func (f *Fair) readWeights(d *caddyfile.Dispenser) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if len(f.By) == 0 {
			return d.Errf("%q stands below a fair without words; the file of rules has the weights then", d.Val())
		}
		if d.Val() != "weight" {
			return d.Errf("fair has no subdirective %q; there is weight", d.Val())
		}
		args := d.RemainingArgs()
		parts := len(f.By)
		if len(args) != parts+1 {
			return d.Errf("weight: takes one word for each part of the key, which has %d, and a number, got %d", parts, len(args))
		}
		weight, err := strconv.Atoi(args[parts])
		if err != nil || weight < 1 || weight > maxWeight {
			return d.Errf("weight: %q, must be a number from 1 to %d", args[parts], maxWeight)
		}
		key := shaper.Join(literals(args[:parts])...)
		if _, twice := f.Weights[key]; twice {
			return d.Errf("weight: the key %q is said twice", key)
		}
		if f.Weights == nil {
			f.Weights = map[string]int{}
		}
		f.Weights[key] = weight
	}
	return nil
}

// weightOf returns the weight of a key, by the configuration that is in force.
func (l *limiters) weightOf(key string) int {
	e := l.says.Load()
	if e.file != nil {
		return e.file.Weight(key)
	}
	return max(e.settings.fair.Weights[key], 1)
}

// lineLimits returns the limits of the line of fair queueing.
func (e *entry) lineLimits() shaper.Limits {
	if e.file == nil {
		return e.settings.limits
	}
	limits, _ := e.file.Limits("") // of the default, which a file with fair has
	return limits
}

// setFairLocked gives the line of fair queueing the limits of an entry, if there is such a line.
func (l *limiters) setFairLocked(e *entry) error {
	if !l.key.fixed.fair {
		return nil
	}
	fair := shaper.WithFairQueue(l.weightOf)
	if l.key.fixed.quota == "" {
		return l.setLineLocked(&l.fair, e.lineLimits(), l.name, l.bucketKey(""), fair)
	}
	limits, meters, err := e.settings.quota.limits(e.settings.fleet.parts())
	if err != nil {
		return err
	}
	if line := l.fair.Load(); line != nil {
		if err := line.SetMeters(meters...); err != nil {
			return err
		}
	}
	return l.setLineLocked(&l.fair, limits, l.name, l.bucketKey(""), fair, shaper.WithMeters(meters...))
}
