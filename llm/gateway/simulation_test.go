package gateway_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// A scene is a quota of a provider, and the callers that share it.
type scene struct {
	name     string
	provider string
	quota    llm.Quota
	burst    time.Duration
	agents   int
	call     func(*rand.Rand, time.Duration) made // what an agent asks for at a time since the start, and gets
	leaving  float64                              // the part of the calls whose callers leave in mid-stream

	least      float64 // of the binding limit that is used through the gateway
	ofStraight float64 // or at least this part of the calls a minute of clients straight at the provider; 0: this is not asked
	evenly     bool    // all teams wait throughout, and have equal parts
	longest    float64 // the longest wait, as a multiple of that of a line that knows all costs before; 0: this is not asked
	mostWait   time.Duration
	isRefused  bool // straight clients get 429
}

// made is a call that an agent makes: tokens.
type made struct {
	input, cached, output, most int
	took                        time.Duration
}

// coding is a coding agent: it always asks for 32,000 tokens, gets some hundred, and has nine tenths of its input in a cache.
func coding(random *rand.Rand, _ time.Duration) made {
	input := 5000 + random.IntN(20_001)
	return answered(random, made{input: input, cached: input * 9 / 10, output: 300 + random.IntN(1201), most: 32_000})
}

// answered returns a call with the time that its answer takes: a second, and 80 tokens a second.
func answered(_ *rand.Rand, m made) made {
	m.took = time.Second + time.Duration(m.output)*time.Second/80
	return m
}

// tasks are half summaries, half writing, as in TestWhatOneBucketKeeps.
func tasks(random *rand.Rand, _ time.Duration) made {
	u := about(4000, 200)(random)
	if random.IntN(2) == 0 {
		u = about(200, 1000)(random)
	}
	return answered(random, made{input: u.Input, output: u.Output, most: 32_000})
}

func about(input, output int) func(*rand.Rand) llm.Usage {
	return func(random *rand.Rand) llm.Usage {
		return llm.Usage{Input: input/2 + random.IntN(input+1), Output: output/2 + random.IntN(output+1)}
	}
}

// chat asks for 8,192 to 64,000 tokens, and gets some 300.
func chat(random *rand.Rand, _ time.Duration) made {
	u := about(800, 300)(random)
	return answered(random, made{input: u.Input, output: u.Output, most: min(8192<<random.IntN(4), 64_000)})
}

// shifting is coding whose answers are six times as long for five minutes of every ten.
func shifting(random *rand.Rand, now time.Duration) made {
	m := coding(random, now)
	if now%(10*time.Minute) >= 5*time.Minute {
		m.output *= 6
	}
	return answered(random, m)
}

var scenes = []scene{
	{name: "Anthropic 1,000 / 400k / 80k, 40 agents", provider: "anthropic", quota: llm.Quota{Requests: 1000, Input: 400_000, Output: 80_000}, agents: 40, call: coding, least: 0.99, longest: 1.3, isRefused: true},
	{name: "Anthropic 50 / 30k / 8k, 20 agents", provider: "anthropic", quota: llm.Quota{Requests: 50, Input: 30_000, Output: 8000}, agents: 20, call: coding, least: 0.99, longest: 1.3, isRefused: true},
	{name: "Anthropic 1,000 / 80k / 16k, half summaries, half writing", provider: "anthropic", quota: llm.Quota{Requests: 1000, Input: 80_000, Output: 16_000}, agents: 40, call: tasks, least: 0.99, evenly: true, longest: 1.3, isRefused: true},
	{name: "vLLM 600 / 400k, 40 agents", provider: "openai-compatible", quota: llm.Quota{Requests: 600, Tokens: 400_000}, agents: 40, call: coding, least: 0.99, evenly: true, longest: 1.3, isRefused: true},
	{name: "vLLM 600 / 100k, chat with max_tokens 8,192 to 64,000", provider: "openai-compatible", quota: llm.Quota{Requests: 600, Tokens: 100_000}, agents: 60, call: chat, least: 0.99, evenly: true, longest: 1.3, isRefused: true},
	{name: "Bedrock 1,000 / 2M, 100 agents", provider: "bedrock", quota: llm.Quota{Requests: 1000, Tokens: 2_000_000}, burst: 50 * time.Second, agents: 100, call: coding, ofStraight: 0.98, mostWait: 20 * time.Second},
	{name: "Bedrock 250 / 400k, 20 agents", provider: "bedrock", quota: llm.Quota{Requests: 250, Tokens: 400_000}, burst: 50 * time.Second, agents: 20, call: coding, ofStraight: 0.97, mostWait: 20 * time.Second, isRefused: true},
	{name: "OpenAI 5,000 / 2M, 40 agents", provider: "openai", quota: llm.Quota{Requests: 5000, Tokens: 2_000_000}, agents: 40, call: coding, least: 0.99, isRefused: true},
	{name: "answers six times longer for five minutes of every ten (80k out)", provider: "anthropic", quota: llm.Quota{Requests: 1000, Input: 400_000, Output: 80_000}, agents: 40, call: shifting, least: 0.98, longest: 1.3, isRefused: true},
}

