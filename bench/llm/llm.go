// Package llm measures how callers of a language model keep to a quota of requests and tokens: how much
// of it they use, how often the provider refuses them, and how long they wait.
package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "llm".
var Experiment = run.Experiment{
	Name: "llm",
	What: "how much of a quota of a language model is used, and how often it refuses",
	Note: "In virtual time, at providers in memory (llm/llmtest) with 500 requests and 90,000 tokens a minute, for ten minutes. " +
		"Calls reserve 2,000 tokens and take about 700 in 2 to 8 s; each caller calls again when it has its answer. " +
		"Bedrock counts what a call has taken when it has ended; OpenAI counts max(max_tokens, input) when it begins, so there settling gains nothing, " +
		"and neither does it for a lone caller. More than 100 % is the bucket that was full at first. " +
		"backoff: no limiter. x-time-requests: one limiter, of requests. x-time-both: two in sequence, the second of estimates. " +
		"semaphore: 10 at once, which fits these calls and no others. cookbook: the rule of OpenAI's parallel processor. " +
		"unsettled: the shaper without settling. After refusals all but cookbook wait as long as they are told, or double their pause. " +
		"The longest wait is until the answer has come; the fewer calls of 200 callers leave, the longer each waits.",
	Needs: "go",
	GetIt: "https://go.dev/dl",
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		found, err := inVirtualTime(ctx)
		return report.Report{Lines: found}, err
	},
}

// resultsIn is the name of the variable that names the file for results.
const resultsIn = "BENCH_LLM_RESULTS"

// inVirtualTime runs a test that measures, because package synctest works in tests alone.
func inVirtualTime(ctx context.Context) (lines []report.Line, err error) {
	dir, err := os.MkdirTemp("", "bench-llm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "results.json")
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestWaysToKeepToAQuota$", "example.com/leakybucket/bench/llm")
	cmd.Env = append(os.Environ(), resultsIn+"="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return lines, json.Unmarshal(text, &lines)
}

// line is the report of one run.
func line(p provider, by way, callers int, o Outcome) report.Line {
	return report.Line{
		Name: fmt.Sprintf("LLM/provider=%s/limiter=%s/callers=%d", p.name, by.name, callers),
		Figures: []report.Figure{
			{Value: o.Used, Unit: "quota-%"}, {Value: o.Calls, Unit: "calls/min"}, {Value: o.Refused, Unit: "429s/min"},
			{Value: float64(o.Longest.Nanoseconds()), Unit: "longest-ns"},
		},
	}
}
