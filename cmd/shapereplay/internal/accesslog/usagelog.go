package accesslog

import (
	"math"
	"strconv"
	"time"

	"github.com/valyala/fastjson"

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
	return &usageLog{teams: t.values}, nil
}

// value returns a value of the line, nil if it is not there.
func (u *usageLog) value(path ...string) *fastjson.Value { return u.fields.line.Get(path...) }

// subtracts reports true, as lines come in the order of the ends of calls.
func (u *usageLog) subtracts() bool { return true }

func (u *usageLog) parse(line []byte, e *entry) Reason {
	if !u.fields.read(line) {
		return NotFormat
	}
	at, ok := parseDate(u.value("time").GetStringBytes())
	if !ok {
		return NoTime
	}
	c := &Call{Team: u.teams.of(u.value("team").GetStringBytes())}
	if c.Estimate, ok = u.usage("estimate"); !ok {
		return NoEstimate
	}
	if actual := u.value("actual"); actual != nil && actual.Type() != fastjson.TypeNull {
		if c.Actual, c.Known = u.usage("actual"); !c.Known {
			return BadActual
		}
	}
	if !e.setStatus(u.fields.digits(u.value("status"))) || e.Status < 100 {
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
		v := u.value(of, field.name)
		if v == nil {
			continue
		}
		n, err := strconv.Atoi(string(u.fields.digits(v)))
		if err != nil || n < 0 {
			return llm.Usage{}, false
		}
		*field.to = n
	}
	return usage, true
}

// seconds returns a number of seconds.
func (u *usageLog) seconds(name string) (time.Duration, bool) {
	d, ok := parseDecimal(u.fields.digits(u.value(name)))
	if !ok {
		return 0, false
	}
	ns, ok := d.times(time.Second)
	return time.Duration(ns), ok
}