func (s scene) dialect() llmtest.Dialect {
	if s.provider == "openai-compatible" {
		return llmtest.Compatible
	}
	return dialectOf(s.provider)
}

// The ways in which agents call.
const (
	straight = "straight"
	usual    = "usual"   // through the gateway, with the default of the provider
	knowing  = "knowing" // the same, but estimates are what calls take
)

// A played is what has become of a scene.
type played struct {
	used    float64 // of the binding limit
	calls   float64 // answered a minute
	refused float64 // by the provider, a minute
	failed  float64 // a minute, after all retries
	longest time.Duration
	teams   [4]float64 // the part of each team of the binding limit
	gateway float64    // calls that the gateway has refused, a minute
}

func (p played) String() string {
	return fmt.Sprintf("%.1f %%, %.0f calls a minute (%.1f × 429, %.1f failed, %.1f refused), longest wait %v, teams %.3v",
		100*p.used, p.calls, p.refused, p.failed, p.gateway, p.longest.Round(100*time.Millisecond), p.teams)
}

// play plays a scene for so long, in virtual time.
func (s scene) play(t *testing.T, how string, seed uint64, span time.Duration) (p played) {
	synctest.Test(t, func(t *testing.T) {
		calls := new(counts)
		server := llmtest.New(llmtest.Config{Dialect: s.dialect(), Quota: s.quota, Answer: func(c llmtest.Call) llmtest.Answer {
			m := parseMade(c.Header.Get("X-Made"))
			return llmtest.Answer{Output: m.output, First: time.Second, Took: m.took}
		}, Cached: func(c llmtest.Call) int { return parseMade(c.Header.Get("X-Made")).cached }})
		var client http.RoundTripper = server
		var rig *rig
		if how != straight {
			client, rig = s.gateway(t, server, how)
		}
		start := time.Now()
		ctx, stop := context.WithCancel(t.Context()) // Without a deadline, by which calls would be refused.
		var all sync.WaitGroup
		for i := range s.agents {
			all.Go(func() {
				a := &agent{scene: s, client: client, team: i % 4, random: rand.New(rand.NewPCG(seed, uint64(i))), start: start, counts: calls}
				a.run(ctx)
			})
		}
		time.Sleep(span)
		stop()
		all.Wait()
		synctest.Wait()
		at := server.Stats() // What was reserved has come back.
		minutes := span.Minutes()
		p = played{
			calls: float64(at.Answered) / minutes, refused: float64(at.Refused) / minutes, failed: float64(calls.failed) / minutes,
			used: usedOf(at.Counted, s.quota) / minutes,
		}
		if rig != nil {
			st := rig.Ledger().Status(time.Now(), 4)
			p.gateway, p.longest = float64(st.Refused)/minutes, calls.longestWait(rig)
			sum := 0.0
			for i := range p.teams {
				p.teams[i] = calls.used[i]
				sum += calls.used[i]
			}
			for i := range p.teams {
				p.teams[i] /= sum
			}
		}
	})
	return p
}

// usedOf returns the part of a quota that is used of the limit that is used most.
func usedOf(n, q llm.Quota) (most float64) {
	for _, of := range [][2]int{{n.Requests, q.Requests}, {n.Tokens, q.Tokens}, {n.Input, q.Input}, {n.Output, q.Output}} {
		if of[1] > 0 {
			most = max(most, float64(of[0])/float64(of[1]))
		}
	}
	return most
}

