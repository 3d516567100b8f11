package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// write writes a file of a test and returns its path.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name) // dir may be "", and name a path
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
