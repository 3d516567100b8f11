// Command shapecheck checks files of limits as package config reads them, and says what
// they mean.
//
//	shapecheck [-json] [-strict] [-keys LIST] FILE… [KEY…]
//	shapecheck [-json] [-strict] [-keys LIST] FILE… -- KEY…
//
// The files are layers: a rule of a later one replaces the rule of an earlier one. For each
// rule, or for each KEY the rule that it finds, it prints the limits, where they stand,
// and their meaning in words. It warns of rules that are legal but surely not meant.
//
// Without "--" the names decide which arguments are FILEs, and never the disk: the first
// argument is one, and so are those after it that end in .yaml, .yml or .json, up to
// the first that does not: that is a KEY, and so are all after it. Flags may stand
// anywhere before "--". Behind "--" there are only keys. A KEY that is also the name of
// a file is an error without "--". The FILE "-" is standard input: as the first argument, and
// anywhere before "--".
//
// The status is 0 if the files are right, 1 if they have mistakes (all of them are
// printed) or a key has no rule, and 2 if the command is used wrongly. Warnings do not
// change it, unless -strict makes it 1.
//
// # Rules that are never reached
//
// Which keys a program uses is not in the files. A LIST of them (one per line, "-" for
// standard input), say from [shaper.Group.Top] or a log, lets shapecheck find the rules
// that none of them reaches, and the keys that find no rule.
//
// # JSON
//
// With -json one object goes to standard output, whatever the status but 2. Its arrays
// are never null, and its names stay as they are; others may be added. If the files have
// mistakes, only "errors" has elements.
//
//	errors    file, line, column, rule, field, text, message: as in [config.Error]
//	warnings  file, line, key (of the rule), code, message
//	rules     key ("" is the default), file, line, limits (as text), words,
//	          candidate (limits, words; null: none)
//	keys      key, rule (as above; null: none), if there are KEYs; then rules is empty;
//	          weight, if there is fair
//	fair      by, file, line, weights (key, weight, line); null: the files say nothing of it
//	adapt     bounds (as text), file, line; null: the same
//
// A line is 0 where no line is meant. The codes are:
//
//	refuses-second    no depth and burst 1
//	wait-too-short    the wait is shorter than the time between two departures
//	wait-without-depth, slack-without-depth
//	                  no request waits, so there is nothing to bound or to make up
//	slack-long        slack longer than the wait
//	no-effect         burst or slack at rate inf, inflight in a candidate, a weight of 1
//	same-candidate    a candidate that equals the limits in force
//	address           an address, or a network, as no key has it
//	nested-default    a rule for the key default, below limits, or its weight
//	wildcard          "*", as if it stood for other keys
//	blank             a blank at an end of a part of a key
//	takes-nothing     ~ where no earlier layer has a rule, or fair
//	never-reached     a rule that no key of the LIST finds, or the weight of a key that is not in it
//	not-a-key         a KEY that [shaper.Join] does not make
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"example.com/leakybucket/shaper"
)

// The exit statuses of the program.
const (
	exitOK     = 0
	exitFailed = 1 // the files have mistakes, or could not be read
	exitUsage  = 2
)

