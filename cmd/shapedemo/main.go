// Command shapedemo shows a leaky-bucket traffic shaper at its work: requests arrive in a
// burst and leave evenly spaced.
//
// It starts a fragile upstream server, which answers 503 when it gets more
// requests than it has workers, and a reverse proxy with the shaper's
// middleware in front of it. It sends the same burst to both and draws when
// the requests reached the upstream. Then a proxy keeps serving until
// Ctrl-C. The requests that are waiting at that moment are still served. Meanwhile
// a page shows the line in a browser, with buttons that send more bursts.
//
// With -outbound it shows the other direction: many callers of an API that does
// not tolerate bursts, without and with a shaper.Transport. With -tokens it shows calls that
// reserve more than they take, of an API that counts tokens. With -fair it shows a burst of one
// client beside calls of ten others, in one line and with fair queueing. With -adapt it shows an upstream
// whose capacity falls and rises again, at a fixed rate and at one that adapts.
//
//	go run ./cmd/shapedemo -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"example.com/leakybucket/shaper"
)

// The exit statuses of the program.
const (
	exitOK          = 0
	exitFailed      = 1   // an error, or the demonstration did not show what it should
	exitUsage       = 2   // a flag is wrong; nothing was started
	exitInterrupted = 130 // what a shell reports for a program ended by Ctrl-C
)

func main() {
	// Room for the two signals that have a meaning: the first drains, the second
	// stops at once. Any further signal may be dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// If SIGPIPE were not ignored, a closed pipe behind stdout would kill the
	// program and with it all waiting requests. The terminal gets the write's
	// error instead, and ends the program in order.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(signals, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program and returns its exit status.
func run(signals <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	if err != nil {
		return printError(stderr, exitUsage, fmt.Errorf("%w (-h shows examples)", err))
	}
	front, err := listenFront(c)
	defer front.close()
	if err != nil {
		return printError(stderr, exitUsage, err)
	}

	// The first signal ends the program in order, the second one at once.
	graceful, drain := context.WithCancel(context.Background())
	defer drain()
	immediate, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		for _, cancel := range []context.CancelFunc{drain, end} {
			select {
			case <-signals:
				cancel()
			case <-immediate.Done(): // The program has ended.
				return
			}
		}
	}()
	t := newTerminal(stdout, drain)
	status := exitOK
	if c.shows() {
		status, err = c.scene.show(graceful, t, c)
	}
	if err == nil && c.serves() {
		status, err = serve(graceful, immediate, t, c, front)
	}
	switch {
	case t.err != nil: // The output could not be written.
		return printError(stderr, exitFailed, t.err)
	case errors.Is(err, context.Canceled):
		return printError(stderr, exitInterrupted, errors.New("interrupted"))
	case err != nil:
		return printError(stderr, exitFailed, err)
	}
	return status
}

// printError prints err on one line, and returns the exit status.
func printError(stderr io.Writer, status int, err error) int {
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "shapedemo: %s\n", text)
	return status
}

const (
	defaultAddr   = "127.0.0.1:8080"
	defaultPage   = "127.0.0.1:0"
	defaultLimits = "50/s depth 100"
	defaultBurst  = 150

	// outboundLimits have little slack: after a late departure, slack lets the
	// next one follow sooner, and the API takes that for a burst.
	outboundLimits = "50/s depth 100 slack 5ms"
	defaultCallers = 100

	// maxBurst is the largest burst, and the largest number of callers. Each has a
	// connection of its own, and both ends of it count against the number of files
	// that a process may open.
	maxBurst = 10_000
)

