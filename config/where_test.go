package config_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

func TestWhereTheLimitsOfAKeyComeFrom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	write(t, "", path, "default: 1/s\nlimits:\n  api: 2/s\n  api/premium: 3/s\n")
	file, err := config.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for key, want := range map[string]struct {
		rule string
		line int
	}{
		"":              {"default", 1},
		"login":         {"default", 1},
		"api2":          {"default", 1},
		"api":           {"api", 3},
		"api/7":         {"api", 3},
		"api/premium/7": {"api/premium", 4},
	} {
		rule, in, line := file.Where(key)
		require.Equal(t, want.rule, rule, key)
		require.Equal(t, path, in)
		require.Equal(t, want.line, line, key)
	}
	rules, err := config.Parse("g.yaml", []byte("limits: {api: 2/s}"))
	require.NoError(t, err)
	rule, in, line := rules.Where("login")
	require.Zero(t, rule+in)
	require.Zero(t, line)
}