const usage = `shapecheck: checks files of limits, and says what they mean

  shapecheck [flags] FILE… [KEY…]
  shapecheck [flags] FILE… -- KEY…

Several files are layers: a rule of a later one replaces that of an earlier one.
With KEYs only the rules that these find are shown.

The first argument is a FILE, and so are those after it that end in .yaml, .yml
or .json. The first other one is a KEY, and so are all after it. "--" between
them says so whatever the names. The FILE "-" is standard input.

Flags:
  -json        print one JSON object, for editors and CI
  -strict      make the status 1 if there are warnings
  -keys LIST   a file of the keys that are in use, one per line, "-" for
               standard input: warns of rules that none of them reaches,
               and reports keys without a rule
  -h           print this text

Status: 0 the files are right, 1 they have mistakes or a key has no rule,
2 wrong usage

Examples:
  shapecheck shaper.yaml
  shapecheck shaper.yaml local.yaml                 what is in force here
  shapecheck shaper.yaml api/premium/42             which rule a key finds
  shapecheck /etc/limits -- api/premium/42 login
  helm template … | shapecheck -                    a file that is nowhere yet
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the whole program and returns its exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a, err := parseArguments(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "shapecheck: %v (-h shows examples)\n", err)
		return exitUsage
	}
	r := check(a, stdin)
	if a.json {
		err = printJSON(stdout, r)
	} else {
		err = printText(stdout, stderr, r)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "shapecheck: %v\n", err)
		return exitFailed
	case len(r.Errors) > 0 || a.strict && len(r.Warnings) > 0:
		return exitFailed
	}
	return exitOK
}

// arguments are the parsed command line.
type arguments struct {
	json, strict bool
	list         string // file of the keys in use; "": none
	files, keys  []string
}

// parseArguments parses the command line. The error is [flag.ErrHelp] if the user asked
// for the usage.
func parseArguments(args []string) (a arguments, err error) {
	flags := flag.NewFlagSet("shapecheck", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Errors are returned, and printed by run on one line.
	flags.BoolVar(&a.json, "json", false, "")
	flags.BoolVar(&a.strict, "strict", false, "")
	flags.StringVar(&a.list, "keys", "", "")

	var afterDashes []string
	dashes := slices.Index(args, "--")
	if dashes >= 0 {
		args, afterDashes = args[:dashes], args[dashes+1:]
	}
	var named []string
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return arguments{}, err
		}
		// Package flag stops at the first argument that is no flag, and flags may follow.
		if args = flags.Args(); len(args) > 0 {
			named, args = append(named, args[0]), args[1:]
		}
	}
	if slices.Contains(slices.Concat(named, afterDashes), "") {
		return arguments{}, errors.New(`"" is neither a file nor a key`)
	}
	if len(named) == 0 {
		return arguments{}, errors.New("no FILE is given")
	}
	end := 1
	for end < len(named) && (dashes >= 0 || isFileName(named[end])) {
		end++
	}
	a.files, a.keys = named[:end], named[end:]
	inputs := 0
	for _, name := range append(slices.Clip(a.files), a.list) {
		if name == "-" {
			inputs++
		}
	}
	if inputs > 1 {
		return arguments{}, errors.New(`"-" is given twice, but standard input can be read only once`)
	}
	if dashes >= 0 {
		a.keys = afterDashes
		return a, nil
	}
	for _, key := range a.keys {
		// The meaning of an argument must not depend on the files in the folder. But an
		// argument that may be either can be refused.
		if info, err := os.Stat(key); err == nil && !info.IsDir() || isFileName(key) {
			return arguments{}, fmt.Errorf("is %q a FILE or a KEY? Write -- before the first key", key)
		}
	}
	return a, nil
}

// isFileName reports whether an argument that is not the first is a FILE by its name.
func isFileName(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name)))
}

// addressProblem returns the mistake of an address in the key of a rule, or "". Keys
// have addresses as [shaper.ClientIP] writes them, and a rule in other words matches
// none of them.
func addressProblem(key string) string {
	parts := strings.Split(key, "/")
	for i, part := range parts {
		text, err := url.PathUnescape(part)
		if err != nil {
			continue // Some part that Join has shortened.
		}
		next := ""
		if i+1 < len(parts) {
			next = parts[i+1]
		}
		if problem := problemOf(text, next, i > 0); problem != "" {
			return problem
		}
	}
	return ""
}

// problemOf returns the mistake of one part of a key, which next follows.
func problemOf(text, next string, joined bool) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		return prefixProblem(p, text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return ""
	}
	if bits, err := strconv.Atoi(next); err == nil {
		if p := netip.PrefixFrom(a, bits); p.IsValid() && (a.Is4() || joined) {
			if a.Is4() {
				return prefixProblem(p, text+"/"+next)
			}
			return "among other parts of a key, a network is written " + shaper.Join(p.Masked().String())
		}
	}
	if written := a.WithZone("").Unmap().String(); written != text {
		return "keys have this address as " + written
	}
	return ""
}

// prefixProblem returns the mistake of a network, which is written as text.
func prefixProblem(p netip.Prefix, text string) string {
	if p.Addr().Is4() || p.Addr().Is4In6() {
		return "keys have addresses of IPv4 clients, not networks, and " + text + " is compared as a text"
	}
	if written := p.Masked().String(); written != text {
		return "keys have this network as " + shaper.Join(written)
	}
	return ""
}
