package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"example.com/leakybucket/llm/llmtest"
)

// demoQuota is the quota of the demonstration, unless flags set another: a small account's.
var demoQuota = map[string]map[string]string{
	"anthropic": {"requests": "500", "input": "40000", "output": "60000"},
	"gemini":    {"requests": "100", "input": "40000"},
	"":          {"requests": "500", "tokens": "90000"},
}

// demoTeams are the clients of the demonstration.
var demoTeams = [10]string{"batch", "gold", "chat", "search", "docs", "mail", "code", "sales", "legal", "ops"}

// demoAtOnce are the calls at a time of teams that have more than one: batch more than its turns let through, and gold enough that
// its weight is seen.
var demoAtOnce = map[string]int{"batch": 40, "gold": 8}

// demoStart is the time in which the clients of the demonstration begin. If all began at once, the chart would show their first
// second for a minute, and nothing else.
const demoStart = 10 * time.Second

// demoDialect returns the provider in memory that stands for a provider.
func demoDialect(provider string) llmtest.Dialect {
	switch provider {
	case "anthropic":
		return llmtest.Anthropic
	case "gemini":
		return llmtest.Gemini
	case "bedrock":
		return llmtest.Bedrock
	}
	return llmtest.OpenAI
}

// demoLLM serves the gateway in front of a provider in memory, and plays its clients.
func demoLLM(f caddycmd.Flags) (int, error) {
	for _, name := range []string{"upstream", "key-env", "teams"} {
		if value := f.String(name); value != "" {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("--%s: %q, but the provider of the demonstration is in memory", name, value)
		}
	}
	if err := setDemoFlags(f); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("the provider of the demonstration can't listen: %w", err)
	}
	if err := f.Set("upstream", "http://"+l.Addr().String()); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	o, err := readLLM(f)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	o.grace = 5 * time.Second
	if f.Bool("print") {
		_, err := fmt.Print(o.caddyfile())
		return caddy.ExitCodeSuccess, err
	}
	dialect := demoDialect(o.provider)
	provider := llmtest.New(llmtest.Config{Dialect: dialect, Quota: o.quota, Answer: demoAnswer})
	go func() { _ = http.Serve(l, provider) }()
	caddy.TrapSignals()
	if err := o.serve(); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	for _, team := range demoTeams {
		for i := range cmp.Or(demoAtOnce[team], len(o.models), 1) {
			go func() {
				time.Sleep(rand.N(demoStart))
				callForever(team, o.demoModel(i), "http://"+o.listen, dialect)
			}()
		}
	}
	fmt.Print(o.welcome() + demoWords(&o, dialect))
	select {}
}

// setDemoFlags sets the flags that were left out so that a line forms at once.
func setDemoFlags(f caddycmd.Flags) error {
	set := map[string]string{}
	if !f.Changed("burst") {
		set["burst"] = "5s"
	}
	if !f.Changed("weights") && f.String("fair") == "" {
		set["weights"] = "gold=4"
	}
	for address, port := range map[string]int{"listen": 8080, "page": 8081} {
		if !f.Changed(address) {
			set[address] = "127.0.0.1:" + freePort(port)
		}
	}
	if !f.Changed("requests") && !f.Changed("tokens") && !f.Changed("input") && !f.Changed("output") && !f.Changed("quota") {
		quota := demoQuota[f.String("provider")]
		if quota == nil {
			quota = demoQuota[""]
		}
		for name, value := range quota {
			set[name] = value
		}
	}
	for name, value := range set {
		if err := f.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// demoAnswer is an answer of ordinary length, which takes a second or two.
func demoAnswer(c llmtest.Call) llmtest.Answer {
	output := max(1, c.Most/4+rand.IntN(max(1, c.Most/2)))
	return llmtest.Answer{Output: output, First: 300 * time.Millisecond, Took: 300*time.Millisecond + time.Duration(output)*4*time.Millisecond}
}

// demoModel returns a model of the demonstration: with several quotas each has callers.
func (o *llmOptions) demoModel(i int) string {
	if len(o.models) == 0 {
		return ""
	}
	return strings.ReplaceAll(o.models[i%len(o.models)].pattern, "*", "demo")
}

// callForever sends one call after the other. A refused call is sent again after the time that the refusal names.
func callForever(team, model, address string, d llmtest.Dialect) {
	for {
		r := llmtest.NewRequest(context.Background(), d, llmtest.Call{Model: model, Input: 100 + rand.IntN(400), Most: 200 + rand.IntN(600), Stream: rand.IntN(2) == 0})
		r.URL.Scheme, r.URL.Host, _ = strings.Cut(address, "://")
		r.Host = ""
		r.Header.Set("X-Team", team)
		pause := time.Second
		if w, err := http.DefaultClient.Do(r); err == nil {
			if _, err := io.Copy(io.Discard, w.Body); err == nil && w.StatusCode == http.StatusOK {
				pause = time.Duration(rand.IntN(1000)) * time.Millisecond
			} else if after, err := time.ParseDuration(w.Header.Get("Retry-After") + "s"); err == nil {
				pause = after
			}
			w.Body.Close()
		}
		time.Sleep(pause)
	}
}

// demoWords returns a command to try.
func demoWords(o *llmOptions, d llmtest.Dialect) string {
	curl := func(c llmtest.Call) string {
		r := llmtest.NewRequest(context.Background(), d, c)
		body, _ := io.ReadAll(r.Body) // It is in memory, and has an empty prompt.
		body = bytes.Replace(body, []byte(`""`), []byte(`"Hello"`), 1)
		return fmt.Sprintf("curl -sN 'http://%s%s' -H 'X-Team: you' -H 'Content-Type: application/json' -d '%s'", o.listen, r.URL.RequestURI(), body)
	}
	each := ""
	if len(o.models) > 1 {
		each = " for each quota"
	}
	return fmt.Sprintf(`
The provider is in memory. Ten teams call it: batch with %d calls at a time, gold, which has four turns where others have one, with %d,
and eight more with one%s.
Open the page, and take your turn among them:

  %s -w '\n%%{http_code} after %%{time_total} s\n'

  %s

Your own: --upstream and --provider in place of --demo, and the quota of your account.
`, demoAtOnce["batch"], demoAtOnce["gold"], each, curl(llmtest.Call{Model: o.demoModel(0), Most: 300}), curl(llmtest.Call{Model: o.demoModel(0), Most: 300, Stream: true}))
}
