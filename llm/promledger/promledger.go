// Package promledger exports the usage of calls of language models to Prometheus. It is a package of its own, so that a
// program without Prometheus does not compile its client.
package promledger

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
)

// ledgers is a Collector of the Ledgers of gateways, by rule.
type ledgers struct {
	all func() map[string]*gateway.Ledger
}

// New returns a Collector of ledgers by their names, which become the label rule. The label team is empty unless teams have
// labels of their own ([gateway.Config]); then all other teams are "other".
//
//	shaper_llm_calls_total              calls that have ended
//	shaper_llm_tokens_total             their tokens, as the provider counts them, with the label direction
//	shaper_llm_refused_total            calls that the gateway has refused
//	shaper_llm_provider_refusals_total  answers of the provider with 429; there should be none
//	shaper_llm_quota_per_minute         the quota, with the label kind
//	shaper_llm_body_bytes               held of the bodies of calls
//	shaper_llm_body_bytes_limit         that may be held of them
func New(all func() map[string]*gateway.Ledger) prometheus.Collector { return ledgers{all} }

var (
	llmCalls     = prometheus.NewDesc("shaper_llm_calls_total", "Calls of a language model that have ended.", []string{"rule", "team"}, nil)
	llmTokens    = prometheus.NewDesc("shaper_llm_tokens_total", "Tokens of these calls, as the provider counts them.", []string{"rule", "team", "direction"}, nil)
	llmRefused   = prometheus.NewDesc("shaper_llm_refused_total", "Calls that the gateway has refused.", []string{"rule", "team"}, nil)
	llmRefusals  = prometheus.NewDesc("shaper_llm_provider_refusals_total", "Answers of the provider with status 429; there should be none.", []string{"rule"}, nil)
	llmPerMinute = prometheus.NewDesc("shaper_llm_quota_per_minute", "The quota of the provider per minute.", []string{"rule", "kind"}, nil)
	llmBodies    = prometheus.NewDesc("shaper_llm_body_bytes", "Bytes that are held of the bodies of calls.", []string{"rule"}, nil)
	llmMost      = prometheus.NewDesc("shaper_llm_body_bytes_limit", "Bytes that may be held of the bodies of calls.", []string{"rule"}, nil)
)

// Describe implements [prometheus.Collector].
func (ledgers) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{llmCalls, llmTokens, llmRefused, llmRefusals, llmPerMinute, llmBodies, llmMost} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c ledgers) Collect(out chan<- prometheus.Metric) {
	counter := func(of *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(of, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(of *prometheus.Desc, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, n, labels...)
	}
	for rule, l := range c.all() {
		st := l.Status(time.Now(), 0)
		counter(llmRefusals, st.Refusals, rule)
		for kind, n := range map[llm.Kind]int{llm.Requests: st.Quota.Requests, llm.Tokens: st.Quota.Tokens, llm.Input: st.Quota.Input, llm.Output: st.Quota.Output} {
			if n > 0 {
				gauge(llmPerMinute, float64(n), rule, string(kind))
			}
		}
		gauge(llmBodies, float64(st.BodyBytes), rule)
		gauge(llmMost, float64(st.MostBodyBytes), rule)
		for _, t := range l.Totals() {
			counter(llmCalls, t.Requests, rule, t.Team)
			counter(llmTokens, t.Input, rule, t.Team, "input")
			counter(llmTokens, t.Output, rule, t.Team, "output")
			counter(llmRefused, t.Refused, rule, t.Team)
		}
	}
}
