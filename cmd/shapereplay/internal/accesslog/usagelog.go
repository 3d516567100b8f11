package accesslog

import (
	"math"
	"strconv"
	"time"

	"example.com/leakybucket/llm"
)

// A Call is a call of a language model, by a line of the format [Usage]: its parts beside a
// [Record]'s.
type Call struct {
	Team     string
	Estimate llm.Usage
	Actual   llm.Usage
	Known    bool          // Actual was reported
	Waited   time.Duration // in line
	Took     time.Duration // from leaving the line to the end of the answer
}

// usageLog reads the usage log of a gateway: one JSON object for each call, written when the call
// has ended.
type usageLog struct {
	teams  *interner
	fields fields
}

func newUsageLog(_ Options, t *texts) (parser, error) {
	u := &usageLog{teams: t.values}
	u.fields.places(false, "time", "team", "status", "waited", "duration", "actual")
	for _, of := range []string{"estimate", "actual"} {
		u.fields.places(false, of+".input", of+".output", of+".cache_read", of+".cache_write")
	}
	return u, nil
}

// value returns a value as it stands in the line, nil if it is not there.
func (u *usageLog) value(path ...string) []byte { return u.fields.values[u.fields.want(path...)] }

// subtracts reports true, as lines come in the order of the ends of calls.
func (u *usageLog) subtracts() bool { return true }

func (u *usageLog) parse(line []byte, e *entry) Reason {
	if !u.fields.read(line) {
		return NotFormat
	}
	at, ok := parseDate(u.fields.quoted(u.value("time")))
	if !ok {
		return NoTime
	}
	c := &Call{Team: u.teams.of(u.fields.quoted(u.value("team")))}
	if c.Estimate, ok = u.usage("estimate"); !ok {
		return NoEstimate
	}
	if actual := u.value("actual"); actual != nil && string(actual) != "null" {
		if c.Actual, c.Known = u.usage("actual"); !c.Known {
			return BadActual
		}
	}
	if !e.setStatus(u.value("status")) || e.Status < 100 {
		return BadStatus
	}
	var ok1, ok2 bool
	c.Waited, ok1 = u.seconds("waited")
	c.Took, ok2 = u.seconds("duration")
	e.Duration = c.Waited + c.Took
	if !ok1 || !ok2 || e.Duration < 0 || e.Duration > math.MaxInt64-time.Duration(at.ns) {
		return BadSpan
	}
	at.ns += int64(e.Duration)
	at.coarse = false
	e.stamp, e.isEnd, e.timed, e.Call = at, true, true, c
	return ""
}

// usage returns numbers of tokens. Those that are missing are 0, but input must be there.
func (u *usageLog) usage(of string) (usage llm.Usage, ok bool) {
	if u.value(of, "input") == nil {
		return usage, false
	}
	for _, field := range [...]struct {
		name string
		to   *int
	}{{"input", &usage.Input}, {"output", &usage.Output}, {"cache_read", &usage.CacheRead}, {"cache_write", &usage.CacheWrite}} {
		text := u.value(of, field.name)
		if text == nil {
			continue
		}
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			return llm.Usage{}, false
		}
		*field.to = n
	}
	return usage, true
}

// seconds returns a number of seconds.
func (u *usageLog) seconds(name string) (time.Duration, bool) {
	d, ok := parseDecimal(u.value(name))
	if !ok {
		return 0, false
	}
	ns, ok := d.times(time.Second)
	return time.Duration(ns), ok
}
