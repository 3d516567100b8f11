package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/servers"
)

func TestMain(m *testing.M) {
	if os.Getenv(taskVariable) != "" { // The processes that share a rate are this program once more.
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestWrongFlagIsNamed(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"-rate", "0"}, "shared: -rate 0: must be from 1 to 300 (-h shows the flags)\n"},
		{[]string{"-rate", "NaN"}, "shared: -rate NaN: must be from 1 to 300 (-h shows the flags)\n"},
		{[]string{"-rate", "301"}, "shared: -rate 301: must be from 1 to 300 (-h shows the flags)\n"},
		{[]string{"-processes", "1"}, "shared: -processes 1: must be from 2 to 6 (-h shows the flags)\n"},
		{[]string{"-processes", "7"}, "shared: -processes 7: must be from 2 to 6 (-h shows the flags)\n"},
		{[]string{"-callers", "0"}, "shared: -callers 0: must be from 1 to 1000 (-h shows the flags)\n"},
		{[]string{"-for", "999ms"}, "shared: -for 999ms: must be from 1s to 1m (-h shows the flags)\n"},
		{[]string{"-for", "6"}, "shared: invalid value \"6\" for flag -for: parse error (-h shows the flags)\n"},
		{[]string{"-fast"}, "shared: flag provided but not defined: -fast (-h shows the flags)\n"},
		{[]string{"redis"}, "shared: unexpected argument \"redis\" (-h shows the flags)\n"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), row.args, &out, &errs), "%v", row.args)
		require.Equal(t, row.want, errs.String())
		require.Empty(t, out.String())
	}
}

func TestHelpShowsTheFlags(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-h"}, &out, &errs))
	require.Contains(t, out.String(), "-rate departures\n")
	require.Empty(t, errs.String())
}

func TestWithoutAServerItSaysHowToGetOne(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, errs bytes.Buffer
	require.Equal(t, exitUsage, run(t.Context(), nil, &out, &errs))
	require.Equal(t, "shared: redis-server is not installed: apt-get install redis-server, or use -redis HOST:PORT for a server that runs\n", errs.String())

	errs.Reset()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	address := nobody.Addr().String()
	require.Equal(t, exitUsage, run(t.Context(), []string{"-redis", address}, &out, &errs))
	require.Contains(t, errs.String(), `shared: -redis "`+address+`": no server answers: `)
	require.Empty(t, out.String())
}

// A watched is an output that calls something when a text has been written.
type watched struct {
	bytes.Buffer
	text string
	then func() error
}

func (w *watched) Write(p []byte) (int, error) {
	n, _ := w.Buffer.Write(p)
	if bytes.Contains(w.Bytes(), []byte(w.text)) {
		return n, w.then()
	}
	return n, nil
}

// However it ends, the server and its folder go. That the processes have gone too is
// shown by the goroutines which wait for them: none is left.
func TestNothingIsLeftBehind(t *testing.T) {
	servers.Need(t, "apt-get install redis-server", "redis-server", "valkey-server")
	for _, row := range []struct {
		name   string
		text   string // of the output; then it ends
		then   func(cancel func()) error
		status int
		errors string
	}{
		{"after the summary", "no such text", nil, 0, ""},
		{"after an interrupt", "|+0 s", func(cancel func()) error { cancel(); return nil }, exitInterrupted, "shared: interrupted\n"},
		{"after an interrupt later", "is killed", func(cancel func()) error { cancel(); return nil }, exitInterrupted, "shared: interrupted\n"},
		{"when nobody reads", "\n", func(func()) error { return errors.New("closed pipe") }, exitFailed, "shared: closed pipe\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			folder := t.TempDir()
			t.Setenv("TMPDIR", folder)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := watched{text: row.text, then: func() error { return row.then(cancel) }}
			var errs bytes.Buffer
			require.Equal(t, row.status, run(ctx, []string{"-for", "1500ms"}, &out, &errs), errs.String())
			require.Equal(t, row.errors, errs.String())
			if row.status == 0 {
				require.Regexp(t, `(?s)  0 s .*process c is killed.*\ndepartures .*after the kill .*, c 0 %\n.* per departure\n$`, out.String())
			}

			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Empty(t, left)
			address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(out.String())
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				conn.Close()
			}
			require.Error(t, err, "the server still runs")
		})
	}
}
