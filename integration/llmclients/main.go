package main

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// A model is a provider, its quota, and how it is called.
type model struct {
	name     string
	provider llm.Provider
	dialect  llmtest.Dialect // of the provider in memory
	quota    llm.Quota       // from the provider's page
	client   func(reach) ask
}

var models = []model{
	{"OpenAI", llm.OpenAI, llmtest.OpenAI, llm.Quota{Requests: 3000, Tokens: 90_000}, askOpenAI},
	{"Responses", llm.OpenAI, llmtest.OpenAI, llm.Quota{Requests: 3000, Tokens: 90_000}, askResponses},
	{"Anthropic", llm.Anthropic, llmtest.Anthropic, llm.Quota{Requests: 3000, Input: 90_000, Output: 45_000}, askAnthropic},
	{"Gemini", llm.Gemini, llmtest.Gemini, llm.Quota{Requests: 3000, Input: 45_000}, askGemini},
}

func main() {
	for _, m := range models {
		if err := demonstrate(m, 40); err != nil {
			log.Fatal(err)
		}
	}
}

// demonstrate asks a model many times at once, and prints what became of that.
func demonstrate(m model, calls int) error {
	limits, err := m.quota.Limits(2*time.Second, 1000)
	if err != nil {
		return err
	}
	s, err := shaper.New(limits)
	if err != nil {
		return err
	}
	transport := llm.Transport(s, m.quota, m.provider)
	server := llmtest.New(llmtest.Config{Dialect: m.dialect, Quota: m.quota, Answer: func(llmtest.Call) llmtest.Answer {
		return llmtest.Answer{Output: maxTokens / 3, First: 50 * time.Millisecond, Took: 400 * time.Millisecond}
	}})
	transport.Base = server // A real client leaves Base as it is.

	ask := m.client(reach{"http://llm.test", transport, 0})
	prompt := strings.Repeat("word ", 80)
	failures := make(chan error, calls) // one for each call
	start := time.Now()
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			_, err := ask(context.Background(), prompt, i%2 == 0)
			failures <- err
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	minute := float64(s.Limits().Rate) * 60 // cost units
	fmt.Printf("%-9s %d calls at once were answered within %4.1f s; refused by the provider: %d; given back by settling: %2.0f %% of a minute's quota\n",
		m.name, calls, time.Since(start).Seconds(), server.Stats().Refused, 100*float64(s.Stats().GivenBack)/minute)
	return nil
}
