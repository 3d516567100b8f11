package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/find"
	"example.com/leakybucket/cmd/shapereplay/internal/keys"
	"example.com/leakybucket/cmd/shapereplay/internal/quota"
	"example.com/leakybucket/cmd/shapereplay/internal/report"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/config"
	"example.com/leakybucket/llm"
)

// replay does the work that the arguments ask for, and returns the exit status.
func (a *arguments) replay(ctx context.Context, s streams) (status int, err error) {
	if a.replaysUsage() {
		return a.replayUsage(ctx, s)
	}
	f, err := config.Open(a.rules...)
	if err != nil {
		return exitFailed, err
	}
	rules := f.Rules()
	if err := f.Close(); err != nil { // The files are read once.
		return exitFailed, err
	}
	// The keys of the rules have the same parts as the keys of requests, so the same part is the
	// route.
	mux, err := rules.Routes(slices.Index(a.key, "route"), a.routes...)
	if err != nil {
		return exitFailed, err
	}
	maker, err := keys.New(a.key, mux, a.ipv6Bits)
	if err != nil {
		return exitUsage, fmt.Errorf("-key: %w (-h shows examples)", err)
	}
	a.options.Header = maker.Header()
	simulation := simulate.New(rules, simulate.Options{Candidates: a.candidates, Arrivals: a.goalText != ""})
	stats, status, err := a.read(ctx, s, func(r *accesslog.Record) {
		key, address := maker.Of(r)
		simulation.Arrive(r.At, key, address)
	})
	if status != exitOK {
		return status, err
	}
	result := simulation.Result()
	d, err := a.document(ctx, result, maker)
	if err != nil {
		return exitFailed, err
	}
	switch {
	case a.filter.omitted > 0:
		d.Note("%s of other statuses or paths are left out (-status, -path)", report.Count(a.filter.omitted, "request"))
	case d.From == nil && stats.Records > 0 && ctx.Err() == nil:
		d.Note("no request of the log is within -from and -to")
	}
	if d.From != nil {
		for _, part := range maker.Untold() {
			d.Note("%s", untold(part))
		}
	}
	d.Key = strings.Join(a.key, " ")
	if n, one := maker.Strangers(); n > 0 {
		d.Note("the client of %s is no address, such as %q", report.Count(n, "request"), one)
	}
	d.SetLog(stats, a.options.Spread)
	return ended(ctx, a.write(s, d, &result))
}

// ended returns the exit status and the error after the logs have been read and, without an error, the results
// printed.
func ended(ctx context.Context, err error) (int, error) {
	switch {
	case err != nil:
		return exitFailed, err
	case ctx.Err() != nil:
		return exitInterrupted, nil
	}
	return exitOK, nil
}

// read calls do with each request of the logs that is wanted, until the context ends, and returns how the logs could
// be read. If the status is not exitOK, there is nothing to show.
func (a *arguments) read(ctx context.Context, s streams, do func(*accesslog.Record)) (stats accesslog.Stats, status int, err error) {
	if slices.Contains(a.logs, "-") {
		a.options.Stdin = interruptible(ctx, s.in)
		if s.typed {
			fmt.Fprintln(s.err, "shapereplay: the log is read from this terminal, until Ctrl-D (-h shows how to name a file)")
		}
	}
	logs, err := accesslog.Open(a.options, a.logs...)
	if err != nil {
		if ctx.Err() != nil {
			return stats, exitInterrupted, nil // before anything was there to be read
		}
		if o, ok := errors.AsType[*accesslog.OptionError](err); ok {
			return stats, exitUsage, fmt.Errorf("-%s: %s (-h shows examples)", strings.ToLower(o.Option), o.Reason)
		}
		if f, ok := errors.AsType[*accesslog.FormatError](err); ok && f.Is == "" {
			err = fmt.Errorf("%w\n%s", err, describing(strings.HasPrefix(f.Begins, "{")))
		}
		return stats, exitFailed, err
	}
	defer func() { _ = logs.Close() }() // It has only been read.
	if err := a.each(ctx, s, logs, do); err != nil {
		return stats, exitFailed, err
	}
	stats = logs.Stats()
	if ctx.Err() == nil && stats.Records == 0 && stats.Lines > 0 {
		return stats, exitFailed, a.notUnderstood(stats)
	}
	return stats, exitOK, nil
}

