package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// shop is a Caddyfile with two limits, the page below a path of the front, and a token. It
// needs the addresses of admin endpoint and front.
const shop = `{
	admin %[1]s
	grace_period 20s
}
http://:{$PORT:%[2]s} {
	bind 127.0.0.1
	handle_path /shaper* {
		shape_inspect {
			title "The shop"
			hosts shop.example
			control open-sesame-open-sesame
		}
	}
	handle /login {
		shape login {
			limits 1/h burst 3
			key header:Shop header:Client
		}
		respond "welcome"
	}
	handle {
		shape shop {
			limits 1000/s burst 50 depth 100
			site 1000/s depth 100
		}
		respond "served"
	}
}
`

// A shopServer is a shaperd that serves shop.
type shopServer struct {
	*servers.Process
	t                  *testing.T
	file, admin, front string
}

func serveShop(t *testing.T) shopServer {
	t.Helper()
	admin, front := freeAddress(t), freeAddress(t)
	s := shopServer{t: t, admin: "http://" + admin, front: "http://" + front}
	s.file = writeFile(t, "Caddyfile", fmt.Sprintf(shop, admin, port(t, front)[1:]))
	s.Process = run(t, s.file)
	return s
}

// reload replaces texts of the Caddyfile, given in pairs, and reloads it.
func (s shopServer) reload(pairs ...string) {
	s.t.Helper()
	text, err := os.ReadFile(s.file)
	require.NoError(s.t, err)
	changed := strings.NewReplacer(pairs...).Replace(string(text))
	require.NotEqual(s.t, string(text), changed)
	require.NoError(s.t, os.WriteFile(s.file, []byte(changed), 0o600))
	status, told := do(s.t, "reload", "--config", s.file)
	require.Zero(s.t, status, told)
}

// sources returns the names of what an API shows.
func sources(t *testing.T, api string) (names []string) {
	t.Helper()
	var list struct{ Sources []struct{ Name string } }
	a := mustGet(t, api+"/api/buckets")
	require.NoError(t, json.Unmarshal([]byte(a.body), &list), a.body)
	for _, s := range list.Sources {
		names = append(names, s.Name)
	}
	return names
}

