package main

import (
	"runtime/debug"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

func init() {
	caddy.CustomLongDescription = `shaperd is the Caddy web server with a leaky-bucket traffic shaper. It stands in front
of an upstream that does not tolerate bursts: requests wait in a line and leave at the
rate that the upstream can take, and those that do not fit are told when to come back.

Without arguments it serves a demonstration on the loopback interface. With a Caddyfile
it is a server like Caddy:

	$ shaperd demo --caddyfile > Caddyfile
	$ shaperd validate
	$ shaperd run

The directives of Caddy are described at https://caddyserver.com/docs/caddyfile; the
directive "shape" and those around it come with the package caddyshaper.
`
}

// version returns the text before the version of Caddy: the version of shaperd if it is a release,
// and else the revision from which it was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "shaperd, Caddy"
	}
	return "shaperd " + versionOf(info) + ", Caddy"
}

func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	var revision, modified string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	return strings.TrimSpace("(devel) " + revision + modified)
}
