// Package gateway stands in front of the API of a provider of language models that many teams share. Calls wait in one line
// within the provider's quota, each team gets its turn, and what a call has really taken counts in the end.
//
// A [Ledger] counts by team what calls have taken. Pages and metrics read its [Status].
package gateway
