package accesslog

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fastjson"

	"example.com/leakybucket/llm"
)

// jsonLines reads formats with one JSON object on each line, which differ in the names of
// the fields. Of several places of a part the first counts that is not empty.
type jsonLines struct {
	texts  *texts
	fields fields

	times                                   []timePlace
	method, uri, host, client, status, took []int
	lines                                   []int         // places of the first line of a request
	unit                                    time.Duration // of durations that are numbers
	header                                  [][]int       // of the header fields that are wanted
}

// A timePlace is the place of a time, and its meaning.
type timePlace struct {
	place int
	stamp Stamp
}

func newJSONLines(o Options, format jsonFormat, t *texts) *jsonLines {
	j := &jsonLines{texts: t}
	named := func(part string) []string {
		if given := o.Fields[part]; given != "" {
			return []string{given}
		}
		return format.names[part]
	}
	for _, name := range named("time") {
		name, isArrival := strings.CutSuffix(name, " arrival")
		stamp := End
		if isArrival {
			stamp = Arrival
		}
		for _, place := range j.fields.places(format.flat, name) {
			j.times = append(j.times, timePlace{place, cmp.Or(o.Stamp, stamp)})
		}
	}
	for part, to := range map[string]*[]int{"method": &j.method, "uri": &j.uri, "host": &j.host, "client": &j.client, "status": &j.status, "duration": &j.took} {
		*to = j.fields.places(format.flat, named(part)...)
	}
	j.lines = j.fields.places(format.flat, format.names["line"]...)
	j.unit = units[strings.Join(named("unit"), "")]
	for _, name := range o.Header {
		j.header = append(j.header, j.headerPlaces(o, format, http.CanonicalHeaderKey(name)))
	}
	return j
}

// headerPlaces returns the places of a header field, whose name is as net/http writes it.
func (j *jsonLines) headerPlaces(o Options, format jsonFormat, name string) (places []int) {
	for part, field := range o.Fields {
		if strings.EqualFold(part, "header:"+name) {
			return j.fields.places(format.flat, field)
		}
	}
	lower := strings.ToLower(name)
	write := strings.NewReplacer("Some-Name", name, "some-name", lower, "some_name", strings.ReplaceAll(lower, "-", "_"))
	for _, usual := range format.names["header"] {
		path := strings.Split(usual, ".")
		path[len(path)-1] = write.Replace(path[len(path)-1]) // which may have dots
		places = append(places, j.fields.want(path...))
	}
	return places
}

func (j *jsonLines) subtracts() bool {
	return slices.ContainsFunc(j.times, func(t timePlace) bool { return t.stamp == End })
}

func (j *jsonLines) parse(line []byte, e *entry) Reason {
	if !j.fields.read(line) {
		return NotFormat
	}
	if reason := j.setRequest(e); reason != "" {
		return reason
	}
	if !j.setStamp(e) {
		return NoTime
	}
	if status := j.fields.find(j.status); status != nil && !e.setStatus(j.fields.text(status)) {
		return BadStatus
	}
	if took := j.fields.find(j.took); took != nil {
		e.setDuration(j.fields.text(took), j.unit)
	}
	if len(j.header) > 0 {
		e.Header = make([]string, len(j.header))
		for i, places := range j.header {
			if value := j.fields.find(places); value != nil {
				e.Header[i] = e.headerValue(j.fields.text(onlyElement(value)), j.texts)
			}
		}
	}
	return ""
}

// setRequest takes the method, the host, the path and the client.
func (j *jsonLines) setRequest(e *entry) Reason {
	uri := j.fields.find(j.uri)
	switch {
	case e.setLine(j.fields.text(uri), j.texts):
	case e.setMethod(j.fields.find(j.method).GetStringBytes(), j.texts) && e.setURI(j.fields.text(uri), j.texts):
	case slices.ContainsFunc(j.lines, func(place int) bool { return e.setLine(j.fields.at(place).GetStringBytes(), j.texts) }):
		// The method stands in the line, beside a field for the path, which counts if it is one.
		if beside := *e; beside.setURI(j.fields.text(uri), j.texts) {
			e.Host, e.Path = beside.Host, beside.Path
		}
	default:
		return NoRequest
	}
	if host := j.fields.find(j.host).GetStringBytes(); len(host) > 0 && !isDash(host) {
		e.Host = j.texts.hosts.of(host)
	}
	if client := joined(j.fields.find(j.client)); len(client) > 0 {
		e.setClient(client, j.texts)
	}
	return ""
}

