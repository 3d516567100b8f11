package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A terminal prints the output of the program: plain text, and, on a real
// terminal, colours and one status line at the bottom that is overwritten again
// and again. It is safe for concurrent use.
type terminal struct {
	live   bool // the last line may be written over
	colour bool
	failed func(error) // told once, of the first write that fails

	mu          sync.Mutex
	out         io.Writer
	statusWidth int   // of the line at the bottom now; 0: there is none
	err         error // of the first write that failed; nothing is written after it
}

// newTerminal returns a terminal that writes to w, and calls failed when a write
// fails. It is live only if w is a character device. If the environment variable
// NO_COLOR is set and not empty, there is no colour.
func newTerminal(w io.Writer, broken func(error)) *terminal {
	t := &terminal{out: w, failed: broken}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		at, err := file.Stat()
		t.live = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	t.colour = t.live && os.Getenv("NO_COLOR") == ""
	return t
}

// say prints a line of text in place of the status line, if there is one.
func (t *terminal) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(t.eraseStatusLocked() + fmt.Sprintf(format, args...) + "\n")
}

// status replaces the status line; "" removes it. Only a live terminal has one.
func (t *terminal) status(line string) {
	if !t.live {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	erased := t.eraseStatusLocked()
	t.statusWidth = utf8.RuneCountInString(line)
	t.writeLocked(erased + line)
}

// eraseStatusLocked returns what erases the status line. It uses blanks, which
// every terminal understands.
func (t *terminal) eraseStatusLocked() string {
	if t.statusWidth == 0 {
		return ""
	}
	blanks := strings.Repeat(" ", t.statusWidth)
	t.statusWidth = 0
	return "\r" + blanks + "\r"
}

func (t *terminal) writeLocked(text string) {
	if t.err != nil || text == "" {
		return
	}
	if _, t.err = io.WriteString(t.out, text); t.err != nil {
		t.failed(t.err)
	}
}

// A colour is the code of a text colour. What it distinguishes is also
// distinguished by text, as not every terminal or reader sees colours.
type colour string

const (
	bold   colour = "1"
	faint  colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	blue   colour = "36"
)

// coloured returns text in a colour, if the terminal has colours.
func (t *terminal) coloured(c colour, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// limitsInfo is what limits come to for requests of cost 1.
type limitsInfo struct {
	limits    shaper.Limits
	unlimited bool    // rate.Inf: only InFlight can make a request wait
	rate      float64 // departures per second
	interval  float64 // seconds between departures
	atOnce    int     // how many may leave at once while the bucket is empty
	mayWait   int     // how many more of a simultaneous burst may wait
}

// newLimitsInfo computes the info of limits, which must be valid.
func newLimitsInfo(l shaper.Limits) limitsInfo {
	// In Limits, rate.Inf is the largest float64.
	info := limitsInfo{limits: l, unlimited: float64(l.Rate) == math.MaxFloat64, atOnce: max(l.Burst, 1)}
	if l.InFlight > 0 {
		info.atOnce = min(info.atOnce, l.InFlight)
	}
	if info.unlimited {
		return info
	}
	info.rate = float64(l.Rate)
	info.interval = 1 / info.rate
	info.mayWait = limitwords.BurstOf(l).Waiting
	return info
}

// fits returns how many requests of a simultaneous burst are admitted.
func (i limitsInfo) fits() int {
	if i.atOnce > math.MaxInt-i.mayWait {
		return math.MaxInt
	}
	return i.atOnce + i.mayWait
}

// slack returns the lateness that the shaper makes up for.
func (i limitsInfo) slack() time.Duration {
	if i.limits.Slack == 0 {
		return shaper.DefaultSlack
	}
	return i.limits.Slack
}

// formatDecimal formats a number with two decimals, or fewer if they are zero.
func formatDecimal(n float64) string { return trimZeros(strconv.FormatFloat(n, 'f', 2, 64)) }

// trimZeros removes the zeros at the end of a decimal fraction.
func trimZeros(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// countOf returns a number with its noun, in the plural unless the number is 1.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

const (
	statusEvery = 250 * time.Millisecond
	// statusSamples is how many samples the rate over one second needs: one more
	// than there are steps between them.
	statusSamples = int(time.Second/statusEvery) + 1
)

// watchShaper shows a status line about a shaper at the bottom of a live terminal
// until the function that it returns is called. It shows upstreamErrors too, if
// that is not nil.
func watchShaper(t *terminal, shaped *shaper.Shaper, upstreamErrors *atomic.Uint64) (end func()) {
	if !t.live {
		return func() {}
	}
	if upstreamErrors == nil {
		upstreamErrors = new(atomic.Uint64)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		beat := time.NewTicker(statusEvery)
		defer beat.Stop()
		var m rateMeter
		for {
			s := shaped.Stats()
			t.status(statusLine(m.rate(time.Now(), s.Departed), s, upstreamErrors.Load()))
			select {
			case <-beat.C:
			case <-stop:
				t.status("")
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// statusLine returns the state of a shaper in fewer than 80 characters.
func statusLine(rate float64, s shaper.Stats, upstreamErrors uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %5.1f/s   waiting %d   departed %d   refused %d   abandoned %d", rate, s.Waiting, s.Departed, s.Refused, s.Abandoned)
	if upstreamErrors > 0 {
		fmt.Fprintf(&b, "   unanswered %d", upstreamErrors)
	}
	return b.String()
}

// A rateMeter measures how many requests departed per second during the last
// second.
type rateMeter struct {
	samples []rateSample
}

type rateSample struct {
	at       time.Time
	departed uint64
}

// rate adds a sample, and returns the rate since the oldest sample that it keeps.
func (m *rateMeter) rate(at time.Time, departed uint64) float64 {
	m.samples = append(m.samples, rateSample{at, departed})
	if len(m.samples) > statusSamples {
		m.samples = m.samples[1:]
	}
	oldest := m.samples[0]
	if span := at.Sub(oldest.at); span > 0 {
		return float64(departed-oldest.departed) / span.Seconds()
	}
	return 0
}
