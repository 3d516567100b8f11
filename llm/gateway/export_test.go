package gateway

import (
	"net/http"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// Follow lets a test say what a Ledger is about.
func (l *Ledger) Follow(provider string, q llm.Quota, line *shaper.Shaper) {
	l.follow(subject{provider: provider, quota: q, minute: 1e6, line: func() *shaper.Shaper { return line }})
}

// Enter lets a test enter a call that has left now and ended.
func (l *Ledger) Enter(team string, waited time.Duration, counted llm.Usage) {
	l.departed(team, waited, time.Now())
	l.ended(team, takenBy(counted), time.Now())
}

// Refuse lets a test enter a refusal.
func (l *Ledger) Refuse(team string) { l.refused(team, time.Now()) }

// Label lets a test say how many teams have a label.
func (l *Ledger) Label(teams int) { l.follow(subject{labels: teams}) }

// EstimateBy lets a test say what calls take.
func (g *Gateway) EstimateBy(f func(*http.Request) (llm.Usage, error)) {
	g.levels.Provider.Estimate = f
}

// Learn lets a test add a call whose answer had so many tokens.
func (l *Ledger) Learn(team, model string, output int) {
	l.learned.Learn(team, model, llm.Usage{Input: 1}, llm.Usage{Input: 1, Output: output}, 0)
}

// Likely returns how many tokens an answer is likely to have.
func (l *Ledger) Likely(team, model string) int {
	return l.learned.Estimate(team, model, llm.Usage{}).Output
}
