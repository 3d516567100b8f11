package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"example.com/leakybucket/bench/internal/run"
)

const (
	defaultOut = "docs/bench"
	mostRounds = 100
)

const usage = `bench: the shaper side by side with other Go limiters

Measures one experiment after another, each limiter in a process of its own, and
prints tables and how the goals of the project fare. It takes about 25 minutes,
and wants a machine that does nothing else meanwhile.

Flags:
  -quick           a taste of everything in some 90 s: fewer rounds, rates
                   and limiters
  -only NAME,...   measure these experiments only (-list names them)
  -rounds N        how often to measure what is compared (1 to 100; each
                   experiment knows how often by itself, mostly 3 or 5)
  -out FOLDER      where results.md, results.bench.txt and the pictures go; made
                   if missing, and what a run writes takes the place of what an
                   earlier one wrote, even with -quick or -only
                   (default "` + defaultOut + `"; "" writes nothing)
  -list            name the experiments and end
  -h               this text

results.bench.txt has each figure of each round as a benchmark line: benchstat
compares two of them.

Examples, after export GOWORK=$PWD/all.work:
  go run ./bench                            everything
  go run ./bench -quick -out ""             a first look
  go run ./bench -only spacing,busy -rounds 10
`

// A config has the values of the flags.
type config struct {
	options     run.Options
	experiments []run.Experiment
	chosen      bool   // by -only
	out         string // folder to write to; "": none
	list        bool
}

// parseFlags reads the command line. An error names the flag and quotes its
// value; [flag.ErrHelp] means that the usage is wanted.
func parseFlags(args []string, all []run.Experiment) (config, error) {
	c := config{experiments: all}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // The errors come back, and go out as one line.
	f.BoolVar(&c.options.Quick, "quick", false, "")
	f.BoolVar(&c.list, "list", false, "")
	f.StringVar(&c.out, "out", defaultOut, "")
	f.Func("only", "", func(text string) error { return c.choose(text, all) })
	f.Func("rounds", "", c.setRounds)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, nil
}

// choose keeps the experiments that text names, in the order in which they are measured.
func (c *config) choose(text string, all []run.Experiment) error {
	wanted := strings.Split(text, ",")
	for i, name := range wanted {
		wanted[i] = strings.TrimSpace(name)
		if !slices.ContainsFunc(all, func(e run.Experiment) bool { return e.Name == wanted[i] }) {
			return fmt.Errorf("no experiment is named %q; there are %s", wanted[i], names(all))
		}
	}
	c.experiments = slices.DeleteFunc(slices.Clone(all), func(e run.Experiment) bool { return !slices.Contains(wanted, e.Name) })
	c.chosen = true
	return nil
}

func (c *config) setRounds(text string) error {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return errors.New("must be a whole number")
	case n < 1:
		return errors.New("must be at least 1")
	case n > mostRounds:
		return fmt.Errorf("must be at most %d", mostRounds)
	}
	c.options.Rounds = n
	return nil
}

// command returns the command line that measures the same again. Where the results
// go does not matter to it.
func (c *config) command() string {
	command := "go run ./bench"
	if c.options.Quick {
		command += " -quick"
	}
	if c.chosen {
		command += " -only " + strings.ReplaceAll(names(c.experiments), " ", "")
	}
	if c.options.Rounds > 0 {
		command += " -rounds " + strconv.Itoa(c.options.Rounds)
	}
	return command
}
