package accesslog_test

import (
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func TestGzipIsRecognisedWhateverTheName(t *testing.T) {
	// Each part is a file of gzip of its own, as when logs are compressed and appended.
	parts := slices.Concat(zip(t, common(0, "/a")), zip(t, common(1, "/b")+common(2, "/c")))
	records, _ := readAll(t, accesslog.Options{}, write(t, "access.log", parts))
	require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records))
	records, _ = readText(t, accesslog.Options{}, string(parts))
	require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records))
}

func TestATruncatedGzipFileIsAnErrorThatNamesIt(t *testing.T) {
	var text strings.Builder
	for i := range 20000 {
		text.WriteString(common(i, "/a"))
	}
	packed := zip(t, text.String())
	file := write(t, "access.log.1.gz", packed[:len(packed)/2])
	r, err := accesslog.Open(accesslog.Options{}, file)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for err == nil {
		_, err = r.Next()
	}
	require.EqualError(t, err, file+": ends in the middle: unexpected EOF")
	_, again := r.Next()
	require.Equal(t, err, again)
}

func TestLinesMayEndLikeOnWindows(t *testing.T) {
	text := "\xef\xbb\xbf" + strings.ReplaceAll(common(0, "/a")+"\n"+common(1, "/b"), "\n", "\r\n")
	records, stats := readText(t, accesslog.Options{}, strings.TrimSuffix(text, "\r\n"))
	require.Equal(t, []string{"0s /a", "1s /b"}, arrivals(records))
	require.Equal(t, 2, stats.Lines, "empty lines do not count")
}

func TestALineThatIsTooLongIsBrokenAndNotHeld(t *testing.T) {
	// 32 MiB on one line. Were it held, the heap would grow by as much.
	endless := io.LimitReader(repeated("x"), 32<<20)
	text := io.MultiReader(strings.NewReader(common(0, "/a")+"start of the line "), endless, strings.NewReader("\n"+common(1, "/b")))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	records, stats := readAll(t, accesslog.Options{Stdin: text}, "-")
	runtime.ReadMemStats(&after)
	require.Equal(t, []string{"0s /a", "1s /b"}, arrivals(records))
	require.Equal(t, map[accesslog.Reason]int{accesslog.TooLong: 1}, stats.Broken)
	require.Equal(t, 2, stats.Examples[0].Line)
	require.True(t, strings.HasPrefix(stats.Examples[0].Excerpt, "start of the line xxx"), stats.Examples[0].Excerpt)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
}

func TestTheLongestLineIsAMebibyte(t *testing.T) {
	line := strings.TrimSuffix(common(0, "/a"), "\n") + ` "-" "`
	fits := line + strings.Repeat("x", 1<<20-len(line)-1) + `"`
	require.Len(t, fits, 1<<20)
	for _, end := range []string{"\n", "\r\n", ""} {
		records, stats := readText(t, accesslog.Options{Format: accesslog.Combined}, fits+end)
		require.Len(t, records, 1)
		require.Empty(t, stats.Broken)
		_, stats = readText(t, accesslog.Options{Format: accesslog.Combined}, fits+"x"+end)
		require.Equal(t, map[accesslog.Reason]int{accesslog.TooLong: 1}, stats.Broken)
	}
}

// repeated is a reader without an end.
type repeated string

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r[i%len(r)]
	}
	return len(p), nil
}

func TestProgressCountsTheBytesOfTheFiles(t *testing.T) {
	text := strings.Repeat(common(0, "/a"), 5000)
	packed := zip(t, text)
	plain := write(t, "access.log", []byte(text))
	r, err := accesslog.Open(accesslog.Options{}, plain, write(t, "access.log.1.gz", packed))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	all := int64(len(text) + len(packed))
	first, total := r.Progress()
	require.Equal(t, all, total)
	require.Less(t, first, all/2)
	for last := first; err == nil; {
		_, err = r.Next()
		read, _ := r.Progress()
		require.GreaterOrEqual(t, read, last)
		last = read
	}
	require.ErrorIs(t, err, io.EOF)
	read, _ := r.Progress()
	require.Equal(t, all, read)
}

func TestTheTotalOfAPipeIsNotKnown(t *testing.T) {
	r, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(common(0, "/a"))}, "-", write(t, "access.log", []byte(common(0, "/b"))))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	_, total := r.Progress()
	require.Zero(t, total)
}

func TestErrorsOfReadingNameTheFile(t *testing.T) {
	_, err := accesslog.Open(accesslog.Options{}, "testdata/none.log")
	require.ErrorContains(t, err, "open testdata/none.log: ")
	_, err = accesslog.Open(accesslog.Options{}, "testdata")
	require.ErrorContains(t, err, "read testdata: ")
	broken := errors.New("the cable is out")
	text := io.MultiReader(strings.NewReader(strings.Repeat(common(0, "/a"), 2000)), failing{broken})
	r, err := accesslog.Open(accesslog.Options{Stdin: text}, "-")
	require.NoError(t, err)
	for err == nil {
		_, err = r.Next()
	}
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "-: the cable is out")
	require.NoError(t, r.Close())
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
