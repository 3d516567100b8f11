package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// The notes below the tables.
const (
	spacingNote = "The spacing at the upstream, against the interval. Error: |spacing - interval|. Requests are sent one\n" +
		"after another, each on its own open connection, sooner than they may leave. Overtaken: arrived after\n" +
		"a request that was behind. Against the order of sending, a request on a quick connection overtakes\n" +
		"already at the entrance: net/http reads each connection in a goroutine of its own, nginx all in one\n" +
		"loop. Against the order in which requests entered the shaper's line it tells what line and way out\n" +
		"did; nginx does not let that order be seen."
	ceilingNote = "64 connections, each asks again when it has its answer; the limit is 1,000,000/s. nginx has one worker,\n" +
		"Go all processors, which load generator and upstream share: what compares is the CPU time per request."
)

// print writes what was found as tables.
func (c comparison) print(w io.Writer) {
	how := fmt.Sprintf("Medians of %d interleaved rounds.", c.Rounds)
	if c.Rounds == 1 {
		how = "One round: a taste, no measurement."
	}
	fmt.Fprintf(w, "\n%s, %s. %s\n", c.Machine, c.Nginx, how)
	rows := [][]string{{"rate", "proxy", "requests", "rate/target", "error p50 µs", "p99 µs", "< half %", "overtaken %: sent", "in line", "refused"}}
	for _, s := range c.Spacings {
		m, queue := s.Median, "-"
		if m.OvertakenQueue != nil {
			queue = fmt.Sprintf("%.1f", *m.OvertakenQueue)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%d/s", s.Rate), s.Proxy, fmt.Sprint(s.Requests), fmt.Sprintf("%.4f", m.RateReached),
			fmt.Sprintf("%.1f", m.ErrorP50), fmt.Sprintf("%.0f", m.ErrorP99), fmt.Sprintf("%.1f", m.Bunched),
			fmt.Sprintf("%.1f", m.OvertakenSent), queue, fmt.Sprintf("%.0f", m.Refused),
		})
	}
	printTable(w, "Spacing at the upstream", rows, 2, spacingNote)

	rows = [][]string{{"proxy", "requests/s", "CPU s per 100,000"}}
	for _, r := range c.Ceilings {
		cpu := "-"
		if r.Median.CPUPer100k > 0 {
			cpu = fmt.Sprintf("%.2f", r.Median.CPUPer100k)
		}
		rows = append(rows, []string{r.Proxy, fmt.Sprintf("%.0f", r.Median.PerSecond), cpu})
	}
	printTable(w, "Ceiling", rows, 1, ceilingNote)

	fmt.Fprint(w, "\nGoals\n\n")
	for _, g := range c.Goals {
		verdict := "reached"
		if !g.Reached {
			verdict = "NOT reached"
		}
		fmt.Fprintf(w, "  %s: %.1f × lower, at least %.0f × wanted: %s\n", g.What, g.Got, g.Want, verdict)
	}
}

// printTable aligns columns: the first few to the left, the others, which are
// figures, to the right.
func printTable(w io.Writer, title string, rows [][]string, words int, note string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintf(w, "\n%s\n\n", title)
	for _, row := range rows {
		line := " "
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < words {
				line += " " + cell + space + " "
			} else {
				line += " " + space + cell + " "
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	fmt.Fprintf(w, "\n%s\n", note)
}

// write puts what was found into a file, as JSON.
func (c comparison) write(file string) error {
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("-json %q: %w", file, err)
	}
	return nil
}
