package accesslog

import (
	"strings"
	"time"
)

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
