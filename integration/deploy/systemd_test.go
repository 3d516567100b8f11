package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const unit = "shaperd.service"

// systemd names the lines that it does not understand, and goes on. So any output is a mistake.
func TestSystemdUnderstandsTheUnit(t *testing.T) {
	analyze := command(t, "systemd-analyze", "systemd", "verify")
	// It also asks whether the programs are there.
	program := filepath.Join(t.TempDir(), "shaperd")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700))
	text := read(t, "systemd", unit)
	const installed = "/usr/local/bin/shaperd"
	require.Equal(t, 2, strings.Count(text, "="+installed+" "), "ExecStart and ExecReload")
	copied := filepath.Join(t.TempDir(), unit)
	require.NoError(t, os.WriteFile(copied, []byte(strings.ReplaceAll(text, installed, program)), 0o600))
	analyze.Args = append(analyze.Args, copied)
	said, err := analyze.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Empty(t, string(said))
}

// The threshold is in tenths: what systemd calls an exposure of 2.0.
func TestUnitIsExposedToLittle(t *testing.T) {
	analyze := command(t, "systemd-analyze", "systemd", "security", "--offline=true", "--threshold=20", filepath.Join(folder, "systemd", unit))
	said, err := analyze.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "Overall exposure level for "+unit)
}

// Whoever is killed while the line drains loses those in it.
func TestNobodyIsKilledWhileTheLineDrains(t *testing.T) {
	drain := func(caddyfile string) time.Duration {
		return durationOf(t, caddyfile, "shutdown_delay") + durationOf(t, caddyfile, "grace_period")
	}
	stop := durationOf(t, read(t, "systemd", unit), "TimeoutStopSec")
	require.Greater(t, stop, drain(read(t, "systemd", "Caddyfile")))
	stop = durationOf(t, read(t, "compose.yaml"), "stop_grace_period")
	require.Greater(t, stop, drain(read(t, "Caddyfile")))
}
