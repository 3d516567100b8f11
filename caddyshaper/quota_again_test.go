package caddyshaper_test

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
)

// Caddy runs one route of a group for a request, so that a second attempt would meet none.
func TestACallIsSentAgainThroughTheRoutesOfAGroup(t *testing.T) {
	for name, behind := range map[string]string{"handle": "handle /v1/* {" + proxied + "\n}\nhandle {\n respond other 404\n}", "handle_path": "handle_path /v1/* {" + proxied + "\n}", "two rewrites": "rewrite /a /b\nrewrite /v1/x /v1/y\n" + proxied} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, strings.Replace(quotaShape("requests 600", ""), strings.TrimSpace(proxied), behind, 1))
			n := 0
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				if n++; n == 1 {
					w.Header().Set("Retry-After-Ms", "50")
					w.WriteHeader(429)
					return
				}
				_, _ = io.WriteString(w, "fine")
			})
			a := s.send(http.MethodPost, "/v1/x", strings.NewReader("{}"))
			require.Equal(t, "fine", a.body)
		})
	}
}

// The second attempt is rewritten as the first one was.
func TestACallIsRewrittenAgain(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nrewrite * /v1{uri}"+proxied+"\n}")
	var got []string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if got = append(got, r.URL.Path+" "+string(body)); len(got) == 1 {
			w.Header().Set("Retry-After-Ms", "50")
			w.WriteHeader(429)
		}
	})
	s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, []string{"/v1/chat {}", "/v1/chat {}"}, got)
}

// Placeholders read the request that Caddy has made, so the handlers behind a quota must get that.
func TestTheBodyIsReadByAPlaceholderBehindAQuota(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nrequest_header X-Body {http.request.body}"+proxied+"\n}")
	var got string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Header.Get("X-Body") + " | " + string(body)
	})
	a := s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, "{} | {}", got, a.status)
}

func TestTheMethodIsReadByAPlaceholderBehindAQuota(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nmethod PUT\nrequest_header X-Method {http.request.method}"+proxied+"\n}")
	var got string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.Header.Get("X-Method")
	})
	a := s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, "PUT PUT", got, a.status)
}

// Another quota that comes to the same limits leaves none of an operator's in force for good.
func TestAReloadOfAQuotaMakesNoChangePermanent(t *testing.T) {
	for name, q := range map[string][2]string{
		"bodies":       {"tokens 1000000", "tokens 1000000\n bodies 32MiB"},
		"second limit": {"tokens 1000000", "tokens 1000000\n requests 500"},
		"proportional": {"tokens 1000000", "tokens 2000000"},
	} {
		t.Run(name, func(t *testing.T) {
			shape := func(q string) string { return quotaShape(q, "") + controlled }
			s := serve(t, shape(q[0]))
			s.change("limits", map[string]string{"source": "line", "limits": "1000/s burst 50000 depth 9 wait 1min", "for": "2s"})
			s.reload(shape(q[1]))
			time.Sleep(2500 * time.Millisecond)
			require.NotEqual(t, "1000/s burst 50000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
		})
	}
}

// A hold goes to the lines that take the place of those that were held, and is told.
func TestAHoldIsToldOfTheLinesThatAReloadHasMade(t *testing.T) {
	for _, more := range []string{"50/s depth 5 inflight 3", "60/s depth 5"} {
		shape := func(limits string) string {
			return "shape line {\nlimits " + limits + "\nfair host\nstate " + filepath.Join(t.TempDir(), "s") + "\n}" + controlled + proxied
		}
		s := serve(t, shape("50/s depth 5"))
		s.change("hold", map[string]string{"source": "line", "for": "10m"})
		s.reload(shape(more))
		in, _ := s.changes()
		require.Equal(t, !caddyshaper.FairStats("line").HeldUntil.IsZero(), len(in) > 0, more)
	}
}
