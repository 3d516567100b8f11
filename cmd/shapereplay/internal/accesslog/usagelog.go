package accesslog

import (
	"math"
	"time"

	"github.com/valyala/fastjson"

	"example.com/leakybucket/llm"
)

// A Call is what a line of the format [Usage] tells of a call of a language model, beside what any
// [Record] has.
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
	parser fastjson.Parser
	number []byte // what a number looks like in the line
}

func newUsageLog(_ Options, t *texts) (parser, error) { return &usageLog{teams: t.values}, nil }

// subtracts reports true, as lines come in the order of the ends of calls.
func (u *usageLog) subtracts() bool { return true }

func (u *usageLog) parse(line []byte, e *entry) Reason {
	v, err := u.parser.ParseBytes(line)
	if err != nil || v.Type() != fastjson.TypeObject {
		return NotFormat
	}
	at, ok := parseDate(v.GetStringBytes("time"))
	if !ok {
		return NoTime
	}
	c := &Call{Team: u.teams.of(v.GetStringBytes("team"))}
	if c.Estimate, ok = u.usage(v.Get("estimate")); !ok {
		return NoEstimate
	}
	if actual := v.Get("actual"); actual != nil && actual.Type() != fastjson.TypeNull {
		if c.Actual, c.Known = u.usage(actual); !c.Known {
			return BadActual
		}
	}
	status := v.Get("status")
	if status == nil || !e.setStatus(u.text(status)) || e.Status < 100 {
		return BadStatus
	}
	var ok1, ok2 bool
	c.Waited, ok1 = u.seconds(v.Get("waited"))
	c.Took, ok2 = u.seconds(v.Get("duration"))
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
func (u *usageLog) usage(v *fastjson.Value) (usage llm.Usage, ok bool) {
	if v == nil || v.Type() != fastjson.TypeObject || !v.Exists("input") {
		return usage, false
	}
	for _, field := range [...]struct {
		name string
		to   *int
	}{{"input", &usage.Input}, {"output", &usage.Output}, {"cache_read", &usage.CacheRead}, {"cache_write", &usage.CacheWrite}} {
		if !v.Exists(field.name) {
			continue
		}
		n, err := v.Get(field.name).Int()
		if err != nil || n < 0 {
			return llm.Usage{}, false
		}
		*field.to = n
	}
	return usage, true
}

// seconds returns a number of seconds.
func (u *usageLog) seconds(v *fastjson.Value) (time.Duration, bool) {
	if v == nil {
		return 0, false
	}
	d, ok := parseDecimal(u.text(v))
	if !ok {
		return 0, false
	}
	ns, ok := d.times(time.Second)
	return time.Duration(ns), ok
}

// text returns a number as it stands in the line, nil if it is none. It is good until the next call.
func (u *usageLog) text(v *fastjson.Value) []byte {
	if v.Type() != fastjson.TypeNumber {
		return nil
	}
	u.number = v.MarshalTo(u.number[:0])
	return u.number
}
