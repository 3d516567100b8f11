// Command llmclients calls language models by the client libraries of OpenAI, Anthropic and Google, each
// paced within a quota. The providers are in memory, so it needs no key and no network.
//
//	go run .
package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"google.golang.org/genai"
)

// maxTokens bounds the answers. What is reserved for an answer follows from it, so it should not be much more than
// answers take.
const maxTokens = 200

// An ask asks a model, with or without streaming, and returns its answer.
type ask func(ctx context.Context, prompt string, stream bool) (answer string, err error)

// A reach is how a library reaches its API.
type reach struct {
	address   string            // http://llm.test, or that of a gateway
	transport http.RoundTripper // the one of package llm; nil where a gateway paces the calls
	retries   int               // how often the library itself calls again, each time as a call of its own that waits its turn
}

// newOpenAI returns a client of openai-go.
func newOpenAI(r reach) openai.Client {
	return openai.NewClient(
		option.WithHTTPClient(&http.Client{Transport: r.transport}),
		option.WithMaxRetries(r.retries),
		option.WithAPIKey("none"),
		option.WithBaseURL(r.address+"/v1/"),
	)
}

// askOpenAI returns an ask by Chat Completions of openai-go.
func askOpenAI(r reach) ask {
	client := newOpenAI(r)
	return func(ctx context.Context, prompt string, stream bool) (string, error) {
		params := openai.ChatCompletionNewParams{
			Model:               "test",
			Messages:            []openai.ChatCompletionMessageParamUnion{openai.UserMessage(prompt)},
			MaxCompletionTokens: openai.Int(maxTokens),
		}
		if !stream {
			completion, err := client.Chat.Completions.New(ctx, params)
			if err != nil {
				return "", err
			}
			return completion.Choices[0].Message.Content, nil
		}
		// Without this the stream reports no usage, and the estimate stands.
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		chunks := client.Chat.Completions.NewStreaming(ctx, params)
		defer chunks.Close()
		var answer strings.Builder
		for chunks.Next() {
			for _, choice := range chunks.Current().Choices {
				answer.WriteString(choice.Delta.Content)
			}
		}
		return answer.String(), chunks.Err()
	}
}

// askResponses returns an ask by Responses of openai-go.
func askResponses(r reach) ask {
	client := newOpenAI(r)
	return func(ctx context.Context, prompt string, stream bool) (string, error) {
		params := responses.ResponseNewParams{
			Model:           "test",
			Input:           responses.ResponseNewParamsInputUnion{OfString: openai.String(prompt)},
			MaxOutputTokens: openai.Int(maxTokens),
		}
		if !stream {
			response, err := client.Responses.New(ctx, params)
			if err != nil {
				return "", err
			}
			return response.OutputText(), nil
		}
		events := client.Responses.NewStreaming(ctx, params)
		defer events.Close()
		var answer strings.Builder
		for events.Next() {
			if event := events.Current(); event.Type == "response.output_text.delta" {
				answer.WriteString(event.Delta)
			}
		}
		return answer.String(), events.Err()
	}
}

// askAnthropic returns an ask by anthropic-sdk-go.
func askAnthropic(r reach) ask {
	client := anthropic.NewClient(
		anthropicoption.WithHTTPClient(&http.Client{Transport: r.transport}),
		anthropicoption.WithMaxRetries(r.retries),
		anthropicoption.WithAPIKey("none"),
		anthropicoption.WithBaseURL(r.address),
	)
	return func(ctx context.Context, prompt string, stream bool) (string, error) {
		params := anthropic.MessageNewParams{
			Model:     "test",
			Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(prompt))},
			MaxTokens: maxTokens,
		}
		if !stream {
			message, err := client.Messages.New(ctx, params)
			if err != nil {
				return "", err
			}
			return message.Content[0].Text, nil
		}
		events := client.Messages.NewStreaming(ctx, params)
		defer events.Close()
		var answer strings.Builder
		for events.Next() {
			answer.WriteString(events.Current().Delta.Text)
		}
		return answer.String(), events.Err()
	}
}

// askGemini returns an ask by google.golang.org/genai.
func askGemini(r reach) ask {
	config := &genai.ClientConfig{
		HTTPClient:  &http.Client{Transport: r.transport},
		APIKey:      "none",
		Backend:     genai.BackendGeminiAPI,
		HTTPOptions: genai.HTTPOptions{BaseURL: r.address + "/"},
	}
	if r.retries > 0 {
		config.HTTPOptions.RetryOptions = &genai.HTTPRetryOptions{Attempts: genai.Ptr(int32(r.retries + 1))}
	}
	client, err := genai.NewClient(context.Background(), config) // Once, as NewClient changes the config.
	return func(ctx context.Context, prompt string, stream bool) (string, error) {
		if err != nil {
			return "", err
		}
		options := &genai.GenerateContentConfig{MaxOutputTokens: maxTokens}
		if !stream {
			content, err := client.Models.GenerateContent(ctx, "test", genai.Text(prompt), options)
			if err != nil {
				return "", err
			}
			return content.Text(), nil
		}
		var answer strings.Builder
		for content, err := range client.Models.GenerateContentStream(ctx, "test", genai.Text(prompt), options) {
			if err != nil {
				return "", err
			}
			answer.WriteString(content.Text())
		}
		return answer.String(), nil
	}
}