// untold says that a part was empty in all keys.
func untold(part string) string {
	if part == "route" {
		return "no request fits a pattern of a route: these are the ones in the keys of the rules, and those of -routes"
	}
	return fmt.Sprintf("no line of the log has a value for the part %s, so it is empty in all keys", part)
}

// describing says how to describe a log whose format is unknown.
func describing(json bool) string {
	if json {
		return "Say where its fields are: -fields \"time=ts,method=verb,uri=request.path,client=ip\""
	}
	return `Say what its lines look like, in the words of a log_format of nginx: -format '$remote_addr [$time_local] "$request" $status'`
}

// notUnderstood is the error of logs in which there is no request.
func (a *arguments) notUnderstood(s accesslog.Stats) error {
	first := s.Examples[0]
	return fmt.Errorf("none of the %d lines of %s could be used, as %s:%d (%s): %s\nTry another -format: %s. %s",
		s.Lines, strings.Join(a.logs, ", "), first.File, first.Line, first.Reason, first.Excerpt, accesslog.FormatNames(), describing(strings.HasPrefix(first.Excerpt, "{")))
}

// each calls do with each request of the logs, until the context ends.
func (a *arguments) each(ctx context.Context, s streams, logs *accesslog.Reader, do func(*accesslog.Record)) error {
	bar := progress{streams: s, began: time.Now()}
	defer bar.end()
	// Standard input ends with the context, so the part read until then is replayed to its end.
	onlyStdin := len(a.logs) == 1 && a.logs[0] == "-"
	const oftenEnough = 1 << 10
	var r accesslog.Record // one for all requests, as do may keep it from the stack
	for n := 1; ; n++ {
		if n%oftenEnough == 0 {
			if ctx.Err() != nil && !onlyStdin {
				return nil
			}
			bar.show(time.Now(), n, logs.Progress)
		}
		var err error
		r, err = logs.Next()
		switch {
		case errors.Is(err, io.EOF) || err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !a.to.IsZero() && !r.At.Before(a.to):
			if !onlyStdin || ctx.Err() == nil {
				return nil // All that follow are later.
			}
		case !r.At.Before(a.from) && a.filter.wants(&r):
			do(&r)
		}
	}
}

// document tells how requests fared, or with a goal which limits keep to it.
func (a *arguments) document(ctx context.Context, result simulate.Result, maker *keys.Maker) (*report.Document, error) {
	if a.goalText == "" {
		d := report.Replay(result, a.candidates, a.top)
		d.Interrupted = ctx.Err() != nil
		return d, nil
	}
	if n, one := maker.Strangers(); maker.StrangersAreMost() {
		return nil, fmt.Errorf("the client of %d requests, which are most, is no address, such as %q: -find would look for limits of these. "+
			"Is there a head before the lines that is not known? With another -key than client_ip it does not matter", n, one)
	}
	interrupted := ctx.Err() != nil
	if interrupted {
		// The part read so far is searched; the next Ctrl-C ends the program.
		ctx = context.WithoutCancel(ctx)
	}
	all := []find.Found{}
	for _, rule := range result.Rules {
		found, err := a.goal.Search(ctx, rule)
		if err != nil {
			break
		}
		all = append(all, found)
	}
	d := report.Search(result, a.goalText, all)
	d.Interrupted = interrupted || ctx.Err() != nil
	return d, nil
}

// write writes all outputs that were asked for, even if one of them fails. The file comes first, as
// the program ends when nobody reads its output.
func (a *arguments) write(s streams, d *report.Document, result *simulate.Result) error {
	var errs []error
	if a.export != "" {
		list := ""
		for _, address := range result.AddressesRefusedMost(a.top) {
			list += address + "\n"
		}
		errs = append(errs, os.WriteFile(a.export, []byte(list), 0o644))
	}
	return errors.Join(append(errs, a.print(s, d))...)
}

// print prints the document as text, or as JSON.
func (a *arguments) print(s streams, d *report.Document) error {
	if a.json {
		return report.WriteJSON(s.out, d)
	}
	return report.Print(s.out, d)
}

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