// setStamp takes the time, and reports whether there is one.
func (j *jsonLines) setStamp(e *entry) (ok bool) {
	for _, t := range j.times {
		if e.stamp, ok = parseTime(j.fields.text(j.fields.at(t.place))); ok {
			e.isEnd = t.stamp == End
			return true
		}
	}
	return false
}

// Fields are the values of a JSON object that are wanted.
type fields struct {
	paths  [][]string // which lead to the values through objects, by their places
	line   *fastjson.Value
	parser fastjson.Parser
	number []byte
}

// want adds a path that leads to a value through objects, and returns the place of the value.
func (f *fields) want(path ...string) int {
	f.paths = append(f.paths, path)
	return len(f.paths) - 1
}

// read reads a line, and reports whether it is an object.
func (f *fields) read(line []byte) bool {
	var err error
	f.line, err = f.parser.ParseBytes(line)
	return err == nil && f.line.Type() == fastjson.TypeObject
}

// at returns the value at a place, nil if there is none. Of several with one name the first counts.
func (f *fields) at(place int) *fastjson.Value { return f.line.Get(f.paths[place]...) }

// find returns the value at the first of the places that has something other than null or an
// object, nil if there is none.
func (f *fields) find(places []int) *fastjson.Value {
	for _, place := range places {
		if v := f.at(place); v != nil && v.Type() != fastjson.TypeNull && v.Type() != fastjson.TypeObject {
			return v
		}
	}
	return nil
}

// onlyElement returns the element of a list that has one. A header field in several lines counts as
// missing, as in package shaper.
func onlyElement(v *fastjson.Value) *fastjson.Value {
	if v.Type() != fastjson.TypeArray {
		return v
	}
	if all := v.GetArray(); len(all) == 1 {
		return all[0]
	}
	return nil
}

// text returns the contents of a string, or a number as it stands in the line. It is good until the
// next call.
func (f *fields) text(v *fastjson.Value) []byte {
	if number := f.digits(v); number != nil {
		return number
	}
	return v.GetStringBytes()
}

// digits returns a number as it stands in the line, nil if the value is none. It is good until the next call.
func (f *fields) digits(v *fastjson.Value) []byte {
	if v == nil || v.Type() != fastjson.TypeNumber {
		return nil
	}
	f.number = v.MarshalTo(f.number[:0])
	return f.number
}

// joined returns the contents of a string, or the strings of a list with commas between them.
func joined(v *fastjson.Value) (all []byte) {
	if v == nil || v.Type() != fastjson.TypeArray {
		return v.GetStringBytes()
	}
	for _, one := range v.GetArray() {
		if len(all) > 0 {
			all = append(all, ',')
		}
		all = append(all, one.GetStringBytes()...)
	}
	return all
}

// places returns the places of names whose dots lead into objects, or also belong to the names.
func (f *fields) places(flat bool, names ...string) (places []int) {
	for _, name := range names {
		if flat && strings.Contains(name, ".") {
			places = append(places, f.want(name))
		}
		places = append(places, f.want(strings.Split(name, ".")...))
	}
	return places
}

// A jsonFormat has the names of the fields that have the parts of a request, as [Fields] calls these. A line is the first of a request.
// Dots lead into objects. A time is the end of the request unless the table says otherwise. Header fields are called Some-Name here.
type jsonFormat struct {
	names map[string][]string
	flat  bool // dots may belong to the names
}

