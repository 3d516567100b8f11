package shaper

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

const (
	// maxText is the length of the longest text that is read, in bytes. Exact
	// arithmetic takes longer with more digits, and a text may come from an attacker.
	maxText  = 1024
	maxQuote = 60            // an error quotes at most so many bytes of the text
	blanks   = " \t"         // these separate words
	numeric  = ".0123456789" // the characters of a number

	expectedUnit     = "expected a unit: ns us ms s sec min h hour d day"
	expectedDuration = "expected a duration such as 2s or 1.5h"
)

// units are the units of time. String uses the first one that divides a duration.
var units = []struct {
	name   string
	length time.Duration
}{
	{"d", 24 * time.Hour}, {"day", 24 * time.Hour}, {"h", time.Hour}, {"hour", time.Hour},
	{"min", time.Minute}, {"s", time.Second}, {"sec", time.Second},
	{"ms", time.Millisecond}, {"us", time.Microsecond}, {"ns", time.Nanosecond},
}

// optional are the fields that may follow the rate.
var optional = []string{"burst", "depth", "wait", "slack", "inflight"}

// ParseLimits reads the text form of [Limits]:
//
//	50/s
//	10/min depth 100
//	1 per 2s burst 10 depth 100 wait 2s slack 10ms
//	100 in 1min burst 20 depth 50
//	50/s depth 100 inflight 8
//	inf depth 3
//	10, 1/sec
//
// The text begins with a rate: a number per unit of time, a number per duration, a number in a window ([Window]), or
// the word inf. Then burst, depth, wait, slack and inflight may follow in any order, each at most once; one that is
// left out is 0, so without depth no request waits. The last form above means burst 10, and nothing may follow it.
// Numbers may have decimals, but neither sign nor exponent, and are read exactly: 20/min is the rate.Limit nearest
// to a third. Units are ns, us, ms, s, sec, min, h, hour, d and day. For any other text, and for Limits that
// [Limits.Validate] rejects, the error is a [*ParseError].
func ParseLimits(text string) (Limits, error) {
	l, s := Limits{}, scanner{text: text}
	if len(text) > maxText {
		s.fail(maxText, fmt.Sprintf("expected at most %d bytes", maxText))
		return Limits{}, s.mistake
	}
	at := map[string]int{} // offset of the value of each name
	first := s.next()
	if before, _, _ := strings.Cut(first.text, ","); before == "inf" || strings.Contains(before, "/") {
		s.refuseComma(first)
	}
	burst, seed := strings.CutSuffix(first.text, ",")
	if seed {
		s.field, at["burst"] = "burst", first.at
		l.Burst = s.integer(word{burst, first.at})
		s.field = ""
		first = s.next()
	}
	l.Rate = s.rate(first)
	for name := s.nextPlain(); name.text != "" && s.mistake == nil; name = s.nextPlain() {
		if seed {
			s.fail(name.at, `expected nothing after the form "10, 1/s"`)
		}
		if _, twice := at[name.text]; twice {
			s.fail(name.at, "expected "+name.text+" only once")
		}
		if !slices.Contains(optional, name.text) {
			s.fail(name.at, "expected burst, depth, wait, slack or inflight")
		}
		s.field = name.text
		value := s.nextPlain()
		at[name.text] = value.at
		switch name.text {
		case "burst":
			l.Burst = s.integer(value)
		case "depth":
			l.Depth = s.integer(value)
		case "wait":
			l.MaxWait = s.duration(value)
		case "slack":
			l.Slack = s.duration(value)
		case "inflight":
			l.InFlight = s.integer(value)
		}
		s.field = ""
	}
	if s.window.in > 0 && s.mistake == nil {
		s.promise(&l, seed, first.at, at["burst"])
	}
	if err := l.Validate(); err != nil {
		// No number is negative here, so the rate or the burst is invalid.
		offender := at["burst"]
		s.field = "burst"
		if (Limits{Rate: l.Rate}).Validate() != nil {
			offender, s.field = first.at, "rate"
		}
		s.fail(offender, strings.TrimPrefix(err.Error(), "shaper: "))
	}
	if s.mistake != nil {
		return Limits{}, s.mistake
	}
	return l, nil
}

