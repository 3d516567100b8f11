package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// usageLine is a line of a usage log, of a call that waited and had ended when it was written.
func usageLine(at, team, actual string, waited float64, status int) string {
	return fmt.Sprintf(`{"time":"2026-11-26T15:%sZ","team":"%s","model":"m","estimate":{"input":1000,"output":1000},"actual":%s,"waited":%v,"duration":0.6,"status":%d}`+"\n",
		at, team, actual, waited, status)
}

const half = `{"input":500,"output":500,"cache_read":0,"cache_write":0}`

// Lines are written when calls end, so gold's comes before batch's, which has come earlier. At 50,000 tokens a
// minute one leaves every 1.2 s: a call reserves 2,000 tokens, which take 2.4 s, and settles with 1,000 after 0.6 s.
var usageLog = usageLine("00:00", "batch", half, 0, 200) +
	usageLine("00:00.1", "gold", half, 0.25, 200) +
	usageLine("00:00", "batch", half, 7200, 200) +
	usageLine("00:00", "batch", "null", 30, 200)

func replayUsage(t *testing.T, log string, args ...string) (status int, printed, problems string) {
	return shapereplay(t, log, append(strings.Fields("-format usage -provider bedrock -tokens 50000 -burst 0s"), args...)...)
}

func TestAUsageLogIsReplayed(t *testing.T) {
	log := strings.Replace(usageLog, "7200", "600", 1)
	status, printed, problems := replayUsage(t, log, "-weights", "gold=4,silver=2")
	require.Empty(t, problems)
	require.Equal(t, exitOK, status)
	require.Equal(t, `4 calls of 2 teams, 2026-11-26 15:00:00Z to 2026-11-26 15:00:00Z, as bedrock counts them, with burst
0, depth 1,000, wait 2 min

QUOTA   A MINUTE  TAKEN  USED ON AVERAGE  IN THE FULLEST MINUTE
tokens    50,000  5,000              10%                    10%

TEAM   WEIGHT  CALLS  TOKENS  REFUSED  MEAN WAIT    P99  LONGEST  REFUSED THEN  MEAN THEN  P99 THEN  LONGEST THEN
batch       1      3   4,000        0      2.4 s  4.8 s    4.8 s             0    3.5 min    10 min        10 min
gold        4      1   1,000        0      1.1 s  1.1 s    1.1 s             0     250 ms    250 ms        250 ms
(all)              4   5,000        0     2.08 s  4.8 s    4.8 s             0   2.63 min    10 min        10 min

Note: -weights names silver, and no call is of that team
Note: 1 call has ended without a usage: the estimate of each stands
`, printed)
}

func TestAUsageLogAsJSON(t *testing.T) {
	status, printed, problems := replayUsage(t, usageLog, "-json", "-top", "1")
	require.Empty(t, problems)
	require.Equal(t, exitOK, status)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(printed), &d))
	require.EqualValues(t, 3, d["calls"])
	require.Equal(t, map[string]any{"limit": "tokens", "minute": 50_000., "taken": 4_000., "mean": 4_000., "most": 4_000.}, d["limits"].([]any)[0])
	require.Len(t, d["teams"], 2, "-top is for people")
	require.Equal(t, map[string]any{"calls": 1., "refused": 0., "wait_mean_s": 3.5, "wait_p99_s": 3.5, "wait_max_s": 3.5}, d["teams"].([]any)[1].(map[string]any)["now"])
	log := d["log"].(map[string]any)
	require.EqualValues(t, 1, log["broken"], "a call that took two hours can't be sorted in")
}

func TestAUsageLogWithOneTeamShown(t *testing.T) {
	_, printed, _ := replayUsage(t, usageLog, "-top", "1", "-from", "2026-11-26")
	require.Contains(t, printed, "(all) has 1 more with fewer tokens (-top, or -json for all)\n")
	status, printed, _ := replayUsage(t, usageLog, "-from", "2026-11-27")
	require.Equal(t, exitOK, status)
	require.Contains(t, printed, "No calls\n\nNote: no call of the log is within -from and -to\n")
	_, printed, _ = replayUsage(t, usageLog, "-json", "-from", "2026-11-27")
	require.Contains(t, printed, `"teams": [],`, "an array is never null")
}

func TestBrokenLinesOfAUsageLogAreNamed(t *testing.T) {
	good := usageLine("00:00", "a", half, 0, 200)
	for from, line := range map[string][2]string{
		"no estimate of tokens that can be read":        {`"estimate":{"input":1000,`, `"estimate":{"input":-1,`},
		"an actual that is no number of tokens":         {`"output":500`, `"output":1.5`},
		"waited or duration is no number of seconds":    {`"waited":0`, `"waited":"0"`},
		"a status that is not a number of three digits": {`"status":200`, `"status":2`},
		"no time that can be read":                      {`"time":"2026`, `"time":"soon`},
		"not in the format of the file":                 {`{"time"`, `{{"time"`},
	} {
		broken := strings.Replace(good, line[0], line[1], 1)
		require.NotEqual(t, good, broken)
		_, printed, _ := replayUsage(t, good+broken)
		require.Contains(t, printed, "\n1 of 2 lines could not be used\n1: "+from+"\n  -:2: {")
	}
}

func TestMistakesAboutAUsageLog(t *testing.T) {
	for args, want := range map[string]string{
		"-format usage -provider openai":                                  "-requests, -tokens, -input or -output is missing: what does the quota allow in a minute?",
		"-format usage -tokens 5":                                         `-provider "": must be anthropic, bedrock, gemini, openai or openai-compatible`,
		"-format usage -provider openai -tokens 5 -rules x":               "-rules is for access logs, and -format usage replays the calls of a gateway under a quota",
		"-rules x -tokens 5":                                              "-tokens is for -format usage, which replays the usage log of a gateway",
		"-format usage -provider openai -tokens 5 -weights gold":          `invalid value "gold" for flag -weights: "gold" must be a team and its weight, such as gold=4`,
		"-format usage -provider openai -tokens 5 -weights gold=4,x=1001": `invalid value "gold=4,x=1001" for flag -weights: "x=1001": a weight must be from 1 to 1000`,
		"-format usage -provider openai -tokens 5 -burst 2m":              "llm: the burst is 2m0s, must be from 0 to a minute",
		"-format usage -provider openai -tokens -1":                       "llm: Quota.Tokens is -1, must not be negative",
		"-format usage -provider openai -tokens 5 -top -1":                "-top -1: must not be negative",
	} {
		status, printed, problems := shapereplay(t, "", strings.Fields(args)...)
		require.Equal(t, exitUsage, status, args)
		require.Empty(t, printed)
		require.Equal(t, "shapereplay: "+want+" (-h shows examples)\n", problems)
	}
	status, _, problems := shapereplay(t, usageLog, "-rules", file(t, "shaper.yaml", twoMayWait))
	require.Equal(t, exitFailed, status)
	require.Equal(t, "shapereplay: -: it is the usage log of a gateway of language models, which is replayed under a quota: -format usage\n", problems)
}
