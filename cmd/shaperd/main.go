// Command shaperd is the Caddy web server with the shaper: its standard modules, the
// modules of package caddyshaper, and nothing else. Its commands and its Caddyfile are
// Caddy's own:
//
//	shaperd run --config /etc/shaperd/Caddyfile
//	shaperd validate --config /etc/shaperd/Caddyfile
//	shaperd reload --config /etc/shaperd/Caddyfile
//
// Without arguments it shows its purpose: it serves a demonstration on the loopback
// interface until Ctrl-C, and says where to look.
//
//	GOWORK=$PWD/all.work go run ./cmd/shaperd
package main

import (
	"os"
	"runtime/debug"
	"strings"
	_ "time/tzdata" // An image FROM scratch has no time zones.

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "example.com/leakybucket/caddyshaper"
)

func main() {
	caddy.CustomBinaryName = "shaperd"
	caddy.CustomVersion = version()
	if len(os.Args) == 1 {
		os.Args = append(os.Args, demoCommand)
	}
	caddycmd.Main()
}

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