// A ParseError is a mistake in the text form of [Limits]. [ParseLimits] and
// [Limits.UnmarshalText] return it.
type ParseError struct {
	Text   string // all of the text
	Column int    // the byte in Text at which the mistake begins, from 1; len(Text)+1 if something is missing at the end
	Field  string // whose value is wrong: rate, burst, depth, wait, slack or inflight; "" for a mistake elsewhere
	Reason string // such as "expected a unit: ns us ms s sec min h hour d day"
}

// Error returns the reason, the column and the text. It quotes at most the first 60 bytes
// of the text.
func (e *ParseError) Error() string {
	quote, more := e.Text, ""
	if end := maxQuote; len(quote) > end {
		for end > maxQuote-utf8.UTFMax && !utf8.RuneStart(quote[end]) {
			end-- // do not cut a character in two
		}
		quote, more = quote[:end], "…"
	}
	return fmt.Sprintf("shaper: limits %q%s, column %d: %s", quote, more, e.Column, e.Reason)
}

// String returns the text form of l, with the rate, the depth and every other field that is not 0. [ParseLimits]
// reads it as exactly l if l is valid.
func (l Limits) String() string {
	text := rateText(l.Rate)
	if l.Burst != 0 {
		text += " burst " + strconv.Itoa(l.Burst)
	}
	text += " depth " + strconv.Itoa(l.Depth)
	if l.MaxWait != 0 {
		text += " wait " + durationText(l.MaxWait)
	}
	if l.Slack != 0 {
		text += " slack " + durationText(l.Slack)
	}
	if l.InFlight != 0 {
		text += " inflight " + strconv.Itoa(l.InFlight)
	}
	return text
}

