package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/find"
	"example.com/leakybucket/cmd/shapereplay/internal/quota"
	"example.com/leakybucket/config"
)

// arguments are the arguments on the command line.
type arguments struct {
	rules    []string
	key      []string
	routes   []string
	from, to time.Time // zero: no bound
	top      int
	ipv6Bits int

	filter filter

	candidates bool
	json       bool   // in place of tables
	export     string // a file; "": none
	goalText   string // "": no search
	goal       find.Goal

	quota quota.Setup // of the format usage
	given []string    // the names of the flags that were given

	options accesslog.Options
	logs    []string
}

// parseArguments parses the command line. The error is [flag.ErrHelp] if the user asked
// for the usage.
func parseArguments(args []string) (a arguments, err error) {
	flags := flag.NewFlagSet("shapereplay", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Errors are returned, and printed by run on one line.
	flags.Func("rules", "", func(text string) error { return addNames(&a.rules, text, "file") })
	key := flags.String("key", "client_ip", "")
	flags.Func("routes", "", a.addRoutes)
	flags.IntVar(&a.ipv6Bits, "ipv6-bits", 64, "")
	flags.BoolVar(&a.candidates, "candidate", false, "")
	flags.Func("from", "", func(text string) error { return setTime(&a.from, text) })
	flags.Func("to", "", func(text string) error { return setTime(&a.to, text) })
	flags.Func("status", "", a.filter.setStatuses)
	flags.Func("path", "", a.filter.setPaths)
	flags.Func("find", "", a.setGoal)
	flags.StringVar((*string)(&a.options.Format), "format", "", "")
	flags.Func("fields", "", a.options.Fields.Add)
	trailing := flags.String("trailing", "", "")
	flags.StringVar((*string)(&a.options.Stamp), "stamp", "", "")
	flags.BoolVar(&a.options.Spread, "spread", false, "")
	flags.IntVar(&a.top, "top", 10, "")
	flags.BoolFunc("json", "", func(text string) (err error) {
		if a.json, err = strconv.ParseBool(text); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	})
	for name, instead := range map[string]string{
		"svg":   "no picture is drawn any more; the table and -json have the counts",
		"nginx": "no configuration is written any more; the table and -json have the limits",
		"caddy": "no configuration is written any more; the table and -json have the limits",
	} {
		flags.BoolFunc(name, "", func(string) error { return errors.New(instead) })
	}
	a.addQuota(flags)
	flags.Func("export", "", func(text string) error { return setOutput(&a.export, text) })
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return arguments{}, err
		}
		// Package flag stops at the first argument that is no flag, and flags may follow.
		if args = flags.Args(); len(args) > 0 {
			a.logs, args = append(a.logs, args[0]), args[1:]
		}
	}
	if len(a.logs) == 0 {
		a.logs = []string{"-"}
	}
	flags.Visit(func(f *flag.Flag) { a.given = append(a.given, f.Name) })
	a.key, a.options.Trailing = strings.Fields(*key), strings.Fields(*trailing)
	return a, a.check()
}

// check returns an error about arguments that do not go together. Package accesslog checks the
// ones about the reading of logs.
func (a *arguments) check() error {
	if err := a.checkGiven(); err != nil {
		return err
	}
	switch {
	case len(a.rules) == 0 && !a.replaysUsage():
		return errors.New("-rules is missing: which limits are to be replayed?")
	case len(a.key) == 0:
		return errors.New(`-key "": must name parts, or be all`)
	case len(a.routes) > 0 && !slices.Contains(a.key, "route"):
		return fmt.Errorf("-routes is for the part route, and -key is %q", strings.Join(a.key, " "))
	case slices.Contains(a.logs, ""):
		return errors.New(`"" is not the name of a log`)
	case a.ipv6Bits < 1 || a.ipv6Bits > 128:
		return fmt.Errorf("-ipv6-bits %d: must be from 1 to 128", a.ipv6Bits)
	case a.top < 0:
		return fmt.Errorf("-top %d: must not be negative", a.top)
	case !a.from.IsZero() && !a.to.IsZero() && !a.from.Before(a.to):
		return fmt.Errorf("-from %s is not before -to %s", a.from.Format(time.RFC3339), a.to.Format(time.RFC3339))
	}
	for _, shows := range []struct {
		name  string
		given bool
	}{{"-candidate", a.candidates}, {"-export", a.export != ""}} {
		if shows.given && a.goalText != "" {
			return fmt.Errorf("%s shows a replay, and -find searches: use one of them", shows.name)
		}
	}
	at, err := os.Stat(a.export)
	if err != nil {
		return nil // It is not there yet, or not wanted.
	}
	for _, name := range slices.Concat(a.rules, a.logs) {
		if read, err := os.Stat(name); err == nil && os.SameFile(at, read) {
			return fmt.Errorf("-export %s would write over an input", a.export)
		}
	}
	return nil
}

