package browsertest_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Copied files are what their origin released: VENDOR names each with its hash, and says
// the version that the file says.
func TestAxeIsWhatItsAuthorsReleased(t *testing.T) {
	const dir = "testdata/axe"
	file, err := os.Open(filepath.Join(dir, "VENDOR"))
	require.NoError(t, err)
	defer file.Close()
	listed, version := map[string]string{"VENDOR": ""}, ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if comment, ok := strings.CutPrefix(lines.Text(), "# axe-core "); ok {
			version, _, _ = strings.Cut(comment, ",")
		} else if hash, name, ok := strings.Cut(lines.Text(), "  "); ok {
			listed[name] = hash
		}
	}
	require.Regexp(t, regexp.MustCompile(`^/\*! axe v`+regexp.QuoteMeta(version)+"\n"), axeSource)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(listed))
	for _, e := range entries {
		want, ok := listed[e.Name()]
		require.Truef(t, ok, "VENDOR does not name %s", e.Name())
		if want == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		sum := sha256.Sum256(text)
		require.Equal(t, want, hex.EncodeToString(sum[:]), e.Name())
	}
}
