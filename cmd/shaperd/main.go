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