func (a *arguments) setGoal(text string) (err error) {
	a.goalText = text
	a.goal, err = find.ParseGoal(text)
	return err
}

// addRoutes adds patterns that have commas between them.
func (a *arguments) addRoutes(text string) error {
	if err := addNames(&a.routes, text, "route"); err != nil {
		return err
	}
	_, err := new(config.Rules).Routes(0, a.routes...) // Without rules the mistake is one of the patterns given.
	return err
}

// addNames adds names of something that have commas between them.
func addNames(to *[]string, text, of string) error {
	names := strings.Split(text, ",")
	if slices.Contains(names, "") {
		return fmt.Errorf(`"" is not the name of a %s`, of)
	}
	*to = append(*to, names...)
	return nil
}

// setTime reads a time. One without a zone is in UTC.
func setTime(to *time.Time, text string) error {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			*to = at
			return nil
		}
	}
	return errors.New(`must be a time such as 2026-11-22T13:00:00Z, or "2026-11-22 13:00" in UTC`)
}

// setOutput checks now that the file can be written to its folder, not only after the
// replay.
func setOutput(to *string, text string) error {
	if text == "" {
		return errors.New("must name a file")
	}
	switch folder, err := os.Stat(filepath.Dir(text)); {
	case err != nil:
		return err
	case !folder.IsDir():
		return fmt.Errorf("%s is no folder", filepath.Dir(text))
	}
	if at, err := os.Stat(text); err == nil && at.IsDir() {
		return errors.New("is a folder")
	}
	*to = text
	return nil
}

// A filter says which requests of the logs are replayed, by their statuses and paths. The
// zero filter wants all.
type filter struct {
	statuses map[int]bool
	paths    []string
	notThese struct{ statuses, paths bool } // all others are wanted

	omitted int // requests so far
}

// wants reports whether a request is to be replayed, and counts it if it is not.
func (f *filter) wants(r *accesslog.Record) bool {
	wanted := true
	if len(f.statuses) > 0 {
		wanted = f.statuses[r.Status] != f.notThese.statuses
	}
	if wanted && len(f.paths) > 0 {
		has := slices.ContainsFunc(f.paths, func(pattern string) bool { return fits(r.Path, pattern) })
		wanted = has != f.notThese.paths
	}
	if !wanted {
		f.omitted++
	}
	return wanted
}

// fits reports whether a path fits a pattern: * matches any text, and a / at the end of the pattern
// any path below it.
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

// cutNot cuts off a leading !, which excludes the values behind it, and notes in not whether it was there.
// A flag that is given twice, once with and once without !, is an error.
func cutNot(text string, isAgain bool, not *bool) (rest string, err error) {
	rest, is := strings.CutPrefix(text, "!")
	if isAgain && is != *not {
		return "", errors.New("a value behind a ! is left out, and the flag is there without it, too: use one of them")
	}
	*not = is
	return rest, nil
}

// setStatuses reads statuses such as 429,5xx,300-399, which are not wanted behind a !.
func (f *filter) setStatuses(text string) error {
	text, err := cutNot(text, len(f.statuses) > 0, &f.notThese.statuses)
	if err != nil {
		return err
	}
	if f.statuses == nil {
		f.statuses = map[int]bool{}
	}
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
		for status := low; status <= high; status++ {
			f.statuses[int(status)] = true
		}
	}
	return nil
}

// setPaths reads patterns of paths.
func (f *filter) setPaths(text string) error {
	text, err := cutNot(text, len(f.paths) > 0, &f.notThese.paths)
	if err != nil {
		return err
	}
	for part := range strings.SplitSeq(text, ",") {
		if !strings.HasPrefix(part, "/") && !strings.HasPrefix(part, "*") {
			return errors.New(strconv.Quote(part) + ": must begin with / or *, as /login, /api/ and *.php do, and a ! before all of them leaves them out")
		}
		f.paths = append(f.paths, part)
	}
	return nil
}
