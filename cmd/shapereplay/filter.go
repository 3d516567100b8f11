package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// A filter says which requests of the logs are replayed, by their statuses and paths. The
// zero filter wants all.
type filter struct {
	statuses []statuses
	paths    []string
	notThese struct{ statuses, paths bool } // all others are wanted

	omitted int // requests so far
}

// statuses are a range of them, with its ends.
type statuses struct{ from, to int }

// wants reports whether a request is to be replayed, and counts it if it is not.
func (f *filter) wants(r *accesslog.Record) bool {
	wanted := true
	if len(f.statuses) > 0 {
		wanted = f.hasStatus(r.Status) != f.notThese.statuses
	}
	if wanted && len(f.paths) > 0 {
		wanted = f.hasPath(r.Path) != f.notThese.paths
	}
	if !wanted {
		f.omitted++
	}
	return wanted
}

func (f *filter) hasStatus(status int) bool {
	for _, s := range f.statuses {
		if s.from <= status && status <= s.to {
			return true
		}
	}
	return false
}

func (f *filter) hasPath(path string) bool {
	for _, pattern := range f.paths {
		if fits(path, pattern) {
			return true
		}
	}
	return false
}

// fits reports whether a path fits a pattern: any text stands for *, and the end of the path
// may be anything behind a / at the end of the pattern.
func fits(path, pattern string) bool {
	if strings.HasSuffix(pattern, "/") {
		pattern += "*"
	}
	first, rest, wild := strings.Cut(pattern, "*")
	path, ok := strings.CutPrefix(path, first)
	if !wild || !ok {
		return ok && path == ""
	}
	for {
		var part string
		part, rest, wild = strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(path, part)
		}
		i := strings.Index(path, part)
		if i < 0 {
			return false
		}
		path = path[i+len(part):]
	}
}

// setStatuses reads statuses such as 429,5xx,300-399, which are not wanted behind a !.
func (f *filter) setStatuses(text string) error {
	text, f.notThese.statuses = strings.CutPrefix(text, "!")
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			from, to = strings.ReplaceAll(part, "x", "0"), strings.ReplaceAll(part, "x", "9")
		}
		low, err1 := strconv.ParseUint(from, 10, 16)
		high, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || len(from) != 3 || len(to) != 3 || low > high {
			return fmt.Errorf("%q: must be statuses such as 429, 5xx or 300-399, and a ! before all of them leaves them out", part)
		}
		f.statuses = append(f.statuses, statuses{int(low), int(high)})
	}
	return nil
}

// setPaths reads patterns of paths.
func (f *filter) setPaths(text string) error {
	text, f.notThese.paths = strings.CutPrefix(text, "!")
	for part := range strings.SplitSeq(text, ",") {
		if !strings.HasPrefix(part, "/") && !strings.HasPrefix(part, "*") {
			return errors.New(strconv.Quote(part) + ": must begin with / or *, as /login, /api/ and *.php do, and a ! before all of them leaves them out")
		}
		f.paths = append(f.paths, part)
	}
	return nil
}
