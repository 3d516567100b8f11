package gateway_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

func TestALedgerTellsWhatWasTakenInTheLastMinuteAndHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gateway.NewLedger()
		l.Enter("gold", 3*time.Second, llm.Usage{Input: 100, Output: 20})
		l.Enter("batch", 0, llm.Usage{Input: 5, CacheRead: -1, CacheWrite: 2, Output: 3})
		time.Sleep(30 * time.Second)
		l.Enter("gold", time.Second, llm.Usage{Input: 1, Output: 1})
		gold, batch, later := took(1, 120, 100, 20), took(1, 10, 7, 3), took(1, 2, 1, 1)

		for _, at := range []struct {
			instant       time.Duration
			minute, golds gateway.Taken // of the last minute, by all and by gold
		}{
			{30 * time.Second, sum(gold, batch, later), sum(gold, later)},
			{59 * time.Second, sum(gold, batch, later), sum(gold, later)},
			{60 * time.Second, later, later},
			{90 * time.Second, gateway.Taken{}, gateway.Taken{}},
		} {
			time.Sleep(at.instant - time.Since(epoch))
			s := l.Status(time.Now(), 1)
			require.Equal(t, at.minute, s.Minute, at.instant)
			require.Equal(t, sum(gold, batch, later), s.Hour, at.instant)
			require.Equal(t, 3*time.Second, s.LongestWait, at.instant)
			require.Equal(t, []gateway.TeamStatus{{Team: "gold", Weight: 1, Minute: at.golds, Hour: sum(gold, later), LongestWait: 3 * time.Second}}, s.Teams, at.instant)
			require.Equal(t, batch, s.Others.Hour, at.instant)
			require.Zero(t, s.Others.LongestWait, at.instant)
		}
		for _, instant := range []time.Duration{time.Hour, 1000 * time.Hour} {
			time.Sleep(instant - time.Since(epoch))
			s := l.Status(time.Now(), 10)
			require.Equal(t, [3]gateway.Taken{}, [3]gateway.Taken{s.Minute, s.Hour, s.Others.Hour}, instant)
			require.Zero(t, s.LongestWait, instant)
		}
	})
}

func TestALedgerTellsTheStateOfTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Tokens: 1000}
		limits, err := q.Limits(30*time.Second, 10)
		require.NoError(t, err)
		s, err := shaper.New(limits, shaper.WithFairQueue(nil))
		require.NoError(t, err)
		l := gateway.NewLedger()
		l.Follow("openai", q, s)
		settle, err := s.For("gold").Reserve(t.Context(), q.Cost(llm.Usage{Input: 400}))
		require.NoError(t, err)
		for _, team := range []string{"gold", "gold", "batch"} {
			l.Enter(team, 0, llm.Usage{Input: 1})
			go func() { require.NoError(t, s.For(team).WaitN(t.Context(), 200_000)) }()
			synctest.Wait()
		}
		st := l.Status(time.Now(), 1)
		require.Equal(t, "openai", st.Provider)
		require.Equal(t, q, st.Quota)
		require.Equal(t, [3]float64{0.4, 0.4, 0.5}, [3]float64{st.Level, st.Reserved, st.Capacity})
		require.Equal(t, []int{2, 1}, []int{st.Teams[0].Waiting, st.Others.Waiting})

		require.Empty(t, st.Hint)
		time.Sleep(20 * time.Second) // All but a third has drained, and two calls have taken its place.
		settle(0)
		st = l.Status(time.Now(), 1)
		require.Positive(t, st.Forfeited)
		require.Equal(t, "25 % of the tokens that calls had reserved in excess came back too late for others: a larger burst keeps them, "+
			"and so do smaller limits of the answer, such as max_tokens", st.Hint)
		time.Sleep(time.Minute)
	})
}

func TestALedgerForgetsTheTeamsThatWereSeenLongestAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gateway.NewLedger()
		for i := range 1500 {
			l.Enter(fmt.Sprint("team ", i), time.Duration(i), llm.Usage{Input: i})
			l.Refuse(fmt.Sprint("team ", i))
			time.Sleep(time.Millisecond)
		}
		s := l.Status(time.Now(), 2000)
		require.Len(t, s.Teams, 1000)
		require.Equal(t, "team 1499", s.Teams[0].Team)
		require.Equal(t, "team 500", s.Teams[999].Team)
		require.Equal(t, uint64(500), s.Others.Hour.Requests)
		require.Equal(t, uint64(500*499/2), s.Others.Hour.Tokens)
		require.Equal(t, uint64(1500), s.Refused)
		require.Equal(t, uint64(500), s.Others.Refused)
		require.Equal(t, time.Duration(1499), s.LongestWait)
		require.Equal(t, time.Duration(1489), l.Status(time.Now(), 10).Others.LongestWait)
	})
}

func TestTotalsHaveTheLabelsOfTheTeamsThatCameFirst(t *testing.T) {
	l := gateway.NewLedger()
	l.Enter("early", 0, llm.Usage{Input: 1})
	require.Equal(t, []gateway.Total{{Taken: took(1, 1, 1, 0)}}, l.Totals(), "no team has a label")
	l.Label(2)
	for _, team := range []string{"b", "a\xff", "c", "other", "", "b"} {
		l.Enter(team, 0, llm.Usage{Output: 10})
		l.Refuse(team)
	}
	require.Equal(t, []gateway.Total{
		{Team: "other", Taken: took(4, 31, 1, 30), Refused: 3},
		{Team: "a\uFFFD", Taken: took(1, 10, 0, 10), Refused: 1}, // Prometheus takes no label that is not UTF-8.
		{Team: "b", Taken: took(2, 20, 0, 20), Refused: 2},
	}, l.Totals())
}

