package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A scene is a demonstration that judges itself. With -once the program shows one and
// exits with the status that show returns. Each scene has a file of its own, and a
// line in [scenes]; nothing else knows it.
type scene struct {
	flag   string   // asks for the scene; "" for the scene that is shown without such a flag
	limits string   // default of -limits
	flags  []string // flags that the scene follows, beside -limits and -once

	// show returns the exit status. It ends early, with the error of ctx, if ctx ends.
	show func(ctx context.Context, t *terminal, c config) (status int, err error)

	// alone is set if the program ends after the scene. Otherwise it serves the proxy,
	// unless -once is set.
	alone bool
	// speed is how much faster than the clock the time of the scene runs; 0: it does not. If it does, there must be a
	// rate, and the shapers of the scene have [hastened] limits.
	speed int
}

// scenes are all scenes. The first one is shown if no flag asks for another.
var scenes = []scene{
	{limits: defaultLimits, flags: []string{"addr", "inspect", "burst", "vanish", "upstream", "svg"}, show: showBurst},
	{flag: "outbound", limits: outboundLimits, flags: []string{"callers"}, show: showOutbound, alone: true},
	{flag: "tokens", limits: tokensLimits, flags: []string{"svg"}, show: showTokens, alone: true, speed: tokensSpeed},
	{flag: "fair", limits: fairLimits, flags: []string{"svg"}, show: showFair, alone: true, speed: fairSpeed},
	{flag: "adapt", limits: adaptLimits, flags: []string{"svg"}, show: showAdapt, alone: true, speed: 1},
}

// hastened returns limits in a time that runs faster than the clock.
func hastened(l shaper.Limits, speed int) shaper.Limits {
	l.Rate = times(l.Rate, speed)
	if l.MaxWait > 0 {
		l.MaxWait = max(l.MaxWait/time.Duration(speed), 1) // 0 would be no bound.
	}
	return l
}

// times returns n times a number, which may be of a type of another package.
func times[N ~float64](number N, n int) N { return N(n) * number }

// limitsInfo has the consequences of limits for requests of cost 1.
type limitsInfo struct {
	limits    shaper.Limits
	unlimited bool    // rate.Inf: only InFlight can make a request wait
	rate      float64 // departures per second; 0 if unlimited
	interval  float64 // seconds between departures; 0 if unlimited
	atOnce    int     // how many may leave at once while the bucket is empty
	mayWait   int     // how many more of a simultaneous burst may wait
	fits      int     // how many of a simultaneous burst are admitted
}

// newLimitsInfo computes the info of limits, which must be valid.
func newLimitsInfo(l shaper.Limits) limitsInfo {
	b := limitwords.BurstOf(l)
	info := limitsInfo{limits: l, atOnce: b.AtOnce, mayWait: b.Waiting, fits: b.Admitted()}
	// In Limits, rate.Inf is the largest float64.
	if info.unlimited = float64(l.Rate) == math.MaxFloat64; !info.unlimited {
		info.rate, info.interval = float64(l.Rate), 1/float64(l.Rate)
	}
	return info
}

// slack returns the lateness that the shaper makes up for.
func (i limitsInfo) slack() time.Duration {
	if i.limits.Slack == 0 {
		return shaper.DefaultSlack
	}
	return i.limits.Slack
}

// printLimits prints the limits, and below them their meaning, line by line.
func printLimits(t *terminal, l shaper.Limits) {
	const indent = "\n             "
	t.say("  limits     %s:%s%s", l, indent, strings.Join(limitwords.Of(l), indent))
}

// conclude prints the faults of a scene. If there are none, it prints the result and writes
// the picture that -svg asks for. It returns the exit status.
func conclude(t *terminal, c config, shown string, faults []string, picture func() string) (status int, err error) {
	for _, fault := range faults {
		t.say("%s %s", t.coloured(red, "✗"), fault)
	}
	if len(faults) > 0 {
		return exitFailed, nil
	}
	t.say("%s %s", t.coloured(green, "✓"), shown)
	if c.svg == "" {
		return exitOK, nil
	}
	if err := os.WriteFile(c.svg, []byte(picture()), 0o644); err != nil {
		return exitFailed, err
	}
	t.say("The picture is in %s.", c.svg)
	return exitOK, nil
}

// instants records when something happened. A nil instants records nothing: a server
// that runs for days must not remember each request.
type instants struct {
	mu  sync.Mutex
	all []time.Time
}

