package accesslog

import (
	"bytes"
	"fmt"
	"regexp"
)

// A FormatError is a log in a format that is not read.
type FormatError struct {
	File   string // as it was given to Open
	Is     string // its name and a way to use it; "" if it is unknown
	Begins string // the first 120 characters of its first line; "" if they tell nothing
}

func (e *FormatError) Error() string {
	if e.Is != "" {
		return e.File + ": " + e.Is
	}
	return fmt.Sprintf("%s: the format is none of combined, json, caddy and traefik; it begins with %s", e.File, e.Begins)
}

// An OptionError is a mistake in one of the [Options].
type OptionError struct {
	Option string // its name
	Reason string // the value, and what it must be
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// compressions are recognised by their first bytes. gzip alone is read.
var compressions = []struct{ magic, name, unpack string }{
	{"\xfd7zXZ\x00", "xz", "xz -dc"},
	{"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"},
	{"BZh", "bzip2", "bzip2 -dc"},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{"PK\x03\x04", "zip", "unzip -p"},
}

// compressionOf returns an error that says how a file is compressed, or nil.
func compressionOf(name string, begins []byte) error {
	for _, c := range compressions {
		if !bytes.HasPrefix(begins, []byte(c.magic)) {
			continue
		}
		shown := name
		if name == "-" {
			shown = "FILE"
		}
		return &FormatError{File: name, Is: fmt.Sprintf("it is compressed with %s, and only gzip is unpacked here: %s %s | shapereplay …", c.name, c.unpack, shown)}
	}
	return nil
}

// unread are formats that are known and not read, by their lines.
var unread = []struct {
	line *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`^\s*\[\s*(?:\{|$)`), `it is a JSON array, and JSON is read with one object on each line: jq -c '.[]' FILE makes such lines`},
	{regexp.MustCompile(`^\{"log":".*"stream":"std`), `it is the file of Docker's driver json-file, which is not read: docker logs NAME prints its lines`},
	{regexp.MustCompile(`^\{.*"__REALTIME_TIMESTAMP"`), `it is journald's JSON, which is not read: journalctl -o cat prints the lines`},
	{regexp.MustCompile(`^\s*\{\s*$`), `its JSON objects take several lines, and each must stand on one: jq -c . FILE makes such lines`},
	{regexp.MustCompile(` ?\S+:\d+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3}\] \S+ \S+ `), `it is HAProxy's log, which is not read: with "option httplog clf" HAProxy writes the format combined`},
	{regexp.MustCompile(`^(?:https?|h2|grpcs?|wss?) ` + rfc3339 + ` \S+ \S+ \S+ -?[\d.]+ -?[\d.]+ -?[\d.]+ `), `it is the log of an AWS load balancer (ALB), which is not read: make lines of the format combined or json of it`},
	{regexp.MustCompile(`^` + rfc3339 + ` \S+ \S+:\d+ \S+ -?[\d.]+ -?[\d.]+ -?[\d.]+ `), `it is the log of an AWS load balancer (ELB), which is not read: make lines of the format combined or json of it`},
	{regexp.MustCompile(`^\[` + rfc3339 + `\] "`), `it is Envoy's log, which is not read: with its json_format Envoy writes lines of the format json`},
	{regexp.MustCompile(`^#(?:Version|Software|Fields|Date): `), `it is a log in W3C's format (IIS, CloudFront), which is not read: make lines of the format combined or json of it`},
}

// unreadFormat names the format of the first lines of a file if it is one that is known and
// not read, or returns "". There is at least one line.
func unreadFormat(lines [][]byte) string {
	for _, u := range unread {
		matches := 0
		for _, line := range lines {
			if u.line.Match(line) {
				matches++
			}
		}
		if 2*matches > len(lines) || u.line.Match(lines[0]) {
			return u.is
		}
	}
	return ""
}
