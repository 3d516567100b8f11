// Package gateway stands in front of the API of a provider of language models that many teams share. Calls wait in one line
// within the provider's quota, each team gets its turn, and in the end the actual usage of a call counts.
//
//	g, err := gateway.New(gateway.Config{Provider: "openai", Quota: q, Line: line, Team: team})
//	...
//	handler := g.Wrap(proxy)
//
// A call reserves its estimate, waits as its team in the line of a [shaper.Shaper] with fair queueing, and is passed to the
// handler behind. The response passes byte for byte as it comes, and is metered on its way. At its end the call settles
// with the usage that the response reports, as in package llm. [Gateway] describes the caller's side.
//
// A [Ledger] counts the usage by team. Pages read its [Status], and package promledger exports it to Prometheus.
// A [Record] is the line of a usage log about one call. Neither has anything of a prompt, an answer, a key or a token.
package gateway
