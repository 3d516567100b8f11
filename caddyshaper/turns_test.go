package caddyshaper_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const inspected = "shape_inspect /shaper* {\n hosts shop.example\n}\n"

// The page shows whose turn it is, and a reload that changes weights goes on with it.
func TestThePageShowsWhoseTurnItIs(t *testing.T) {
	s := serve(t, inspected+fairShape("1/h", "weight gold 4"))
	require.Equal(t, 200, s.get("/0").status)
	leave := s.inLineWith([]string{"X-Team", "gold"}, "line", "/g1", "/g2")
	s.reload(inspected + fairShape("1/h", "weight silver 2"))
	leaveToo := s.inLineWith([]string{"X-Team", "silver"}, "line", "/s1")
	var turns struct {
		Keys, Waiting int
		Rows          []struct {
			Key             string
			Weight, Waiting int
		}
	}
	a := s.get("/shaper/api/v1/keys/line/")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &turns))
	require.Equal(t, 2, turns.Keys)
	require.Equal(t, 3, turns.Waiting)
	require.Equal(t, "gold", turns.Rows[0].Key)
	require.Equal(t, 4, turns.Rows[0].Weight, "that of before the reload, until its line is empty")
	require.Equal(t, "silver", turns.Rows[1].Key)
	require.Equal(t, 2, turns.Rows[1].Weight)
	s.reload(inspected + fairShape("1000/s", ""))
	for _, a := range append(leave(), leaveToo()...) {
		require.Equal(t, 200, a.status)
	}
}

// The page of a gateway shows what was taken of the quota, and by whom.
func TestThePageShowsWhatWasTakenOfAQuota(t *testing.T) {
	s := serve(t, inspected+quotaShape("requests 60\n tokens 6000\n output 3000", "depth 9\n wait 24h"))
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":500,"completion_tokens":700}}`)
	})
	for range 2 {
		require.Equal(t, 200, s.send(http.MethodPost, "/0", strings.NewReader(`{"model":"m","max_tokens":800}`), "X-Team", "gold").status)
	}
	var quota struct {
		Provider string
		Parts    []struct {
			Name        string
			Used, Limit int
		}
		Scarcest string
		Level    float64
		Teams    []struct {
			Team     string
			Requests int `json:"hour_requests"`
			Tokens   int `json:"minute_tokens"`
		}
		Refusals int `json:"provider_refusals"`
	}
	a := s.get("/shaper/api/v1/quota/line/")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &quota))
	require.Equal(t, "openai-compatible", quota.Provider)
	var parts []string
	for _, part := range quota.Parts {
		parts = append(parts, fmt.Sprintf("%s %d of %d", part.Name, part.Used, part.Limit))
	}
	require.Equal(t, []string{"requests 2 of 60", "tokens 2400 of 6000", "output tokens 1400 of 3000"}, parts)
	require.Equal(t, "output tokens", quota.Scarcest)
	require.Positive(t, quota.Level)
	require.Len(t, quota.Teams, 1)
	require.Equal(t, "gold", quota.Teams[0].Team)
	require.Equal(t, 2, quota.Teams[0].Requests)
	require.Equal(t, 2400, quota.Teams[0].Tokens)
	require.Zero(t, quota.Refusals)
}
