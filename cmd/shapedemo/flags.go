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
	defaultLimits = "50/s depth 100"
	defaultBurst  = 150

	// outboundLimits have little slack: what a late departure may make up brings
	// it closer to the next, and the API punishes that.
	outboundLimits = "50/s depth 100 slack 5ms"
	defaultCallers = 100

	// mostBurst keeps the burst, and the callers, within the files that a process
	// may open: each has a connection of its own, with two ends.
	mostBurst = 10_000
)

const usage = `shapedemo: a burst goes in, a comb comes out

Starts a fragile upstream and, in front of it, a reverse proxy with the shaper.
Fires the same burst straight at the upstream and through the shaper, shows
what came of it, and then serves until Ctrl-C, which lets the line leave first.

Flags:
  -addr HOST:PORT   where to serve (default ` + defaultAddr + `; if that is taken,
                    a free port; -once uses free ports only)
  -limits TEXT      rate, burst, depth, longest wait (default "` + defaultLimits + `")
  -burst N          requests in the burst (default 150; 0 fires none)
  -vanish N%        make that share of the burst's clients impatient: shaped,
                    they leave before their turn if they have to wait, half
                    of them with an upload that nobody has read (default 0%)
  -upstream URL     put the shaper in front of this server instead of the
                    fragile one; no burst is fired then
  -once             show the burst and exit: status 0 if the upstream failed
                    without the shaper and, behind it, did not, and exactly
                    what does not fit was refused, and at most one slot was
                    spent on clients that had left
  -svg FILE         as -once, and draw the run in FILE
  -outbound         show the other direction: many callers of an API that
                    refuses everybody for a second when two requests come at
                    once, straight and through a shaper.Transport; they go on
                    until Ctrl-C, or with -once exit: status 0 if the API
                    refused some straight, none of those shaped, and served
                    more of these (the shaped ones get a second try where
                    they left apart and this machine brought them together;
                    one that is busy wants slower -limits); -limits is then,
                    if not given, "` + outboundLimits + `"
  -callers N        how many call with -outbound (default 100)
  -h                this text

Examples:
  shapedemo
  shapedemo -once
  shapedemo -once -vanish 50%                       the comb has no holes
  shapedemo -limits "20/s burst 5 depth 40" -burst 80
  shapedemo -limits "50/s depth 100 wait 1s"        nobody waits longer than 1 s
  shapedemo -limits "50/s burst 10 depth 0"         nobody waits: refuses only
  shapedemo -outbound                               calls a fragile API
  shapedemo -addr :9000 -upstream http://localhost:3000 -limits "10/s depth 50"
`

// A config is what the flags say.
type config struct {
	addr      string
	addrGiven bool // by the user: then no other port will do
	limits    shaper.Limits
	burst     int
	vanish    int      // percent of the burst's clients that are impatient
	upstream  *url.URL // nil: the fragile one
	once      bool
	svg       string // file to draw the run in; "": none
	outbound  bool
	callers   int // of the API that -outbound calls
}

// parseFlags reads the command line. An error names the flag and quotes its
// value; flag.ErrHelp says that the usage is wanted.
func parseFlags(args []string) (config, error) {
	standard, err := shaper.ParseLimits(defaultLimits)
	if err != nil {
		return config{}, err
	}
	c := config{burst: defaultBurst, callers: defaultCallers}
	f := flag.NewFlagSet("shapedemo", flag.ContinueOnError)
	f.SetOutput(io.Discard) // The errors come back, and go out as one line.
	f.StringVar(&c.addr, "addr", defaultAddr, "")
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
		return config{}, fmt.Errorf("-svg %q draws the burst, which is not fired at -upstream %q", c.svg, c.upstream)
	case c.once && c.upstream != nil:
		return config{}, fmt.Errorf("-once fires a burst, which is not done to -upstream %q", c.upstream)
	case c.vanish > 0 && c.upstream != nil:
		return config{}, fmt.Errorf(`-vanish "%d%%" is for clients of the burst, which is not fired at -upstream %q`, c.vanish, c.upstream)
	case c.once && c.burst == 0:
		return config{}, errors.New(`-once shows a burst, and -burst "0" fires none`)
	case c.vanish > 0 && c.burst == 0:
		return config{}, fmt.Errorf(`-vanish "%d%%" is for clients of the burst, and -burst "0" fires none`, c.vanish)
	case c.limits.InFlight > 0 && c.upstream == nil && c.burst > 0:
		return config{}, fmt.Errorf(`-limits %q: a burst is judged by its rate, below which inflight may keep it; it goes with -burst "0", -upstream or -outbound`, c.limits)
	case given["callers"]:
		return config{}, fmt.Errorf(`-callers "%d" are those of -outbound`, c.callers)
	}
	return c, nil
}

// forOutbound is the config for -outbound, with which not all flags go that may
// be given.
func (c config) forOutbound(given map[string]bool) (config, error) {
	for _, name := range []string{"addr", "burst", "vanish", "upstream", "svg"} {
		if given[name] {
			return config{}, fmt.Errorf("-outbound calls an API of its own and serves nobody: -%s does not go with it", name)
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
		return errors.New("must be at least 2: one alone makes no burst")
	case n > mostBurst:
		return fmt.Errorf("must be at most %d", mostBurst)
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
	case n > mostBurst:
		return fmt.Errorf("must be at most %d", mostBurst)
	}
	c.burst = n
	return nil
}

func (c *config) setVanish(text string) error {
	number, signed := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(number, 10, 0)
	if !signed || err != nil || n > 100 {
		return errors.New("must be a whole percentage from 0% to 100%, with its sign")
	}
	c.vanish = int(n)
	return nil
}

func (c *config) setUpstream(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		// Without the text, which the flag package quotes already.
		if e, ok := errors.AsType[*url.Error](err); ok {
			return e.Err
		}
		return err
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("has no host")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("must end with the path: each request brings its own query")
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("has no port %s", port)
		}
	}
	c.upstream = u
	return nil
}

// setSVG looks at the folder now, lest a run is over before its picture turns
// out to have no place.
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
