package report

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchunit"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// A table has the lines of one benchmark: a row for each of its names, and columns for the settings
// in which the names differ and for the figures.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

// tables returns a table for each benchmark, in the order of the lines.
func tables(lines []Line) []table {
	var bases []string
	of := map[string][]Line{}
	for _, l := range lines {
		base, _ := benchfmt.Name(l.Name).Parts()
		bases = add(bases, string(base))
		of[string(base)] = append(of[string(base)], l)
	}
	var all []table
	for _, base := range bases {
		all = append(all, tableOf(base, of[base]))
	}
	return all
}

// settings returns the settings in a name, such as rate=1000, by key.
func settings(name string) (keys []string, values map[string]string) {
	_, parts := benchfmt.Name(name).Parts()
	values = map[string]string{}
	for _, part := range parts {
		key, value, _ := strings.Cut(strings.TrimPrefix(string(part), "/"), "=")
		keys, values[key] = append(keys, key), value
	}
	return keys, values
}

func tableOf(base string, lines []Line) table {
	var names, keys, units []string
	rounds := map[string]int{}
	for _, l := range lines {
		rounds[l.Name]++
		if rounds[l.Name] > 1 {
			continue
		}
		names = append(names, l.Name)
		of, _ := settings(l.Name)
		keys = add(keys, of...)
		for _, f := range l.Figures {
			units = add(units, f.Unit)
		}
	}
	t := table{title: base, columns: slices.Clone(keys)}
	for _, unit := range units {
		_, tidy := benchunit.Tidy(1, unit)
		t.columns = append(t.columns, tidy)
	}
	t.columns = append(t.columns, "rounds")
	figures := sumUp(lines)
	for _, name := range names {
		_, values := settings(name)
		var row []string
		for _, key := range keys {
			row = append(row, values[key])
		}
		for _, unit := range units {
			if figure, ok := figures[name+" "+unit]; ok {
				row = append(row, written(figure, unit))
			} else {
				row = append(row, "–")
			}
		}
		t.rows = append(t.rows, append(row, fmt.Sprint(rounds[name])))
	}
	return t
}

// add appends those words that are not there yet.
func add(words []string, more ...string) []string {
	for _, word := range more {
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

// written returns a figure for people. Times have a prefix, such as 4.31µs.
func written(x float64, unit string) string {
	value, tidy := benchunit.Tidy(x, unit)
	if first, _, _ := strings.Cut(tidy, "/"); first == "sec" || strings.HasSuffix(first, "-sec") {
		return benchunit.Scale(value, benchunit.Decimal) + "s"
	}
	return number(x)
}

// number writes four significant digits, and whole numbers with commas.
func number(x float64) string {
	if x >= 1000 || x <= -1000 {
		return message.NewPrinter(language.English).Sprint(int(x))
	}
	return fmt.Sprintf("%.4g", x)
}

// markdown returns the table for a document, and for a terminal.
func (t table) markdown() string {
	var b strings.Builder
	if t.title != "" {
		b.WriteString("### " + t.title + "\n\n")
	}
	w := tabwriter.NewWriter(&b, 3, 0, 1, ' ', 0)
	rule := slices.Repeat([]string{"---"}, len(t.columns))
	for _, row := range slices.Concat([][]string{t.columns, rule}, t.rows) {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	_ = w.Flush() // A Builder takes everything.
	return b.String()
}