// gateway returns a client of a gateway in front of a provider.
func (s scene) gateway(t *testing.T, provider http.RoundTripper, how string) (http.RoundTripper, *rig) {
	target, err := url.Parse("http://llm.test")
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: provider, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	}
	rig := newRig(metered{t, cmp.Or(s.burst, 30*time.Second)}, s.provider, s.quota, proxy, func(c *gateway.Config, l *shaper.Limits) {
		switch c.Estimate = gateway.DefaultEstimate(s.provider); how {
		case usual:
		case knowing:
			c.Estimate = ""
		default:
			c.Estimate = how
		}
		c.Log = nil
	})
	if how == knowing {
		rig.EstimateBy(func(r *http.Request) (llm.Usage, error) {
			m := parseMade(r.Header.Get("X-Made"))
			return llm.Usage{Input: m.input - m.cached, CacheRead: m.cached, Output: m.output}, nil
		})
	}
	return llmtest.Client(rig), rig
}

// counts are what agents have seen.
type counts struct {
	mu     sync.Mutex
	failed int
	used   [4]float64
}

// longestWait returns the longest wait of a call in line.
func (c *counts) longestWait(r *rig) (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.records {
		longest = max(longest, time.Duration(of.Waited*float64(time.Second)))
	}
	return longest
}

// An agent makes one call after the other.
type agent struct {
	scene
	client http.RoundTripper
	team   int
	random *rand.Rand
	start  time.Time
	*counts
}

func (a *agent) run(ctx context.Context) {
	for pause := a.upTo(begin); ; pause = a.upTo(6 * time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		m := a.call(a.random, time.Since(a.start))
		leaves := time.Duration(0)
		if a.random.Float64() < a.leaving {
			leaves = time.Duration(a.random.Float64() * float64(m.took))
		}
		if a.try(ctx, m, leaves) {
			continue
		}
		if ctx.Err() == nil {
			a.mu.Lock()
			a.failed++
			a.mu.Unlock()
		}
	}
}

// begin is the time in which the agents come.
const begin = 1 * time.Minute

// upTo returns a random time.
func (a *agent) upTo(d time.Duration) time.Duration { return time.Duration(a.random.Int64N(int64(d))) }

// try makes a call, as the clients' libraries do: with two retries, after the time that a refusal says, if that is at most a
// minute, and else after a half second, and twice that, less up to a quarter (openai-go v3.98.0, internal/requestconfig).
func (a *agent) try(ctx context.Context, m made, leaves time.Duration) bool {
	for retry := 0; ; retry++ {
		status, after := a.send(ctx, m, leaves)
		if status == http.StatusOK {
			return true
		}
		if retry == 2 || ctx.Err() != nil {
			return false
		}
		if after <= 0 || after > time.Minute {
			after = time.Duration(float64(time.Second<<retry/2) * (1 - a.random.Float64()/4))
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(after):
		}
	}
}