// MarshalText returns the text form of l, or the error of [Limits.Validate].
func (l Limits) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText sets l to the result of [ParseLimits], unless that is an error.
func (l *Limits) UnmarshalText(text []byte) error {
	parsed, err := ParseLimits(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

// rateText returns the text form of a rate. A whole number per second is written as
// such: 50/s. For any other rate, rateText returns the form with the fewest digits that
// [ParseLimits] reads as exactly r: 20/min.
func rateText(r rate.Limit) string {
	if r == rate.Inf {
		return "inf"
	}
	if (Limits{Rate: r}).Validate() != nil { // it may have 300 digits, or be NaN
		return strconv.FormatFloat(float64(r), 'g', -1, 64) + "/s"
	}
	best := strconv.FormatFloat(float64(r), 'f', -1, 64) + "/s" // always exact
	if float64(r) == math.Trunc(float64(r)) {
		return best
	}
	interval := exact.IntervalOf(r).Rat() // the exact interval of the schedule
	for _, form := range []string{
		fmt.Sprintf("%.0f/min", float64(r)*60),
		fmt.Sprintf("%.0f/h", float64(r)*60*60),
		fmt.Sprintf("%v per %s", interval.Denom(), durationText(time.Duration(interval.Num().Int64()))),
		fmt.Sprintf("%.0f/d", float64(r)*60*60*24),
	} {
		// A form that was rounded, or whose duration is too long for an int64, is read
		// as another rate.
		if digits(form) < digits(best) {
			if l, err := ParseLimits(form); err == nil && l.Rate == r {
				best = form
			}
		}
	}
	return best
}

// digits returns how many bytes of text are part of a number.
func digits(text string) (n int) {
	for _, c := range numeric {
		n += strings.Count(text, string(c))
	}
	return n
}

// durationText returns d in the longest unit that divides it: 2min, 90s, 1500ms.
func durationText(d time.Duration) string {
	i := 0
	for d%units[i].length != 0 { // The last unit, 1ns, divides every duration.
		i++
	}
	return strconv.FormatInt(int64(d/units[i].length), 10) + units[i].name
}

// A word is a part of the text, and the offset at which it begins.
type word struct {
	text string
	at   int
}

// A scanner reads a text word by word. It keeps its first mistake; the results of its
// methods after that have no meaning.
type scanner struct {
	text    string
	at      int    // offset of the first byte that has not been read
	field   string // whose value is being read; "" between values
	window  window
	mistake *ParseError
}

// A window is what a rate such as 100 in 1min promises.
type window struct {
	n      int
	length time.Duration
	in     int // offset of the word in; 0: the rate has no window
}

// fail records a mistake at an offset, if it is the first.
func (s *scanner) fail(at int, reason string) {
	if s.mistake == nil {
		s.mistake = &ParseError{Text: s.text, Column: at + 1, Field: s.field, Reason: reason}
	}
}

// next returns the next word, which is empty at the end of the text.
func (s *scanner) next() word {
	rest := strings.TrimLeft(s.text[s.at:], blanks)
	at := len(s.text) - len(rest)
	if at > s.at && (s.at == 0 || rest == "") {
		s.fail(s.at, "expected no blank at either end")
	}
	end := strings.IndexAny(rest, blanks)
	if end < 0 {
		end = len(rest)
	}
	s.at = at + end
	return word{rest[:end], at}
}

// nextPlain returns the next word, which must not have a comma.
func (s *scanner) nextPlain() word {
	w := s.next()
	s.refuseComma(w)
	return w
}

// refuseComma fails at the comma in a word, if there is one.
func (s *scanner) refuseComma(w word) {
	if i := strings.IndexByte(w.text, ','); i >= 0 {
		s.fail(w.at+i, `expected no comma: a blank is enough between words, and only the form "10, 1/s" has a comma`)
	}
}

// rate returns the rate whose first word is w.
func (s *scanner) rate(w word) rate.Limit {
	s.field = "rate"
	defer func() { s.field = "" }()
	if w.text == "inf" {
		return rate.Inf
	}
	number, unit, slash := strings.Cut(w.text, "/")
	count := s.number(word{number, w.at}, "expected a rate such as 50/s, 1 per 2s or inf")
	var period time.Duration
	if slash {
		unit := word{unit, w.at + len(number) + 1}
		if durationMeant(unit.text) != "" {
			s.fail(unit.at, expectedUnit+"; write "+rateMeant(number, unit.text))
		}
		period = s.unit(unit)
	} else {
		per := s.next()
		switch per.text {
		case "per":
		case "in":
			s.window.in, s.window.n = per.at, s.integer(w)
		default:
			reason := "expected / and a unit, or per and a duration"
			if after, ok := strings.CutPrefix(per.text, "/"); ok {
				if after == "" {
					after = (&scanner{text: s.text, at: s.at}).next().text
				}
				if meant := rateMeant(number, after); meant != "" {
					reason += "; write " + meant
				}
			}
			s.fail(per.at, reason)
		}
		w = s.nextPlain()
		if unit := unitMeant(w.text); unit != "" {
			meant := number + "/" + unit
			if per.text == "in" {
				meant = number + " in 1" + unit
			}
			s.fail(w.at, expectedDuration+"; write "+meant)
		}
		period = s.duration(w)
		s.window.length = period
	}
	if period == 0 {
		s.fail(w.at, "expected a duration above 0 in Limits.Rate")
		return 0
	}
	perSecond, _ := count.Mul(count, big.NewRat(int64(time.Second), int64(period))).Float64()
	if rate.Limit(perSecond) == rate.Inf {
		// rate.Inf is the largest float64. Only the word inf may mean "no limit", so
		// a number of that size becomes the real infinity, which Validate rejects.
		perSecond = math.Inf(1)
	}
	return rate.Limit(perSecond)
}

// promise sets the rate of l, and its slack, to those with which the window of the text holds.
func (s *scanner) promise(l *Limits, seed bool, rateAt, burstAt int) {
	l.Slack = time.Duration(l.slack())
	n, length := s.window.n, s.window.length
	s.field = "rate"
	switch {
	case seed:
		s.fail(s.window.in, fmt.Sprintf(`expected no window in the form "10, 1/s": write %d in %s burst %d`, n, durationText(length), l.Burst))
	case n < 2:
		reason := "expected a number of at least 2 before in"
		if spaced := oneAfter(length, l.Slack); n == 1 && spaced > 0 {
			reason += ": write 1 per " + durationText(spaced)
		}
		s.fail(rateAt, reason)
	case l.Burst >= n:
		s.field = "burst"
		s.fail(burstAt, fmt.Sprintf("expected a burst below %d, which is how many may leave in %s", n, durationText(length)))
	default:
		l.Rate = l.rateIn(n, length)
	}
}

// oneAfter returns an interval at which one unit leaves in any window at most: the first whole second, or of
// a short window the first whole millisecond, above the window and the slack. It is 0 if that is too long.
func oneAfter(length, slack time.Duration) time.Duration {
	step := time.Second
	if length < step {
		step = time.Millisecond
	}
	if length > horizon || slack > horizon {
		return 0
	}
	if spaced := (length+slack)/step*step + step; spaced <= horizon {
		return spaced
	}
	return 0
}

// duration returns the duration that w says, as a number and a unit.
func (s *scanner) duration(w word) time.Duration {
	unit := strings.TrimLeft(w.text, numeric)
	end := len(w.text) - len(unit)
	ns := s.number(word{w.text[:end], w.at}, expectedDuration)
	if unitMeant(unit) == "" && durationMeant(w.text) != "" {
		s.fail(w.at+end, expectedUnit+"; write "+durationMeant(w.text))
	}
	ns.Mul(ns, big.NewRat(int64(s.unit(word{unit, w.at + end})), 1))
	if !ns.IsInt() || !ns.Num().IsInt64() {
		s.fail(w.at, "expected whole nanoseconds, at most 292 years of them")
	}
	return time.Duration(ns.Num().Int64())
}

// unit returns the length of the unit of time that w names.
func (s *scanner) unit(w word) time.Duration {
	for _, unit := range units {
		if unit.name == w.text {
			return unit.length
		}
	}
	reason := expectedUnit
	if hint := unitHints[w.text]; hint != "" {
		reason += "; write " + hint
	}
	s.fail(w.at, reason)
	return 0
}

// unitHints are the units that other names of them are likely to mean.
var unitHints = map[string]string{
	"second": "s or sec", "seconds": "s or sec", "secs": "s or sec", "S": "s",
	"m": "min", "minute": "min", "minutes": "min", "mins": "min",
	"hours": "h or hour", "hr": "h or hour", "hrs": "h or hour", "days": "d or day",
	"msec": "ms", "millisecond": "ms", "milliseconds": "ms", "µs": "us", "μs": "us", "usec": "us", "microsecond": "us", "microseconds": "us",
	"nsec": "ns", "nanosecond": "ns", "nanoseconds": "ns",
}

// unitMeant returns the unit that text names, or is likely to mean; "" if it means none.
func unitMeant(text string) string {
	for _, unit := range units {
		if unit.name == text {
			return text
		}
	}
	first, _, _ := strings.Cut(unitHints[text], " ")
	return first
}

// durationMeant returns the duration that text is likely to mean; "" if it means none.
func durationMeant(text string) string {
	unit := strings.TrimLeft(text, numeric)
	if number := text[:len(text)-len(unit)]; isNumber(number) && unitMeant(unit) != "" {
		return number + unitMeant(unit)
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return durationText(d) // Go writes 1m30s.
	}
	return ""
}

// rateMeant returns the rate that a number, a slash and the text after it are likely to mean; "" if they mean none.
func rateMeant(number, after string) string {
	if unit := unitMeant(after); unit != "" {
		return number + "/" + unit
	}
	if duration := durationMeant(after); duration != "" {
		return number + " per " + duration
	}
	return ""
}

// integer returns the whole number that w says.
func (s *scanner) integer(w word) int {
	n, err := strconv.ParseUint(w.text, 10, strconv.IntSize-1) // it accepts no sign
	if err != nil {
		s.fail(w.at, fmt.Sprintf("expected a whole number up to %d", math.MaxInt))
	}
	return int(n)
}

// number returns the number that w says, in digits with or without decimals. It checks
// every byte first, because [big.Rat] accepts exponents, fractions and underscores too.
func (s *scanner) number(w word, expected string) *big.Rat {
	if !isNumber(w.text) {
		s.fail(w.at, expected)
		return new(big.Rat)
	}
	n, _ := new(big.Rat).SetString(w.text)
	return n
}

// isNumber reports whether text is digits with or without decimals.
func isNumber(text string) bool {
	whole, decimals, point := strings.Cut(text, ".")
	return whole != "" && (!point || decimals != "") && strings.Trim(whole+decimals, "0123456789") == ""
}

// Window returns [Limits] with which at most n cost units leave in any window of length w, both ends included,
// however requests arrive, for an upstream that counts a rolling minute:
//
//	l, err := shaper.Window(100, time.Minute, 20) // 20 at once after a pause, 100 in any minute
//	l.Depth = 50
//
// Burst is burst, where 0 means 1, Rate is (n − burst)/(w + Slack), and Slack is [DefaultSlack]; with others the
// promise is not kept. Depth, MaxWait and InFlight are 0, and may be set. A cost above burst takes its place. What
// left under other Limits, or before a restart without [Shaper.Restore], counts in no window, and what a settle
// charges comes on top. For an upstream that counts arrivals make w longer by as much as the way there varies.
//
// n must be at least 2 (for one in w take rate.Every(w + time.Second) and no burst), burst below n, and w above 0.
// The error names the argument.
func Window(n int, w time.Duration, burst int) (Limits, error) {
	l := Limits{Burst: burst, Slack: DefaultSlack}
	var err error
	switch {
	case n < 2:
		err = fmt.Errorf("n is %d, must be at least 2", n)
	case w <= 0:
		err = fmt.Errorf("w is %v, must be above 0", w)
	case burst < 0:
		err = fmt.Errorf("burst is %d, must not be negative", burst)
	case burst >= n:
		err = fmt.Errorf("burst is %d, must be below n, which is %d", burst, n)
	default:
		l.Rate = l.rateIn(n, w)
		if wrong := l.Validate(); wrong != nil {
			why := strings.TrimPrefix(wrong.Error(), "shaper: ")
			switch {
			case l.Rate > maxRate:
				err = fmt.Errorf("n is %d, too many for w: %s", n, why)
			case (Limits{Rate: l.Rate}).Validate() != nil:
				err = fmt.Errorf("w is %v, too long for n: %s", w, why)
			default:
				err = fmt.Errorf("burst is %d, too much for n and w: %s", burst, why)
			}
		}
	}
	if err != nil {
		return Limits{}, fmt.Errorf("shaper: Window: %w", err)
	}
	return l, nil
}

// rateIn returns the rate at which n units leave in a window of w at most, with the Burst and Slack of l.
func (l Limits) rateIn(n int, w time.Duration) rate.Limit {
	paced := int64(n) - l.burst()
	// A rate is read to one part in 2⁵⁰, which of so many units could be one too many.
	paced -= paced >> 48
	ns := new(big.Int).SetUint64(uint64(w) + uint64(l.slack())) // An int64 may be too short for the sum.
	perSecond, _ := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(paced), big.NewInt(int64(time.Second))), ns).Float64()
	return rate.Limit(perSecond)
}