const usage = `shapedemo: requests arrive in a burst and leave evenly spaced

Starts a fragile upstream server and, in front of it, a reverse proxy with the
shaper. Sends the same burst directly to the upstream and through the shaper,
compares the results, and then serves until Ctrl-C. Requests that are waiting
at that moment are still served.

Flags:
  -addr HOST:PORT   where to serve (default ` + defaultAddr + `; if that is in
                    use, a free port; -once uses free ports only)
  -inspect ADDR     where to serve the page that shows the line, with buttons
                    that send bursts and more: a loopback address (default
                    ` + defaultPage + `, which is a free port; "" for no page)
  -limits TEXT      rate, burst, depth, longest wait (default "` + defaultLimits + `")
  -burst N          requests in the burst (default 150; 0 sends none)
  -vanish N%        make that share of the burst's clients impatient: if they
                    have to wait for the shaper, they disconnect before their
                    turn; half of them are uploading at that time (default 0%)
  -upstream URL     put the shaper in front of this server instead of the
                    fragile one; no burst is sent to it
  -once             show the burst and exit. The status is 0 if the upstream
                    failed without the shaper and did not fail behind it, if
                    exactly the requests that do not fit were refused, and if
                    at most one departure was wasted on clients that had
                    disconnected
  -svg FILE         like -once, and draw the run in FILE
  -outbound         show the other direction: many callers of an API that
                    refuses all requests for a second after two of them come
                    at once, directly and through a shaper.Transport. They go
                    on until Ctrl-C. With -once the program exits instead;
                    the status is 0 if the API refused direct calls and no
                    shaped ones, and served more of the shaped ones. If a busy
                    machine brings shaped calls together, there is a second
                    try; use slower -limits there. The default of -limits is
                    "` + outboundLimits + `" with this flag
  -callers N        number of callers with -outbound (default 100)
  -tokens           show calls of an API that counts tokens, which reserve more
                    than they take: by backoff, through a shaper, and through
                    one that is told what calls have taken. Then exit; the
                    status is 0 if the API refused none of the shaped calls,
                    and twice as many left with settling. -svg draws the level.
                    The default of -limits is
                    "` + tokensLimits + `" with this flag
  -fair             show a burst of one key beside calls of ten people: in one
                    line, and with fair queueing. Then exit; the status is 0
                    if nothing was refused, and fair queueing cut a person's
                    mean wait to a tenth. -svg draws the run. The default of
                    -limits is "` + fairLimits + `" with this flag
  -adapt            show an upstream that bears the rate of -limits, then 30 %
                    of it, and then all of it again: at that rate, and at one
                    that adapts. Then exit; the status is 0 if that cut the
                    calls refused to a tenth and used two thirds of what the
                    upstream bore. -svg draws the run. The default of
                    -limits is "` + adaptLimits + `" with this flag
  -h                print this text

Examples:
  shapedemo
  shapedemo -once
  shapedemo -once -vanish 50%                       departures stay even
  shapedemo -limits "20/s burst 5 depth 40" -burst 80
  shapedemo -limits "50/s depth 100 wait 1s"        no wait longer than 1 s
  shapedemo -limits "50/s burst 10 depth 0"         requests never wait
  shapedemo -outbound                               callers of a fragile API
  shapedemo -once -tokens                           tokens of a language model
  shapedemo -once -fair                             a burst delays nobody else
  shapedemo -once -adapt                            the rate that nobody knows
  shapedemo -addr :9000 -upstream http://localhost:3000 -limits "10/s depth 50"
`

// A config has the values of the flags.
type config struct {
	scene     scene
	once      bool
	addr      string
	addrGiven bool   // -addr was given: then no other port is tried
	inspect   string // address of the page; "": none
	limits    shaper.Limits
	burst     int
	vanish    int      // percent of the burst's clients that are impatient
	upstream  *url.URL // nil: the fragile one
	svg       string   // file to draw the run in; "": none
	callers   int
}

// shows reports whether the scene is shown: no burst is sent to a server of the user's.
func (c config) shows() bool { return c.scene.alone || c.burst > 0 && c.upstream == nil }

// serves reports whether the program serves the proxy after the scene.
func (c config) serves() bool { return !c.once && !c.scene.alone }

// parseFlags parses the command line. An error names the flag and quotes its
// value. The error is [flag.ErrHelp] if the user asked for the usage.
func parseFlags(args []string) (config, error) {
	c := config{scene: scenes[0], inspect: defaultPage}
	f := flag.NewFlagSet("shapedemo", flag.ContinueOnError)
	f.SetOutput(io.Discard) // Errors are returned, and printed by run on one line.
	f.BoolVar(&c.once, "once", false, "")
	f.StringVar(&c.addr, "addr", defaultAddr, "")
	f.Func("inspect", "", c.setInspect)
	f.TextVar(&c.limits, "limits", shaper.Limits{}, "")
	f.Func("burst", "", wholeNumber(&c.burst, 0, defaultBurst))
	f.Func("vanish", "", c.setVanish)
	f.Func("upstream", "", c.setUpstream)
	f.Func("svg", "", c.setSVG)
	f.Func("callers", "", wholeNumber(&c.callers, 2, defaultCallers))
	asked := map[string]*bool{}
	for _, s := range scenes[1:] {
		asked[s.flag] = f.Bool(s.flag, false, "")
	}
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	for _, s := range scenes[1:] {
		if *asked[s.flag] && c.scene.flag != "" {
			return config{}, fmt.Errorf("-%s and -%s ask for two scenes at once", c.scene.flag, s.flag)
		}
		if *asked[s.flag] {
			c.scene = s
		}
	}
	given := map[string]bool{}
	f.Visit(func(set *flag.Flag) { given[set.Name] = true })
	c.addrGiven = given["addr"]
	if !given["limits"] {
		if err := c.limits.UnmarshalText([]byte(c.scene.limits)); err != nil {
			return config{}, err
		}
	}
	if err := c.scene.follows(given); err != nil {
		return config{}, err
	}
	return c, c.contradiction(given["inspect"])
}

// follows returns an error if a flag of another scene is given.
func (s scene) follows(given map[string]bool) error {
	for _, other := range scenes {
		for _, name := range other.flags {
			switch {
			case !given[name] || slices.Contains(s.flags, name):
			case s.flag == "":
				return fmt.Errorf("-%s needs -%s", name, other.flag)
			default:
				return fmt.Errorf("-%s cannot be combined with -%s", name, s.flag)
			}
		}
	}
	return nil
}

