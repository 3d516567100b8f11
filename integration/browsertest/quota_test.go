package browsertest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

// gateway is a scene of ten teams that share the quota of a provider.
func gateway(t *testing.T) *scene {
	s := newScene(t)
	u := made.Shaper(t, "20/s burst 30 depth 500", shaper.WithFairQueue(func(key string) int { return map[string]int{"gold": 4}[key] }))
	s.inspector.Add("openai", inspect.OfQuota(u, func(int) inspect.Quota {
		return inspect.Quota{
			Provider: "openai",
			Parts:    []inspect.QuotaPart{{Name: "requests", Used: 212, Limit: 500}, {Name: "tokens", Used: 83_700, Limit: 90_000}},
			Level:    0.41, Reserved: 0.14, Capacity: 0.5,
			Teams: []inspect.QuotaTeam{
				{Team: "gold", Weight: 4, Waiting: 21, MinuteRequests: 60, HourRequests: 3300, MinuteTokens: 33_480, HourTokens: 1_900_000, LongestWait: 2300 * time.Millisecond},
				{Team: "batch", Weight: 1, Waiting: 180, MinuteRequests: 20, HourRequests: 1100, MinuteTokens: 8370, HourTokens: 480_000, LongestWait: 97 * time.Second, Refused: 12},
				{Team: "search", Weight: 1, Waiting: 4, MinuteRequests: 19, HourRequests: 700, MinuteTokens: 8100, HourTokens: 300_000, LongestWait: 1200 * time.Millisecond},
				{Team: "<b>hostile\u202e</b>", Weight: 1, MinuteTokens: 500, HourTokens: 900},
			},
			Others:      inspect.QuotaTeam{Waiting: 3, MinuteTokens: 33_250, HourTokens: 800_000, HourRequests: 900, LongestWait: 900 * time.Millisecond},
			LongestWait: 97 * time.Second, Refused: 12, Forfeited: 41_000,
			Hint: "31 % of the tokens that calls had reserved in excess came back too late for others: a larger burst keeps them",
		}
	}))
	u.Hold(time.Hour)
	for key, n := range map[string]int{"gold": 21, "batch": 180, "search": 4} {
		s.lineUp(u, key, n)
	}
	u.Hold(0)
	s.share(u, map[string]int{"gold": 9, "batch": 4, "search": 3})
	return s
}

func TestAQuotaIsShownWithItsTeams(t *testing.T) {
	t.Parallel()
	s := gateway(t)
	p := s.openPage(t, "")
	teams := await(p, "the teams are there", `[...document.querySelectorAll("#quota-teams tbody .name")].map(name => name.textContent)`,
		func(teams []string) bool { return len(teams) == 5 })
	require.Equal(t, []string{"gold", "batch", "search", `<b>hostile\u{202e}</b>`, "all others"}, teams)
	require.Equal(t, "The scarcest is tokens: the last minute took 93 % of what a minute may.", eval[string](p, text("#quota-words")))
	require.Contains(t, eval[string](p, text("#quota-parts")), "212 of 500")
	require.Contains(t, eval[string](p, text("#quota-parts .scarcest")), "83,700 of 90,000")
	require.Contains(t, eval[string](p, text("#quota-parts .bucket")), "82 %")
	require.Equal(t, []float64{54, 28}, eval[[]float64](p, `[...document.querySelectorAll("#quota-parts .bucket rect")].map(r => parseFloat(r.getAttribute("width")))`),
		"what is reserved is hatched")
	require.Contains(t, eval[string](p, text("#quota-figures")), "0, as it should be")
	require.Contains(t, eval[string](p, text("#quota-hint")), "larger burst")
	const same = `(name => [...document.querySelectorAll("#quota-teams tbody tr, #turns-table tbody tr")].filter(row => row.querySelector(".name").textContent === name).map(row => row.querySelector(".swatch-of-turn").textContent))("batch")`
	await(p, "a team has one number in both tables", same, func(numbers []string) bool {
		return len(numbers) == 2 && numbers[0] == numbers[1] && numbers[0] != ""
	})
	story := p.shows("its costs are not taken for requests", "#story", "within the quota")
	require.NotContains(t, story, "one every")
	require.NotContains(t, eval[string](p, text("#tiles")), "drain rate")
	require.Equal(t, "Calls come as they like, and leave as the quota allows.", eval[string](p, text("#pace")))
	p.shows("the level is a share", `[data-tile="level"]`, "%")
	p.awaitTrue("no drain rate is beside requests", `!document.querySelector('.legend [data-series="rate"]').checkVisibility()`)
	p.harmless()
	p.readableByAll("quota")
	p.phone()
	require.Empty(t, eval[[]string](p, `[...document.querySelectorAll("#quota, #quota *")].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 100))`))
	require.Empty(t, p.violations())
	p.shoot("quota on a phone")
}
