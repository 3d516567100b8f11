package caddyshaper_test

import (
	"os"
	"testing"
	"time"

	"example.com/leakybucket/caddyshaper"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(serveFile); file != "" {
		serveAlone(file)
	}
	caddyshaper.SetLinger(50 * time.Millisecond)
	// Caddy keeps certificates and its last configuration in the home folder otherwise.
	home, err := os.MkdirTemp("", "caddyshaper")
	if err != nil {
		panic(err)
	}
	for _, folder := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		if err := os.Setenv(folder, home); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}
