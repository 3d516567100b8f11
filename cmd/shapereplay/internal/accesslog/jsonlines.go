package accesslog

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/valyala/fastjson"
)

// jsonLines reads formats with one JSON object on each line, which differ in the names of
// the fields.
type jsonLines struct {
	texts  *texts
	names  fieldNames
	header [][]path // where the header fields are that are wanted

	parser fastjson.Parser
	wasBig bool   // the parser holds more memory than lines usually need
	number []byte // what a number looks like in the line
}

const usualLine = 64 << 10 // bytes; few are longer

// A path leads to a field, through objects.
type path struct {
	steps []string
	whole string // with dots between, if an object may have that as a name; else ""
}

// nested returns a path whose dots lead into objects.
func nested(text string) path { return path{steps: strings.Split(text, ".")} }

// dotted returns a path whose dots lead into objects or belong to a name.
func dotted(text string) path {
	p := nested(text)
	if len(p.steps) > 1 {
		p.whole = text
	}
	return p
}

// find returns the value at the path, nil if there is none.
func (p *path) find(v *fastjson.Value) *fastjson.Value {
	if p.whole != "" {
		if found := v.Get(p.whole); found != nil {
			return found
		}
	}
	return v.Get(p.steps...)
}

// find returns the value of the first of the paths that leads to something other than
// null or an object, nil if there is none.
func find(v *fastjson.Value, paths []path) *fastjson.Value {
	for i := range paths {
		found := paths[i].find(v)
		if found != nil && found.Type() != fastjson.TypeNull && found.Type() != fastjson.TypeObject {
			return found
		}
	}
	return nil
}

func newJSONLines(o Options, names fieldNames, t *texts) *jsonLines {
	j := &jsonLines{texts: t, names: names}
	for i := range j.names.times {
		if o.Stamp != "" {
			j.names.times[i].stamp = o.Stamp
		}
	}
	for _, name := range o.Header {
		j.header = append(j.header, names.header(http.CanonicalHeaderKey(name)))
	}
	return j
}

func (j *jsonLines) subtracts() bool {
	for _, t := range j.names.times {
		if t.stamp == End {
			return true
		}
	}
	return false
}

func (j *jsonLines) parse(line []byte, e *entry) Reason {
	if j.wasBig {
		j.parser = fastjson.Parser{}
	}
	j.wasBig = len(line) > usualLine
	v, err := j.parser.ParseBytes(line)
	if err != nil || v.Type() != fastjson.TypeObject {
		return NotFormat
	}
	if reason := j.setRequest(v, e); reason != "" {
		return reason
	}
	if !j.setStamp(v, e) {
		return NoTime
	}
	if status := find(v, j.names.status); status != nil && !e.setStatus(j.text(status)) {
		return BadStatus
	}
	if elapsed := find(v, j.names.duration); elapsed != nil {
		e.setDuration(j.text(elapsed), j.names.unit)
	}
	if len(j.header) > 0 {
		e.Header = make([]string, len(j.header))
		for i, paths := range j.header {
			if value := find(v, paths); value != nil {
				e.Header[i] = j.headerValue(value, e)
			}
		}
	}
	return ""
}

// setRequest takes the method, the host, the path and the client.
func (j *jsonLines) setRequest(v *fastjson.Value, e *entry) Reason {
	uri := find(v, j.names.uri)
	if uri == nil {
		return NoRequest
	}
	text := j.text(uri)
	switch method := find(v, j.names.method); {
	case bytes.IndexByte(text, ' ') > 0 && text[0] != '/':
		if !e.setRequestLine(text, j.texts) {
			return NoRequest
		}
	case method == nil || !e.setMethod(method.GetStringBytes(), j.texts) || !e.setURI(text, j.texts):
		return NoRequest
	}
	if host := find(v, j.names.host); host != nil {
		if text := host.GetStringBytes(); len(text) > 0 && !isDash(text) {
			e.Host = j.texts.hosts.of(text)
		}
	}
	if client := find(v, j.names.client); client != nil {
		if text := client.GetStringBytes(); len(text) > 0 {
			e.setClient(text, j.texts)
		}
	}
	return ""
}

// setStamp takes the time, and reports whether there is one.
func (j *jsonLines) setStamp(v *fastjson.Value, e *entry) (ok bool) {
	for i := range j.names.times {
		t := &j.names.times[i]
		value := t.path.find(v)
		if value == nil {
			continue
		}
		if e.stamp, ok = parseTime(j.text(value)); ok {
			e.isEnd = t.stamp == End
			return true
		}
	}
	return false
}