// contradiction returns an error if the flags contradict each other.
func (c config) contradiction(inspectGiven bool) error {
	noBurst := fmt.Sprintf(`-burst "%d" sends none`, c.burst)
	if c.upstream != nil {
		noBurst = fmt.Sprintf("none is sent to -upstream %q", c.upstream)
	}
	switch {
	case c.scene.speed > 0 && newLimitsInfo(c.limits).unlimited:
		return fmt.Errorf("-%s needs a rate, and -limits %q have none", c.scene.flag, c.limits)
	case c.scene.speed > 0 && hastened(c.limits, c.scene.speed).Validate() != nil:
		return fmt.Errorf("-limits %q: too fast for -%s, which runs %d times as fast as the clock: the rate must be at most %d/s",
			c.limits, c.scene.flag, c.scene.speed, 1_000_000_000/c.scene.speed)
	case c.svg != "" && !c.shows():
		return fmt.Errorf("-svg %q draws the burst, and %s", c.svg, noBurst)
	case c.once && !c.shows():
		return fmt.Errorf("-once shows a burst, and %s", noBurst)
	case c.vanish > 0 && !c.shows():
		return fmt.Errorf(`-vanish "%d%%" is for clients of the burst, and %s`, c.vanish, noBurst)
	case c.limits.InFlight > 0 && c.shows() && !c.scene.alone:
		return fmt.Errorf(`-limits %q: inflight may slow the burst below the rate that the program checks; use it with -burst "0", -upstream or -outbound`, c.limits)
	case c.once && inspectGiven && c.inspect != "":
		return fmt.Errorf("-inspect %q needs a demo that serves, and -once exits after the burst", c.inspect)
	}
	return nil
}

// wholeNumber sets a number to its default, and returns the function that sets it to the value of a
// flag, which must be at least least and at most maxBurst.
func wholeNumber(n *int, least, standard int) func(text string) error {
	*n = standard
	return func(text string) error {
		parsed, err := strconv.Atoi(text)
		if err != nil || parsed < least || parsed > maxBurst {
			return fmt.Errorf("must be a whole number from %d to %d", least, maxBurst)
		}
		*n = parsed
		return nil
	}
}

// setInspect checks that the page is for this machine only: it has buttons that change the demo.
func (c *config) setInspect(text string) error {
	c.inspect = text
	if text == "" {
		return nil
	}
	at, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		return err
	}
	if !at.IP.IsLoopback() {
		return errors.New("the page is for this machine only, so the address must be a loopback address such as 127.0.0.1:9000")
	}
	c.inspect = at.String()
	return nil
}

func (c *config) setVanish(text string) error {
	number, signed := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(number, 10, 0)
	if !signed || err != nil || n > 100 {
		return errors.New("must be a whole percentage from 0% to 100%, with the % sign")
	}
	c.vanish = int(n)
	return nil
}

func (c *config) setUpstream(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		// Without the URL, which the flag package already quotes.
		if e, ok := errors.AsType[*url.Error](err); ok {
			return e.Err
		}
		return err
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("has no host")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("must end with the path: the query comes from each request")
	}
	c.upstream = u
	return nil
}

// setSVG checks now that the file can be written to its folder, not only after
// the run.
func (c *config) setSVG(text string) error {
	if at, err := os.Stat(text); err == nil && at.IsDir() || text == "" {
		return errors.New("must name a file")
	}
	switch folder, err := os.Stat(filepath.Dir(text)); {
	case err != nil:
		return err
	case !folder.IsDir():
		return fmt.Errorf("%s is no folder", filepath.Dir(text))
	}
	c.svg, c.once = text, true
	return nil
}

// A terminal prints the output of the program: plain text, and colours on a real
// terminal.
type terminal struct {
	out    io.Writer
	colour bool
	err    error  // of the first write that failed; nothing is written after it
	failed func() // is called then
}

// newTerminal returns a terminal that writes to w. It has colours if w is a character
// device and the environment variable NO_COLOR is not set.
func newTerminal(w io.Writer, failed func()) *terminal {
	t := &terminal{out: w, failed: failed}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "" {
		at, err := file.Stat()
		t.colour = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	return t
}

// say prints a line of text.
func (t *terminal) say(format string, args ...any) {
	if t.err != nil {
		return
	}
	if _, t.err = fmt.Fprintf(t.out, format+"\n", args...); t.err != nil {
		t.failed()
	}
}

// A colour is the code of a text colour. Text distinguishes too whatever a colour
// distinguishes, as not every terminal or reader sees colours.
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

// A table compares the ways in which requests were sent, a column each.
type table struct{ strings.Builder }

func newTable(t *terminal, ways ...any) *table {
	b := &table{}
	b.row("", ways...)
	text := strings.TrimSuffix(b.String(), "\n")
	b.Reset()
	fmt.Fprintln(b, t.coloured(bold, text))
	return b
}

func (b *table) row(name string, of ...any) {
	fmt.Fprintf(b, "  %-30s%s\n", name, fmt.Sprintf(strings.Repeat(" %10v", len(of)), of...))
}

// formatDecimal formats a number with two decimals, or fewer if they are zero.
func formatDecimal(n float64) string {
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(n, 'f', 2, 64), "0"), ".")
}

// countOf returns a number with its noun, in the plural unless the number is 1.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
