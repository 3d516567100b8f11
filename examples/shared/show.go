package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	startsWithin = 300 * time.Millisecond // what processes need to start
	grace        = 250 * time.Millisecond // what a report needs to come
	redrawn      = 50 * time.Millisecond
)

// show starts what the config says, draws what happens and prints a summary. When it
// returns, all that it has started has ended.
func show(ctx context.Context, c config, w io.Writer) (r result, err error) {
	address := c.redis
	if address == "" {
		started, stop, err := startRedis(ctx)
		if err != nil {
			return r, err
		}
		defer stop()
		address = started
	} else if err := ping(ctx, address); err != nil {
		return r, &usageError{fmt.Errorf("-redis %q: no server answers: %w", address, err)}
	}
	now := time.Now()
	f, err := startFleet(c.processes, task{
		Redis: address, Key: fmt.Sprint("example:", now.UnixNano()), // a bucket of this run alone
		Rate: c.rate, Callers: c.callers, Begin: now.Add(startsWithin),
	})
	defer f.stop()
	if err != nil {
		return r, err
	}
	p := newPicture(c, w)
	p.printf("%d processes share %v/s through Redis at %s. In each, %d callers wait in line.\n", c.processes, c.rate, address, c.callers)
	p.printf("A tick is a departure: %s. A number stands for as many in one column.\n\n%s\n", p.legend(), p.axis())
	if err := p.watch(ctx, f); err != nil {
		if p.live {
			p.printf("\n") // ends the line that is not complete
		}
		return r, err
	}
	p.printf("\n%s", p.summary())
	return p.result, p.err
}

// A picture is the comb of a run as it grows.
type picture struct {
	comb
	result
	out    io.Writer
	err    error // of the first write that failed
	live   bool  // the last line may be written over
	begins time.Time
	trips  []int64 // the round trips of each process
	drawn  int     // lines that are complete
}

func newPicture(c config, w io.Writer) *picture {
	p := &picture{result: result{config: c}, out: w, trips: make([]int64, c.processes)}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		at, err := file.Stat()
		p.live = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	p.comb = newComb(c.rate, p.live && !c.noColour && os.Getenv("NO_COLOR") == "")
	return p
}

func (p *picture) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format, args...)
	}
}

// legend returns the names of the processes.
func (p *picture) legend() string {
	var names []string
	for i := range p.processes {
		names = append(names, p.painted(i, letters[i:i+1]))
	}
	return strings.Join(names, " ")
}

// watch draws until the time is over, and kills the last process half-way. All of the
// picture is used by this goroutine alone.
func (p *picture) watch(ctx context.Context, f *fleet) error {
	const patience = 20 * time.Second // with a machine that is busy
	started := time.Now()
	beat := time.NewTicker(redrawn)
	defer beat.Stop()
	victim := p.processes - 1
	for p.err == nil {
		var r report
		reported := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r = <-f.reports:
			reported = true
		case <-beat.C:
		}
		if !p.begins.IsZero() && p.killed == 0 && time.Since(p.begins) >= p.length/2 {
			if err := f.kill(victim); err != nil {
				return err
			}
			p.isKilled(time.Since(p.begins))
		}
		switch {
		case reported && r.ended == nil:
			p.add(r)
			continue
		case reported && r.process == victim && p.killed > 0:
			continue
		case reported:
			return r.ended
		}
		if p.begins.IsZero() {
			if time.Since(started) > patience {
				return fmt.Errorf("no departure within %v: does the server still run?", patience)
			}
			continue
		}
		now := time.Since(p.begins)
		p.draw(now)
		if now >= p.length+grace {
			return ctx.Err()
		}
	}
	return p.err
}

// isKilled notes when a process was killed. If a busy machine has made that late, the picture
// goes on for longer, so that what comes after it can be seen.
func (p *picture) isKilled(at time.Duration) {
	p.killed = at
	if late := at - p.length/2; late > p.length/8 {
		p.length += late.Round(redrawn)
	}
}

// add takes a report into the log. The first one says when the comb begins.
func (p *picture) add(r report) {
	if p.begins.IsZero() {
		p.begins = r.at.Add(-p.lead())
	}
	p.roundTrips += r.roundTrips - p.trips[r.process]
	p.trips[r.process], p.lateness = r.roundTrips, max(p.lateness, r.lateness)
	if at := r.at.Sub(p.begins); at < p.length {
		p.log = append(p.log, departure{process: r.process, at: at})
	}
}

// draw prints the lines that are complete now, and, on a terminal, the one that is not.
func (p *picture) draw(now time.Duration) {
	begin := ""
	if p.live {
		begin = "\r\x1b[K" // writes over the line
	}
	for ; time.Duration(p.drawn)*p.line < p.length; p.drawn++ {
		row := p.row(p.drawn, p.log)
		end := min(time.Duration(p.drawn+1)*p.line, p.length)
		if now < end+grace {
			if p.live {
				p.printf("%s%s", begin, row)
			}
			return
		}
		p.printf("%s%s\n", begin, row)
		if line, _ := p.place(p.killed); p.killed > 0 && line == p.drawn {
			p.printf("%s\n", p.note(p.killed, fmt.Sprintf("process %c is killed", letters[p.processes-1])))
		}
	}
}
