package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
)

// Each call waits in the line of its model.
func TestACallWaitsInTheLineOfItsModel(t *testing.T) {
	const all, none = true, false
	for _, tt := range []struct {
		method, path, model string
		hasAny              bool // there is a quota for any model
		want                int  // of the lines; -1: refused
	}{
		{"POST", "/v1/messages", "claude-sonnet-4-5", none, 0},
		{"POST", "/v1/messages", "claude-haiku-4-5", none, 1},
		{"POST", "/v1/messages", "claude-sonnet", none, -1},
		{"POST", "/v1/messages", "claude-opus-4", none, -1},
		{"POST", "/v1/messages", "claude-opus-4", all, 2},
		{"POST", "/v1/messages", "", none, 0}, // the provider will say what is wrong
		{"POST", "/v1/messages", "", all, 2},
		{"GET", "/v1/models", "", none, 0},
		{"GET", "/v1/models/claude-opus-4", "", none, 0},
		{"POST", "/model/us.anthropic.claude-haiku-4-5:0/converse", "", none, 1},
		{"POST", "/model/claude-haiku-4-5:0/converse", "", none, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(answersOK)
			models := gateway.Models{}
			rigs := []*rig{}
			for _, pattern := range []string{"claude-sonnet-*", "*-haiku-*", ""} {
				g := newRig(t, "anthropic", llm.Quota{Requests: 60}, next, nil)
				if rigs = append(rigs, g); pattern != "" || tt.hasAny {
					models = append(models, gateway.Model{Pattern: pattern, Gateway: g.Gateway})
				}
			}
			w := httptest.NewRecorder()
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":100}`, tt.model)))
			if tt.method == "GET" {
				r.Body = http.NoBody
			}
			models.Wrap(next).ServeHTTP(w, r)
			if tt.want < 0 {
				require.Equal(t, 404, w.Code)
				require.JSONEq(t, `{"type":"error","error":{"type":"not_found_error","message":
					"The gateway has no quota for the model of the call; it has quotas for claude-sonnet-*, *-haiku-*."}}`, w.Body.String())
			}
			for i, g := range rigs {
				departed := uint64(0)
				if i == tt.want {
					departed = 1
				}
				require.Equal(t, departed, g.line.Stats().Departed, "%v, line %d", tt, i)
			}
		})
	}
}

// A team that goes on calling a model whose limit is used up takes nothing from the callers of another model.
func TestAModelThatIsUsedUpKeepsNoOtherWaiting(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				if strings.Contains(string(text), `"model":"used-up"`) {
					w.Header().Set("Retry-After", "60")
					w.Header().Set("Anthropic-Ratelimit-Requests-Limit", "600")
					w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "0")
					w.WriteHeader(429)
					return
				}
				answersOK(w, r)
			})
			q := llm.Quota{Requests: 600}
			of := newRig(t, "anthropic", q, next, nil)
			models := gateway.Models{{Pattern: "used-up", Gateway: newRig(t, "anthropic", q, next, nil).Gateway}, {Gateway: of.Gateway}}
			if together {
				models = models[1:]
			}
			h := models.Wrap(next)
			end := time.Now().Add(10 * time.Minute)
			answered := 0
			var both sync.WaitGroup
			for _, model := range []string{"used-up", "other"} {
				both.Go(func() {
					for time.Now().Before(end) {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/messages", strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":100}`, model))))
						if model == "other" && w.Code == 200 {
							answered++
						}
					}
				})
			}
			both.Wait()
			if together {
				require.Less(t, answered, 400)
				return
			}
			require.InDelta(t, 6300, answered, 1, "600 a minute, and 300 at once")
		})
	}
}
