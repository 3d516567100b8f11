package accesslog

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// An instant is the time that a line tells.
type instant struct {
	ns     int64 // since 1970
	coarse bool  // it is in whole seconds
}

// latest is the last second that nanoseconds since 1970 can count in 64 bits, which is in
// the year 2262.
const latest = math.MaxInt64 / int64(time.Second)

// instantOf returns the instant of a time, and reports whether it is one that a log may
// have.
func instantOf(t time.Time, coarse bool) (instant, bool) {
	if s := t.Unix(); s < 0 || s >= latest {
		return instant{}, false
	}
	return instant{t.UnixNano(), coarse}, true
}

// parseTime reads a time in any form that logs have.
func parseTime(text []byte) (instant, bool) {
	if len(text) < len("1/1/1970") {
		return instant{}, false
	}
	switch {
	case text[2] == '/':
		return parseCommonTime(text)
	case text[4] == '-' || text[4] == '/':
		return parseDate(text)
	}
	return parseEpoch(text)
}

const commonTime = "02/Jan/2006:15:04:05"

// parseCommonTime reads the time of the Common Log Format, which HAProxy writes with a
// fraction and without a zone, and Python's http.server without a zone and with a blank before the hour.
func parseCommonTime(text []byte) (instant, bool) {
	plain, layout, leap := string(text), commonTime, time.Duration(0)
	if date := len("02/Jan/2006"); len(plain) == len(commonTime) && plain[date] == ' ' {
		plain = plain[:date] + ":" + plain[date+1:]
	}
	if strings.Contains(plain, " ") {
		layout += " -0700"
	}
	const second = len(commonTime) - len("05")
	if len(plain) > second && strings.HasPrefix(plain[second:], "60") { // Parse knows no leap second.
		plain, leap = plain[:second]+"59"+plain[second+len("60"):], time.Second
	}
	t, err := time.Parse(layout, plain)
	if err != nil || plain[len("22/")] > 'Z' { // No server writes nov for Nov.
		return instant{}, false
	}
	return instantOf(t.Add(leap), !strings.Contains(plain, "."))
}

// dateLayouts are the forms of dates that logs have, beside RFC 3339: zap's "ISO 8601", Caddy's
// "wall", and the forms of many programs.
var dateLayouts = []string{
	"2006-01-02T15:04:05Z0700",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05 -0700",
	"2006-01-02 15:04:05",
	"2006-01-02T15:04:05",
	"2006/01/02 15:04:05",
}

// parseDate reads a time that begins with the year. One without a zone is in UTC.
func parseDate(text []byte) (instant, bool) {
	if len(text) < len("2006-01-02T15:04:05") {
		return instant{}, false
	}
	fraction := text[len("2006-01-02T15:04:05"):]
	coarse := len(fraction) == 0 || fraction[0] != '.' && fraction[0] != ','
	var t time.Time
	if err := t.UnmarshalText(text); err == nil { // RFC 3339
		return instantOf(t, coarse)
	}
	for _, layout := range dateLayouts {
		// Parse takes a fraction of a second also where the layout has none.
		if t, err := time.Parse(layout, string(text)); err == nil {
			return instantOf(t, coarse)
		}
	}
	return instant{}, false
}

// parseEpoch reads the time since 1970. Whether a number counts seconds, milliseconds,
// microseconds or nanoseconds is told by its size, which is right for every time from
// 1973 to 5138.
func parseEpoch(text []byte) (instant, bool) {
	d, ok := parseDecimal(text)
	if !ok {
		return instant{}, false
	}
	unit := time.Nanosecond
	switch {
	case d.whole < 1e11:
		unit = time.Second
	case d.whole < 1e14:
		unit = time.Millisecond
	case d.whole < 1e17:
		unit = time.Microsecond
	}
	ns, ok := d.times(unit)
	if !ok || ns/int64(time.Second) >= latest {
		return instant{}, false
	}
	return instant{ns, unit == time.Second && !d.hasFraction}, true
}

// parseDuration reads a duration: a number that counts units, or text with a unit of its
// own. A negative one, as of a clock that was set, is 0.
func parseDuration(text []byte, unit time.Duration) (time.Duration, bool) {
	text, negative := bytes.CutPrefix(text, []byte("-"))
	d, err := time.Duration(0), error(nil)
	if number, ok := parseDecimal(text); ok {
		ns, ok := number.times(unit)
		if !ok {
			return 0, false
		}
		d = time.Duration(ns)
	} else if d, err = time.ParseDuration(string(text)); err != nil {
		return 0, false
	}
	if negative {
		return 0, true
	}
	return max(d, 0), true
}

// A decimal is a number that is not negative, to nine digits after the point.
type decimal struct {
	whole       int64
	billionths  int64
	hasFraction bool
}

// parseDecimal reads a number exactly: a float64 would tell the nanoseconds of an instant
// to a few hundred only.
func parseDecimal(text []byte) (d decimal, ok bool) {
	i := 0
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		if d.whole > (math.MaxInt64-9)/10 {
			return d, false
		}
		d.whole = d.whole*10 + int64(text[i]-'0')
	}
	if i == 0 {
		return d, false
	}
	if i < len(text) && text[i] == '.' {
		d.hasFraction = true
		from := i + 1
		worth := int64(100_000_000)
		for i++; i < len(text) && text[i]-'0' <= 9; i++ {
			d.billionths += int64(text[i]-'0') * worth
			worth /= 10
		}
		if i == from {
			return d, false
		}
	}
	if i == len(text) {
		return d, true
	}
	if text[i] != 'e' && text[i] != 'E' {
		return d, false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f >= math.MaxInt64/2 {
		return d, false
	}
	whole, fraction := math.Modf(f)
	return decimal{int64(whole), int64(fraction * 1e9), true}, true
}

// times returns the nanoseconds of as many units, and reports whether they can be
// counted.
func (d decimal) times(unit time.Duration) (ns int64, ok bool) {
	if d.whole > math.MaxInt64/int64(unit)-1 {
		return 0, false
	}
	return d.whole*int64(unit) + d.billionths*int64(unit)/1_000_000_000, true
}
