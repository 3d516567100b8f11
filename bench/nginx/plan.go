package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A plan says what is measured, and how long.
type plan struct {
	rounds   int
	rates    []int // per second
	requests int   // at most, at each rate
	window   time.Duration
	json     string // the file to write; empty: none
}

const (
	fewestRequests = 20
	mostRequests   = 900 // below the open files that are allowed everywhere
	mostRate       = 10_000
)

// parsePlan reads the command line. Its errors name the flag and quote the
// value.
func parsePlan(args []string, usage io.Writer) (plan, error) {
	p := plan{requests: mostRequests}
	flags := flag.NewFlagSet("bench/nginx", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.Usage = func() {
		fmt.Fprintln(usage, "usage: go run ./bench/nginx [flags]\n\nMeasures nginx limit_req against httputil.ReverseProxy with the shaper's middleware.")
		flags.PrintDefaults()
	}
	flags.IntVar(&p.rounds, "rounds", 5, "`number` of rounds, of which medians are told")
	rates := flags.String("rates", "100,1000", "rates per second, with commas between them")
	quick := flags.Bool("quick", false, "one round, in under 15 s")
	flags.StringVar(&p.json, "json", "", "`file` to write the figures to as well")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	if flags.NArg() > 0 {
		return plan{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	p.window = 2 * time.Second
	if *quick {
		p.window = 500 * time.Millisecond
		asked := false
		flags.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rounds" })
		if !asked {
			p.rounds = 1
		}
	}
	if p.rounds < 1 || p.rounds > 100 {
		return plan{}, fmt.Errorf("-rounds %q: must be from 1 to 100", strconv.Itoa(p.rounds))
	}
	var err error
	if p.rates, err = parseRates(*rates); err != nil {
		return plan{}, fmt.Errorf("-rates %q: %w", *rates, err)
	}
	return p, nil
}

func parseRates(text string) ([]int, error) {
	var rates []int
	for part := range strings.SplitSeq(text, ",") {
		rate, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", part)
		}
		if rate < 1 || rate > mostRate {
			return nil, fmt.Errorf("%d is not from 1 to %d", rate, mostRate)
		}
		if slices.Contains(rates, rate) {
			return nil, errors.New("a rate stands there twice")
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

// load is what is sent at a rate: two seconds' worth of requests, each a good
// deal sooner than it may leave, so that the line never runs dry.
func (p plan) load(rate int) burst {
	interval := time.Second / time.Duration(rate)
	return burst{
		rate:     rate,
		requests: min(max(2*rate, fewestRequests), p.requests),
		every:    min(500*time.Microsecond, interval*3/10),
	}
}
