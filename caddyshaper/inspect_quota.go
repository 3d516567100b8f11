package caddyshaper

import (
	"time"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/llm/gateway"
)

// quotaTaken returns the usage of a quota, as pages show it.
func (l shownLine) quotaTaken(teams int) inspect.Quota {
	st := l.lines.ledger.Status(time.Now(), teams)
	shown := inspect.Quota{
		Provider: st.Provider, Level: st.Level, Reserved: st.Reserved, Capacity: st.Capacity,
		Others: teamShown(st.Others), LongestWait: st.LongestWait,
		Refused: st.Refused, Refusals: st.Refusals, Forfeited: st.Forfeited, Hint: st.Hint,
	}
	for _, part := range []struct {
		name  string
		used  uint64
		limit int
	}{
		{"requests", st.Minute.Requests, st.Quota.Requests},
		{"tokens", st.Minute.Tokens, st.Quota.Tokens},
		{"input tokens", st.Minute.Input, st.Quota.Input},
		{"output tokens", st.Minute.Output, st.Quota.Output},
	} {
		if part.limit > 0 {
			shown.Parts = append(shown.Parts, inspect.QuotaPart{Name: part.name, Used: part.used, Limit: uint64(part.limit)})
		}
	}
	for _, team := range st.Teams {
		shown.Teams = append(shown.Teams, teamShown(team))
	}
	return shown
}

func teamShown(t gateway.TeamStatus) inspect.QuotaTeam {
	return inspect.QuotaTeam{
		Team: t.Team, Weight: t.Weight, Waiting: t.Waiting,
		MinuteRequests: t.Minute.Requests, MinuteTokens: t.Minute.Tokens,
		HourRequests: t.Hour.Requests, HourTokens: t.Hour.Tokens,
		LongestWait: t.LongestWait, Refused: t.Refused,
	}
}