func (i *instants) note(at time.Time) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, at)
}

// sorted returns the instants so far in order. They need sorting, because the first
// goroutine to get the lock need not have read the clock first.
func (i *instants) sorted() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.SortedFunc(slices.Values(i.all), time.Time.Compare)
}

// gaps returns the times between successive instants of at, which is in order,
// from the shortest to the longest.
func gaps(at []time.Time) []time.Duration {
	var between []time.Duration
	for i := 1; i < len(at); i++ {
		between = append(between, at[i].Sub(at[i-1]))
	}
	slices.Sort(between)
	return between
}

// quantile returns the text of a quantile of times, which are sorted.
func quantile(times []time.Duration, q float64) string {
	if len(times) == 0 {
		return "-"
	}
	return seconds(times[min(int(q*float64(len(times))), len(times)-1)])
}

// seconds returns the text of a duration, with three digits.
func seconds(d time.Duration) string { return limitwords.Seconds(d.Seconds()) }

// respond answers a request with a text.
func respond(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}

// The dimensions of all drawings, in pixels.
const (
	svgWidth = 760
	svgLeft  = 24
	svgRight = 736
)

// svgStyle has colours for light and for dark pages, and uses the reader's own
// font. It has no CSS variables, because some SVG viewers do not support them.
const svgStyle = `svg{font:13px system-ui,sans-serif}` +
	`text,.t{fill:#1b1f24}.m{fill:#656d76}.l{stroke:#c4ccd4}` +
	`.a{fill:#0072b2;stroke:#0072b2}.r{fill:#b84f00;stroke:#d55e00}.d{fill:#00785a;stroke:#00785a}.v{fill:#96417a;stroke:#b0588f}` +
	`@media(prefers-color-scheme:dark){text,.t{fill:#e6e8eb}.m{fill:#9198a1}.l{stroke:#4a525c}` +
	`.a{fill:#56b4e9;stroke:#56b4e9}.r{fill:#f0883e;stroke:#f0883e}.d{fill:#2fc99a;stroke:#2fc99a}.v{fill:#e39ccb;stroke:#e39ccb}}` +
	`path.a,path.r,path.d,path.v{fill:none}text.a,text.r,text.d,text.v{stroke:none}`

// A drawing is the text of an SVG.
type drawing struct{ strings.Builder }

// newDrawing begins a drawing of a height. The style is added to [svgStyle]; the label is for readers who can't see it.
func newDrawing(height float64, style, label string, args ...any) *drawing {
	d := &drawing{}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-label="%s"><style>%s</style>`,
		svgWidth, height, fmt.Sprintf(label, args...), svgStyle+style)
	return d
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// text writes a line of text, which begins at x.
func (d *drawing) text(class string, x, y float64, format string, args ...any) {
	d.add(`<text class="%s" x="%.0f" y="%.0f">%s</text>`, class, x, y, fmt.Sprintf(format, args...))
}

// ground draws the line on which marks stand.
func (d *drawing) ground(y float64) {
	d.add(`<path class="l" d="M%d %.1fH%d"/>`, svgLeft-4, y+0.5, svgRight+4)
}

// end ends the drawing, and returns its text.
func (d *drawing) end() string {
	d.WriteString("</svg>\n")
	return d.String()
}

// times draws a time axis of so many seconds, with labels at round times, below y.
func (d *drawing) times(y, length float64) {
	step, unit := roundStep(length/6), limitwords.UnitFor(length)
	for i := 0; float64(i)*step <= length; i++ {
		at := svgLeft + float64(i)*step/length*(svgRight-svgLeft)
		d.add(`<path class="l" d="M%.1f %.0fv5"/><text class="m" x="%.0f" y="%.0f" text-anchor="middle">%.6g %s</text>`,
			at, y+1, at, y+20, float64(i)*step/unit.Length, unit.Name)
	}
}

// ticks draws instants as upright marks.
func ticks[T any](instants []T, x func(T) float64, foot, height float64) string {
	var b strings.Builder
	for _, at := range instants {
		fmt.Fprintf(&b, "M%.1f %.0fv-%.0f", x(at), foot, height)
	}
	return b.String()
}

// roundStep returns the smallest of 1, 2 and 5 times a power of ten that is at
// least that many seconds.
func roundStep(minimum float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(minimum)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= minimum {
			return n * power
		}
	}
	return 10 * power
}
