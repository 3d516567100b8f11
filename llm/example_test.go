package llm_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

func ExampleTransport() {
	q := llm.Quota{Requests: 500, Tokens: 90_000} // a minute, from the provider's page
	limits, err := q.Limits(20*time.Second, 1000) // a third of a minute's quota at once; 1,000 calls may wait
	if err != nil {
		log.Fatal(err)
	}
	s, err := shaper.New(limits)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: llm.Transport(s, q, llm.OpenAI)}

	// In place of the network, a provider in memory, and a call of 500 tokens that may get 1,500.
	client.Transport.(*shaper.Transport).Base = llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI, Quota: q})
	answer, err := client.Do(llmtest.NewRequest(context.Background(), llmtest.OpenAI, llmtest.Call{Input: 500, Most: 1500}))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close() // When the body has ended, the call settles.
	if _, err = io.Copy(io.Discard, answer.Body); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status, answer.Header.Get("X-Ratelimit-Remaining-Tokens"))
	// Output: OK 88500
}
