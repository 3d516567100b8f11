package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/quota"
	"example.com/leakybucket/cmd/shapereplay/internal/report"
	"example.com/leakybucket/llm"
)

// forUsage are the flags for the format usage alone, and forBoth the flags for it and for access
// logs.
var (
	forUsage = []string{"provider", "requests", "tokens", "input", "output", "burst", "depth", "wait", "weights"}
	forBoth  = []string{"format", "from", "to", "top", "json"}
)

// replaysUsage reports whether the usage log of a gateway is replayed, and no access log.
func (a *arguments) replaysUsage() bool { return a.options.Format == accesslog.Usage }

// addQuota adds the flags for the format usage. The defaults are the same as in shaperd llm.
func (a *arguments) addQuota(flags *flag.FlagSet) {
	flags.StringVar(&a.quota.Provider, "provider", "", "")
	flags.IntVar(&a.quota.Quota.Requests, "requests", 0, "")
	flags.IntVar(&a.quota.Quota.Tokens, "tokens", 0, "")
	flags.IntVar(&a.quota.Quota.Input, "input", 0, "")
	flags.IntVar(&a.quota.Quota.Output, "output", 0, "")
	flags.DurationVar(&a.quota.Burst, "burst", 30*time.Second, "")
	flags.IntVar(&a.quota.Depth, "depth", 1000, "")
	flags.DurationVar(&a.quota.MaxWait, "wait", 2*time.Minute, "")
	var weights []string // The flag may be given more than once.
	flags.Func("weights", "", func(text string) (err error) {
		weights = append(weights, text)
		a.quota.Weights, err = llm.ParseWeights(strings.Join(weights, ","))
		return err
	})
}

// checkGiven returns an error about flags that are not for the format.
func (a *arguments) checkGiven() error {
	for _, name := range a.given {
		switch isForUsage := slices.Contains(forUsage, name); {
		case isForUsage && !a.replaysUsage():
			return fmt.Errorf("-%s is for -format usage, which replays the usage log of a gateway", name)
		case !isForUsage && a.replaysUsage() && !slices.Contains(forBoth, name):
			return fmt.Errorf("-%s is for access logs, and -format usage replays the calls of a gateway under a quota", name)
		}
	}
	if !a.replaysUsage() {
		return nil
	}
	_, err := quota.New(a.quota)
	return err
}

// replayUsage replays the usage log of a gateway.
func (a *arguments) replayUsage(ctx context.Context, s streams) (status int, err error) {
	simulation, err := quota.New(a.quota)
	if err != nil {
		return exitUsage, err
	}
	stats, status, err := a.read(ctx, s, simulation.Arrive)
	if status != exitOK {
		return status, err
	}
	d := quota.NewDocument(simulation.Result(), ctx.Err() != nil, stats)
	if d.From == nil && stats.Records > 0 && ctx.Err() == nil {
		d.Note("no call of the log is within -from and -to")
	}
	if a.json {
		err = report.WriteJSON(s.out, d)
	} else {
		err = quota.Print(s.out, d, a.top)
	}
	return ended(ctx, err)
}
