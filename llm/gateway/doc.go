// Package gateway stands in front of the API of a provider of language models that many teams share. Calls wait in one line
// within the provider's quota, each team gets its turn, and what a call has really taken counts in the end.
//
//	g, err := gateway.New(gateway.Config{Provider: "openai", Quota: q, Line: line, Team: team})
//	...
//	handler := g.Wrap(proxy)
//
// A call reserves what it may take, waits as its team in the line of a [shaper.Shaper] with fair queueing, and is passed to the
// handler behind. The answer passes byte for byte as it comes, and is metered on its way. At its end the call settles
// with what the answer reports; package llm says how. [Gateway] says what a caller sees.
//
// A [Ledger] counts by team what calls have taken. Pages read its [Status], and package promledger tells it to Prometheus.
// A [Record] is the line of a usage log about one call. Neither has anything of a prompt, an answer, a key or a token.
package gateway