func TestANumberThatIsNoneDoesNotOverflowALedger(t *testing.T) {
	l := gateway.NewLedger()
	for range 3 {
		l.Enter("gold", 0, llm.Usage{Input: math.MaxInt, Output: math.MinInt})
	}
	hour := l.Status(time.Now(), 1).Hour
	require.LessOrEqual(t, hour.Tokens, uint64(3<<40))
	require.Equal(t, hour.Input, hour.Tokens)
	require.Zero(t, hour.Output)
}

// epoch is when the clock of a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func took(requests, tokens, input, output uint64) gateway.Taken {
	return gateway.Taken{Requests: requests, Tokens: tokens, Input: input, Output: output}
}

func sum(parts ...gateway.Taken) (sum gateway.Taken) {
	for _, p := range parts {
		sum.Requests += p.Requests
		sum.Tokens += p.Tokens
		sum.Input += p.Input
		sum.Output += p.Output
	}
	return sum
}

func teamLine(team, token string) string {
	return fmt.Sprintf("%s: %x\n", team, sha256.Sum256([]byte(token)))
}

// A token may stand where a key of a provider may, and does not go on from there.
func TestATokenNamesItsTeamAndGoesNoFurther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teams")
	require.NoError(t, os.WriteFile(file, []byte("\ufeff"+teamLine("gold", "secret")+"# teams\r\n\n"+teamLine("gold", "next")+teamLine("batch", "b")), 0o600))
	teams, err := gateway.OpenTeams(file, nil)
	require.NoError(t, err)
	for _, c := range []struct{ field, value, path, team, passed string }{
		{"Authorization", "Bearer secret", "/v1", "gold", "/v1"},
		{"Authorization", "bearer next", "/v1", "gold", "/v1"},
		{"Authorization", "Bearer  secret", "/v1", "gold", "/v1"}, // RFC 9110, section 11.4: 1*SP
		{"X-Api-Key", "b", "/v1", "batch", "/v1"},
		{"X-Goog-Api-Key", "b", "/v1", "batch", "/v1"},
		{"Api-Key", "b", "/v1", "batch", "/v1"},
		{"Accept", "*", "/v1?key=b&alt=sse", "batch", "/v1?alt=sse"},
		{"Accept", "*", "/v1?z=%20x&k%65y=b&a;b&y", "batch", "/v1?z=%20x&a;b&y"},
		{"Authorization", "Bearer wrong", "/v1?key=wrong", "", "/v1?key=wrong"},
		{"Authorization", "Basic secret", "/v1", "", "/v1"},
		{"Authorization", "Bearer ", "/v1", "", "/v1"},
		{"Accept", "*", "/v1", "", "/v1"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway"+c.path, nil)
		require.NoError(t, err)
		r.Header.Set(c.field, c.value)
		team, ok := teams.Of(r)
		require.Equal(t, c.team, team, c)
		require.Equal(t, c.team != "", ok, c)
		require.Equal(t, c.passed, r.URL.RequestURI())
		if ok && c.field != "Accept" {
			require.Empty(t, r.Header)
		}
	}
}

func TestMistakesInAFileOfTeams(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "it has no team",
		"gold\n":                                `:1: it must read "team: sha256"`,
		": 00\n":                                `:1: it must read "team: sha256"`,
		"# one\ngold: sk-secret\n":              ":2: the value after the team must be a SHA-256",
		teamLine("a", "x")[:40] + "\n":          ":1: the value after the team must be a SHA-256",
		teamLine("a", "x") + teamLine("b", "x"): ":2: the token of another line",
	} {
		file := filepath.Join(t.TempDir(), "teams")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := gateway.OpenTeams(file, nil)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "sk-secret")
	}
	_, err := gateway.OpenTeams(filepath.Join(t.TempDir(), "none"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAChangedFileOfTeamsIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "teams")
		require.NoError(t, os.WriteFile(file, []byte(teamLine("gold", "old")), 0o600))
		var log bytes.Buffer
		teams, err := gateway.OpenTeams(file, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		of := func(token string) string {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway/", nil)
			require.NoError(t, err)
			r.Header.Set("X-Api-Key", token)
			team, _ := teams.Of(r)
			return team
		}
		require.Equal(t, "gold", of("old"))
		require.NoError(t, os.WriteFile(file, []byte(teamLine("silver", "newer")), 0o600))
		require.Equal(t, "gold", of("old"), "it is looked at once a second")
		time.Sleep(time.Second)
		require.Empty(t, of("old"))
		require.Equal(t, "silver", of("newer"))
		require.NoError(t, os.WriteFile(file, []byte("silver"), 0o600))
		time.Sleep(time.Second)
		require.Equal(t, "silver", of("newer"), "a file with a mistake changes nothing")
		require.NoError(t, os.Remove(file))
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, "silver", of("newer"), "nor does a file that is gone")
		}
		require.Equal(t, 2, strings.Count(log.String(), "the teams stay as they were"), "each mistake is told once")
	})
}