func (a *agent) send(ctx context.Context, m made, leaves time.Duration) (status int, after time.Duration) {
	r := llmtest.NewRequest(ctx, a.dialect(), llmtest.Call{Input: m.input, Most: m.most, Stream: true})
	r.Header.Set("X-Team", strconv.Itoa(a.team))
	r.Header.Set("X-Made", m.String())
	r.GetBody = nil
	response, err := a.client.RoundTrip(r)
	if err != nil {
		return 0, 0
	}
	defer response.Body.Close()
	if leaves > 0 && response.StatusCode == http.StatusOK {
		timer := time.AfterFunc(leaves, func() { _ = response.Body.Close() })
		defer timer.Stop()
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode == http.StatusOK {
		if err == nil {
			a.mu.Lock()
			a.used[a.team] += a.share(m)
			a.mu.Unlock()
		}
		return http.StatusOK, 0
	}
	for _, of := range []struct {
		field string
		unit  time.Duration
	}{{"Retry-After-Ms", time.Millisecond}, {"Retry-After", time.Second}} {
		if n, err := strconv.ParseFloat(response.Header.Get(of.field), 64); err == nil {
			return response.StatusCode, time.Duration(n * float64(of.unit))
		}
	}
	return response.StatusCode, 0
}

// share returns what a call uses of the limit that binds, in minutes of the quota.
func (s scene) share(m made) float64 {
	of := func(n, limit int) float64 {
		if limit == 0 {
			return 0
		}
		return float64(n) / float64(limit)
	}
	return max(of(m.output, s.quota.Output), of(m.input+m.output, s.quota.Tokens))
}

func (m made) String() string {
	return fmt.Sprint(m.input, " ", m.cached, " ", m.output, " ", m.most, " ", int64(m.took))
}

func parseMade(text string) (m made) {
	if _, err := fmt.Sscan(text, &m.input, &m.cached, &m.output, &m.most, &m.took); err != nil {
		panic(err) // The header is this file's.
	}
	return m
}

// long reports whether the simulation is played in full.
func long() bool { return os.Getenv("SHAPER_LONG") != "" }

func seedsOf() uint64 {
	n, err := strconv.ParseUint(os.Getenv("SEEDS"), 10, 64)
	if err != nil {
		return 5
	}
	return n
}

// leavingScenes are the first five, with a fifth of the callers leaving in mid-stream.
func leavingScenes() (all []scene) {
	for _, s := range scenes[:5] {
		s.name, s.leaving, s.least, s.evenly, s.longest = s.name+", a fifth leaving", 0.2, 0.98, false, 0
		all = append(all, s)
	}
	return all
}

// Callers as they are use a quota to the full, and the provider refuses none of them. Nobody waits much longer than in a line that
// knows all costs before. With SHAPER_LONG=1 this takes some minutes, and prints the table of docs/llm.md.
func TestCallersUseTheWholeQuota(t *testing.T) {
	span, seeds := 2*time.Minute, uint64(1)
	if long() {
		span, seeds = 30*time.Minute, seedsOf()
	}
	rows := make([]string, len(scenes)+5)
	t.Run("scenes", func(t *testing.T) {
		for i, s := range slices.Concat(scenes, leavingScenes()) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				var sums [3]played // straight, usual, knowing
				for seed := range seeds {
					for j, how := range []string{straight, usual, knowing} {
						if how == straight && !long() || how == knowing && s.provider == "openai" { // It counts what calls ask for, not what they take.
							continue
						}
						p := s.play(t, how, seed, span)
						t.Logf("seed %d, %-8s %v", seed, how, p)
						if how == usual {
							require.Zero(t, p.refused, "by the provider")
							require.Zero(t, p.gateway, "by the gateway")
						}
						sums[j].add(p)
					}
				}
				n := float64(seeds)
				before, now, best := sums[0].over(n), sums[1].over(n), sums[2].over(n)
				rows[i] = fmt.Sprintf("| %s | %.0f %% (%.0f, %.0f) | %.1f %%, %.0f | %v | %v |", s.name, 100*before.used, before.refused, before.failed,
					100*now.used, now.calls, now.longest.Round(time.Second), best.longest.Round(time.Second))
				if !long() {
					require.Greater(t, now.used, 0.6*best.used, "the first estimates are of calls as they ask")
					return
				}
				if s.isRefused {
					require.Greater(t, before.refused, 1.0, "else there is nothing to show")
				}
				require.GreaterOrEqual(t, now.used, s.least)
				require.GreaterOrEqual(t, now.calls, s.ofStraight*before.calls)
				if s.evenly {
					for _, part := range now.teams {
						require.InDelta(t, 0.25, part, 0.25*0.05)
					}
				}
				if s.longest > 0 {
					require.LessOrEqual(t, float64(now.longest), s.longest*float64(best.longest))
				}
				if s.mostWait > 0 {
					require.LessOrEqual(t, now.longest, s.mostWait)
				}
			})
		}
	})
	if long() {
		fmt.Println("| provider and quota | straight: used (429, failed a minute) | here: used, calls a minute | longest wait | knowing all costs |\n|---|---|---|---|---|")
		fmt.Println(strings.Join(rows, "\n"))
	}
}

// add adds the parts of another one; of waits the longest stays.
func (p *played) add(o played) {
	p.used += o.used
	p.calls += o.calls
	p.refused += o.refused
	p.failed += o.failed
	p.longest = max(p.longest, o.longest)
	for i := range p.teams {
		p.teams[i] += o.teams[i]
	}
}

// over returns the means of n that were added.
func (p played) over(n float64) played {
	p.used /= n
	p.calls /= n
	p.refused /= n
	p.failed /= n
	for i := range p.teams {
		p.teams[i] /= n
	}
	return p
}

// What each estimate gives, for docs/llm.md.
func TestWhatEachEstimateGives(t *testing.T) {
	if !long() {
		t.Skip("it is run with SHAPER_LONG=1")
	}
	fmt.Println("| | learned | asked | 1000 | 300 |\n|---|---|---|---|---|")
	for _, s := range scenes[:7] {
		row := "| " + s.name + " |"
		for _, how := range []string{"learned", "asked", "1000", "300"} {
			p := s.play(t, how, 0, 30*time.Minute)
			row += fmt.Sprintf(" %.0f %% (%.0f) |", 100*p.used, p.refused)
		}
		fmt.Println(row)
	}
}