func TestThePage(t *testing.T) {
	s := serveShop(t)
	for name, test := range map[string]func(*testing.T, shopServer){
		"below its path and at the admin endpoint": thePageIsBelowItsPathAndAtTheAdminEndpoint,
		"keys that are paths":                      keysThatArePathsAreFound,
		"who may look":                             onlyNamedHostsAndTheAdminEndpointMayLook,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

func thePageIsBelowItsPathAndAtTheAdminEndpoint(t *testing.T, s shopServer) {
	for place, title := range map[string]string{s.front + "/shaper": "The shop", s.admin + "/shape": "Shapers"} {
		bare := mustGet(t, place+"?sort=key")
		require.Contains(t, []int{http.StatusPermanentRedirect, http.StatusMovedPermanently, http.StatusTemporaryRedirect}, bare.status, place)
		require.Regexp(t, `/shaper?/\?sort=key$`, bare.header.Get("Location"))
		page := mustGet(t, place+"/?sort=key")
		require.Equal(t, http.StatusOK, page.status)
		require.Contains(t, page.body, "<title>"+title+"</title>")
		require.Equal(t, http.StatusOK, mustGet(t, place+"/web/app.js").status)
		require.Equal(t, []string{"login", "shop", "shop/site"}, sources(t, place))
		require.Equal(t, http.StatusNotFound, mustGet(t, place+"/nothing").status)
	}
}

// Were the path taken as Caddy has cleaned it, a client whose key is a path could be seen
// under another's name.
func keysThatArePathsAreFound(t *testing.T, s shopServer) {
	for client, key := range map[string]string{"": "-/-", "..": "-/..", "a/b": "-/a%2Fb", "/..": "-/%2F..", "/api/buckets/": "-/%2Fapi%2Fbuckets%2F"} {
		require.Equal(t, http.StatusOK, mustGet(t, s.front+"/login", "Client", client).status)
		id := url.PathEscape(key)
		for _, place := range []string{s.front + "/shaper", s.admin + "/shape"} {
			var detail struct{ Bucket struct{ Key string } }
			a := mustGet(t, place+"/api/buckets/login/"+id)
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.NoError(t, json.Unmarshal([]byte(a.body), &detail))
			require.Equal(t, key, detail.Bucket.Key, place)
		}
	}
}

func onlyNamedHostsAndTheAdminEndpointMayLook(t *testing.T, s shopServer) {
	require.Equal(t, http.StatusOK, mustGet(t, s.front+"/shaper/", "Host", "shop.example").status)
	require.Equal(t, http.StatusMisdirectedRequest, mustGet(t, s.front+"/shaper/", "Host", "evil.example").status)
	require.Equal(t, http.StatusForbidden, mustGet(t, s.admin+"/shape/", "Host", "evil.example").status)
	require.Equal(t, http.StatusForbidden, mustGet(t, s.admin+"/shape/", "Origin", "http://evil.example").status)

	hold := `{"source":"shop/site","for":"1s"}`
	post := func(place string, fields ...string) int {
		a, err := send(http.MethodPost, place+"/api/hold", hold, append(fields, "Content-Type", "application/json")...)
		require.NoError(t, err)
		return a.status
	}
	require.Equal(t, http.StatusUnauthorized, post(s.front+"/shaper"))
	require.Equal(t, http.StatusUnauthorized, post(s.front+"/shaper", "Authorization", "Bearer wrong"))
	require.Equal(t, http.StatusOK, post(s.front+"/shaper", "Authorization", "Bearer open-sesame-open-sesame"))
	require.Equal(t, http.StatusOK, post(s.admin+"/shape"), "whoever may replace the whole configuration needs no token")
	s.Says("a bucket was changed")
	require.NotContains(t, s.Output(), "open-sesame-open-sesame\"", "the token is a secret")
}

func TestThePageFollowsReloads(t *testing.T) {
	s := serveShop(t)
	require.Equal(t, http.StatusOK, mustGet(t, s.front+"/login", "Client", "Ann").status)
	a, err := send(http.MethodPost, s.admin+"/shape/api/limits", `{"source":"login","key":"-/Ann","limits":"2/h","for":"10m"}`, "Content-Type", "application/json")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status, a.body)
	// A stream of the old configuration must not live as long as its reader.
	for _, place := range []string{s.front + "/shaper", s.admin + "/shape"} {
		stream, err := client.Get(place + "/api/events")
		require.NoError(t, err)
		defer stream.Body.Close()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
			}
		}()
		defer func() {
			select {
			case <-ended:
			case <-time.After(patience):
				require.Fail(t, "a stream goes on", place)
			}
		}()
	}

	s.reload("shape login", "shape entry", "site 1000/s", "candidate 1/s\n\t\t\t#")
	for _, place := range []string{s.front + "/shaper", s.admin + "/shape"} {
		require.ElementsMatch(t, []string{"entry", "shop", "shop/candidate"}, sources(t, place))
	}
	s.reload("shape entry", "shape login")
	require.Equal(t, http.StatusOK, mustGet(t, s.front+"/login", "Client", "Ann").status)
	require.Contains(t, mustGet(t, s.admin+"/shape/api/buckets/login/-%2FAnn").body, `"limits":"1/h burst 3 depth 0"`, "the change must have ended with what it was made of")

	a, err = send(http.MethodPost, s.admin+"/shape/api/limits", `{"source":"login","key":"-/Ann","limits":"2/h","for":"10m"}`, "Content-Type", "application/json")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status, a.body)
	s.reload("served", "served again")
	require.Contains(t, mustGet(t, s.admin+"/shape/api/buckets/login/-%2FAnn").body, `"limits":"2/h depth 0"`, "a reload of something else ends no change")
	var detail struct{ Bucket struct{ Departed int } }
	require.NoError(t, json.Unmarshal([]byte(mustGet(t, s.front+"/shaper/api/buckets/login/-%2FAnn").body), &detail))
	require.Equal(t, 2, detail.Bucket.Departed)
}
