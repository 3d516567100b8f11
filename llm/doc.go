// Package llm paces calls of language models within their quotas: one line, first in first
// out, for requests and tokens per minute together.
//
//	q := llm.Quota{Requests: 500, Tokens: 90_000} // from the provider's page
//	limits, err := q.Limits(30*time.Second, 1000) // 1,000 calls may wait
//	...
//	s, err := shaper.New(limits)
//	...
//	client := &http.Client{Transport: llm.Transport(s, q, llm.Bedrock)}
//
// The tokens of a call are known only when it has ended. So a call reserves an estimate
// ([Provider.Estimate]) and settles with the usage that its response reports ([Provider.Usage]),
// a streamed response at its end. The excess of the estimate lets the calls in line leave sooner.
//
// A [Provider] describes how an API counts and reports. [OpenAI], [Anthropic], [Gemini] and [Bedrock]
// are ready for use, and examples for others. Package llm sends nothing by itself, and knows no
// tokenizer: an estimate is a quarter of the bytes of the request's text, what its pictures, sound and
// documents take by the provider's page, and the most output tokens that the request allows. A request that makes
// no model run costs a request's share.
//
// # A level for each limit
//
// [Levels] keep each limit of a [Quota] as the provider counts it, by a Shaper with a level for each: one line, one decision. With
// [Estimates] they reserve what calls are likely to take, and not what they ask for.
//
// # One bucket
//
// The limits of a [Quota] need one bucket only, as in the example. Its units are millionths of a minute's
// quota, and a call costs the largest of its shares ([Quota.Cost]). So all limits are kept at once,
// there is one line and one decision, and predictions are exact. The price is capacity that calls
// of different shape could have used beside each other: docs/llm.md has the figures.
//
// To keep a limit means: any span W sees at most Burst + Rate × W of it. With a burst of 30 s up
// to 150 % of a minute's quota may leave in the first minute after a pause. A provider whose own
// bucket holds a minute's quota has room for it. If a provider counts each rolling minute, set two
// thirds of its quota.
//
// # Nothing is free
//
// A number of tokens that is missing, malformed, negative or too large never counts as 0. If a
// response reports no usage, or breaks off, the estimate stands; of a stream what was seen counts. An
// estimate is at least a request's share.
//
// docs/llm.md leads from the provider's page to a client.
package llm
