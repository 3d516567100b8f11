package caddyshaper_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

// stop ends the configuration, and waits until its lines are gone.
func (s *site) stop() {
	s.t.Helper()
	require.NoError(s.t, caddy.Stop())
	realtime.Until(s.t, func() bool {
		_, all := caddyshaper.Names()
		return len(all) == 0
	}, "no bucket is left")
}

func TestLevelsOutliveTheProcessInTheStateFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	lines := func(name string) string {
		return "shape " + name + " {\n limits 1/h\n key {query.user}\n site 1/h burst 3\n state " + file + "\n}"
	}
	directives := lines("one") + "\n	shape /two limits 1/s\n" + proxied
	s := serve(t, directives)
	require.Equal(t, 200, s.get("/?user=ann").status)
	s.stop()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	s.reload(directives)
	require.Equal(t, 429, s.get("/?user=ann").status)
	require.Equal(t, 200, s.get("/?user=bob").status)
	require.Equal(t, 200, s.get("/?user=cid").status)
	require.Equal(t, 429, s.get("/?user=dan").status, "the level of the site is kept too")
	s.stop()

	// Another name neither gets those levels nor takes them away.
	s.reload(lines("other") + proxied)
	require.Equal(t, 200, s.get("/?user=ann").status)
	s.stop()
	s.reload(directives)
	require.Equal(t, 429, s.get("/?user=ann").status)
}

func TestABrokenStateFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":99,"shapers":{}}`, `{"version":1,"shapers":{"line":{"keys":{"format":1}}}}`} {
		file := filepath.Join(t.TempDir(), "levels.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s := serve(t, "shape line {\n limits 1/h\n state "+file+"\n}"+proxied)
		require.Equal(t, 200, s.get("/").status)
		s.stop()
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(now), `"line":{`)
		if aside, err := os.ReadFile(file + ".broken"); err == nil {
			require.Equal(t, text, string(aside))
		}
		log, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		require.Regexp(t, "set aside|could not be restored", string(log))
	}
}

func TestTheFolderOfAStateFileMustExist(t *testing.T) {
	s := newSite(t)
	err := s.load("shape {\n limits 1/s\n state " + filepath.Join(t.TempDir(), "none", "levels.json") + "\n}" + proxied)
	require.ErrorContains(t, err, "shape: state: ")
	require.ErrorContains(t, err, "the folder of the file must exist")
}

func TestARejectedConfigurationWritesNoLevels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	s := newSite(t)
	require.Error(t, s.load("shape {\n limits 1/s\n state "+file+"\n}\n	bind 203.0.113.1"+proxied))
	require.NoFileExists(t, file)
}
