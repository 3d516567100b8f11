// Package caddyshaper is a module for Caddy: the handler http.handlers.shape, which lets
// requests wait in line.
package caddyshaper