// headerValue returns the value of a header field: text, or a list of its lines. What
// comes in several lines counts as not told, as in package shaper.
func (j *jsonLines) headerValue(v *fastjson.Value, e *entry) string {
	if v.Type() == fastjson.TypeArray {
		lines := v.GetArray()
		if len(lines) != 1 {
			return ""
		}
		v = lines[0]
	}
	return e.headerValue(j.text(v), j.texts)
}

// text returns a text, or a number as it stands in the line. They are good until the next
// call.
func (j *jsonLines) text(v *fastjson.Value) []byte {
	switch v.Type() {
	case fastjson.TypeString:
		return v.GetStringBytes()
	case fastjson.TypeNumber:
		j.number = v.MarshalTo(j.number[:0])
		return j.number
	}
	return nil
}

// fieldNames say where the fields are. Of several paths the first counts that leads to
// something.
type fieldNames struct {
	times                             []timeName
	method, uri, host, client, status []path
	duration                          []path
	unit                              time.Duration            // of durations that are numbers
	header                            func(name string) []path // for the name of a header field as net/http writes it
}

type timeName struct {
	path  path
	stamp Stamp
}

func paths(names ...string) (all []path) {
	for _, name := range names {
		all = append(all, nested(name))
	}
	return all
}

// orElse returns the path that a user has named, or else the usual ones.
func orElse(named string, usual ...string) (all []path) {
	if named != "" {
		usual = []string{named}
	}
	for _, name := range usual {
		all = append(all, dotted(name))
	}
	return all
}

// caddyNames are the fields of Caddy's access log. It tells the client as client_ip since
// version 2.7, before as remote_ip, and before 2.5 as remote_addr.
func caddyNames() fieldNames {
	return fieldNames{
		times:    []timeName{{nested("ts"), End}},
		method:   paths("request.method"),
		uri:      paths("request.uri"),
		host:     paths("request.host"),
		client:   paths("request.client_ip", "request.remote_ip", "request.remote_addr"),
		status:   paths("status"),
		duration: paths("duration"),
		unit:     time.Second,
		header: func(name string) []path {
			return []path{{steps: []string{"request", "headers", name}}}
		},
	}
}

// traefikNames are the fields of Traefik's access log. StartUTC and StartLocal can be left
// out of it; "time" is when the line was written.
func traefikNames() fieldNames {
	return fieldNames{
		times:    []timeName{{nested("StartUTC"), Arrival}, {nested("StartLocal"), Arrival}, {nested("time"), End}},
		method:   paths("RequestMethod"),
		uri:      paths("RequestPath"),
		host:     paths("RequestHost", "RequestAddr"),
		client:   paths("ClientHost", "ClientAddr"),
		status:   paths("DownstreamStatus", "OriginStatus"),
		duration: paths("Duration"),
		unit:     time.Nanosecond,
		header: func(name string) []path {
			return []path{{steps: []string{"request_" + name}}}
		},
	}
}

// jsonNames are the fields of other logs: those that the user has named, and for the
// others the names that nginx's variables, the Elastic Common Schema and loggers for Go,
// Node and Python give them.
func jsonNames(f Fields) fieldNames {
	names := fieldNames{
		method: orElse(f.Method, "method", "request_method", "http_method", "verb", "http.request.method", "request.method", "req.method"),
		uri: orElse(f.URI, "uri", "request_uri", "path", "url", "url.original", "url.path", "request.uri", "request.url", "req.url",
			"request_path", "request"),
		host: orElse(f.Host, "host", "http_host", "server_name", "url.domain", "request.host", "req.headers.host", "vhost"),
		client: orElse(f.Client, "client_ip", "clientip", "remote_addr", "remote_ip", "client", "ip", "client.ip", "source.ip",
			"request.client_ip", "request.remote_ip", "req.remoteAddress"),
		status:   orElse(f.Status, "status", "status_code", "response_code", "http.response.status_code", "response.status", "res.statusCode"),
		duration: orElse(f.Duration, "request_time"),
		unit:     f.DurationUnit,
		header: func(name string) []path {
			for named, field := range f.Header {
				if strings.EqualFold(named, name) {
					return orElse(field)
				}
			}
			lower := strings.ToLower(name)
			plain := strings.ReplaceAll(lower, "-", "_")
			all := []path{{steps: []string{"http_" + plain}}, {steps: []string{plain}}}
			for _, object := range []string{"headers", "request.headers", "req.headers"} {
				for _, key := range []string{name, lower} {
					all = append(all, path{steps: append(strings.Split(object, "."), key)})
				}
			}
			return all
		},
	}
	for _, p := range orElse(f.Time, "time", "ts", "timestamp", "@timestamp", "time_iso8601", "msec", "time_local", "date", "start_time") {
		stamp := End
		if f.Time == "" && p.steps[0] == "start_time" {
			stamp = Arrival
		}
		names.times = append(names.times, timeName{p, stamp})
	}
	return names
}
