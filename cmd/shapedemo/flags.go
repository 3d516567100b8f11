package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"example.com/leakybucket/shaper"
)

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
  -h                print this text

Examples:
  shapedemo
  shapedemo -once
  shapedemo -once -vanish 50%                       departures stay even
  shapedemo -limits "20/s burst 5 depth 40" -burst 80
  shapedemo -limits "50/s depth 100 wait 1s"        no wait longer than 1 s
  shapedemo -limits "50/s burst 10 depth 0"         requests never wait
  shapedemo -outbound                               callers of a fragile API
  shapedemo -addr :9000 -upstream http://localhost:3000 -limits "10/s depth 50"
`

// A config is what the flags set.
type config struct {
	addr      string
	addrGiven bool   // -addr was given: then no other port is tried
	inspect   string // address of the page; "": none
	limits    shaper.Limits
	burst     int
	vanish    int      // percent of the burst's clients that are impatient
	upstream  *url.URL // nil: the fragile one
	once      bool
	svg       string // file to draw the run in; "": none
	outbound  bool
	callers   int // with -outbound
}

// parseFlags parses the command line. An error names the flag and quotes its
// value. The error is [flag.ErrHelp] if the user asked for the usage.
func parseFlags(args []string) (config, error) {
	standard, err := shaper.ParseLimits(defaultLimits)
	if err != nil {
		return config{}, err
	}
	c := config{burst: defaultBurst, callers: defaultCallers}
	f := flag.NewFlagSet("shapedemo", flag.ContinueOnError)
	f.SetOutput(io.Discard) // Errors are returned, and printed by run on one line.
	f.StringVar(&c.addr, "addr", defaultAddr, "")
	f.StringVar(&c.inspect, "inspect", defaultPage, "")
	f.TextVar(&c.limits, "limits", standard, "")
	f.Func("burst", "", c.setBurst)
	f.Func("vanish", "", c.setVanish)
	f.Func("upstream", "", c.setUpstream)
	f.BoolVar(&c.once, "once", false, "")
	f.Func("svg", "", c.setSVG)
	f.BoolVar(&c.outbound, "outbound", false, "")
	f.Func("callers", "", c.setCallers)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	given := map[string]bool{}
	f.Visit(func(set *flag.Flag) { given[set.Name] = true })
	c.addrGiven = given["addr"]
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if c.outbound {
		return c.forOutbound(given)
	}
	switch {
	case c.svg != "" && c.upstream != nil:
		return config{}, fmt.Errorf("-svg %q draws the burst, which is not sent to -upstream %q", c.svg, c.upstream)
	case c.once && c.upstream != nil:
		return config{}, fmt.Errorf("-once shows the burst, which is not sent to -upstream %q", c.upstream)
	case c.vanish > 0 && c.upstream != nil:
		return config{}, fmt.Errorf(`-vanish "%d%%" is for clients of the burst, which is not sent to -upstream %q`, c.vanish, c.upstream)
	case c.once && c.burst == 0:
		return config{}, errors.New(`-once shows a burst, and -burst "0" sends none`)
	case c.vanish > 0 && c.burst == 0:
		return config{}, fmt.Errorf(`-vanish "%d%%" is for clients of the burst, and -burst "0" sends none`, c.vanish)
	case c.limits.InFlight > 0 && c.upstream == nil && c.burst > 0:
		return config{}, fmt.Errorf(`-limits %q: inflight may slow the burst below the rate that the program checks; use it with -burst "0", -upstream or -outbound`, c.limits)
	case c.once && given["inspect"] && c.inspect != "":
		return config{}, fmt.Errorf("-inspect %q needs a demo that serves, and -once exits after the burst", c.inspect)
	case given["callers"]:
		return config{}, fmt.Errorf(`-callers "%d" needs -outbound`, c.callers)
	}
	return c, nil
}

// forOutbound returns the config for -outbound, which not all flags can be
// combined with.
func (c config) forOutbound(given map[string]bool) (config, error) {
	for _, name := range []string{"addr", "inspect", "burst", "vanish", "upstream", "svg"} {
		if given[name] {
			return config{}, fmt.Errorf("-%s cannot be combined with -outbound, which calls an API of its own and does not serve", name)
		}
	}
	if given["limits"] {
		return c, nil
	}
	var err error
	c.limits, err = shaper.ParseLimits(outboundLimits)
	return c, err
}

func (c *config) setCallers(text string) error {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return errors.New("must be a whole number")
	case n < 2:
		return errors.New("must be at least 2: a single caller makes no burst")
	case n > maxBurst:
		return fmt.Errorf("must be at most %d", maxBurst)
	}
	c.callers = n
	return nil
}

func (c *config) setBurst(text string) error {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return errors.New("must be a whole number")
	case n < 0:
		return errors.New("must not be negative")
	case n > maxBurst:
		return fmt.Errorf("must be at most %d", maxBurst)
	}
	c.burst = n
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
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("has an invalid port %s", port)
		}
	}
	c.upstream = u
	return nil
}

// setSVG checks now that the file can be written to its folder, not only after
// the run.
func (c *config) setSVG(text string) error {
	if text == "" {
		return errors.New("must name a file")
	}
	if _, err := os.Stat(filepath.Dir(text)); err != nil {
		return err
	}
	if at, err := os.Stat(text); err == nil && at.IsDir() {
		return errors.New("is a folder")
	}
	c.svg, c.once = text, true
	return nil
}