// caddyFormat is Caddy's access log. It tells the client as client_ip since version 2.7, before
// as remote_ip, and before 2.5 as remote_addr.
var caddyFormat = jsonFormat{names: map[string][]string{
	"time":     {"ts"},
	"method":   {"request.method"},
	"uri":      {"request.uri"},
	"host":     {"request.host"},
	"client":   {"request.client_ip", "request.remote_ip", "request.remote_addr"},
	"status":   {"status"},
	"duration": {"duration"},
	"header":   {"request.headers.Some-Name"},
}}

// traefikFormat is Traefik's access log. StartUTC and StartLocal can be left out of it; "time"
// is when the line was written.
var traefikFormat = jsonFormat{names: map[string][]string{
	"time":     {"StartUTC arrival", "StartLocal arrival", "time"},
	"method":   {"RequestMethod"},
	"uri":      {"RequestPath"},
	"host":     {"RequestHost", "RequestAddr"},
	"client":   {"ClientHost", "ClientAddr"},
	"status":   {"DownstreamStatus", "OriginStatus"},
	"line":     {"RequestLine"},
	"duration": {"Duration"},
	"unit":     {"ns"},
	"header":   {"request_Some-Name"},
}}

// usualFormat has the names that nginx's variables, the Elastic Common Schema and loggers for Go,
// Node and Python give the fields.
var usualFormat = jsonFormat{flat: true, names: map[string][]string{
	"time":   {"time", "ts", "timestamp", "@timestamp", "time_iso8601", "msec", "time_local", "date", "start_time arrival"},
	"method": {"method", "request_method", "http_method", "verb", "http.request.method", "request.method", "req.method"},
	"uri": {
		"uri", "request_uri", "path", "url", "url.original", "url.path", "request.uri", "request.url", "req.url",
		"request_path", "request",
	},
	"line": {"request", "request_line"},
	"host": {"host", "http_host", "server_name", "url.domain", "request.host", "req.headers.host", "vhost"},
	"client": {
		"client_ip", "clientip", "remote_addr", "remote_ip", "client", "ip", "client.ip", "source.ip",
		"request.client_ip", "request.remote_ip", "req.remoteAddress",
	},
	"status":   {"status", "status_code", "response_code", "http.response.status_code", "response.status", "res.statusCode"},
	"duration": {"request_time"},
	"header": {
		"http_some_name", "some_name", "headers.Some-Name", "headers.some-name", "request.headers.Some-Name", "request.headers.some-name",
		"req.headers.Some-Name", "req.headers.some-name",
	},
}}

// Fields are the fields of JSON objects that have the parts of a request, by the names of the parts. A dot
// leads into an object: "request.method". A part that is not there is looked for under the names that are
// usual for it.
//
//	time         RFC 3339 or the like, or the time since 1970 in seconds, ms, µs or ns, which its size tells; as text or number
//	method
//	uri          the path with or without a query, a URL, or a request line ("GET / HTTP/1.1")
//	host
//	client       an address, with or without a port
//	status
//	duration     a number, or text like "1.5ms"
//	header:NAME  the header field NAME
//	unit         is no field: the unit of durations that are plain numbers, s (the default), ms, us or ns
type Fields map[string]string

// Add reads fields such as time=ts,uri=request.uri,unit=ms.
func (f *Fields) Add(text string) error {
	if *f == nil {
		*f = Fields{}
	}
	for pair := range strings.SplitSeq(text, ",") {
		part, field, ok := strings.Cut(pair, "=")
		if !ok || field == "" {
			return fmt.Errorf("%q must be a name and a field, such as time=ts", pair)
		}
		switch name, isHeader := strings.CutPrefix(part, "header:"); {
		case (*f)[part] != "":
			return fmt.Errorf("%q: %s is there twice", pair, part)
		case part == "unit" && units[field] == 0:
			return fmt.Errorf("%q: the units are s, ms, us and ns", pair)
		case isHeader && name != "":
		case !slices.Contains([]string{"time", "method", "uri", "host", "client", "status", "duration", "unit"}, part):
			return fmt.Errorf("%q: the names are time, method, uri, host, client, status, duration, header:NAME and unit", pair)
		}
		(*f)[part] = field
	}
	return nil
}

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
