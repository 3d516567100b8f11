package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// reverse_proxy 10.0.0.5:3000
func TestWhatIsAdmittedReachesTheUpstreamAsItWasSent(t *testing.T) {
	s := serveSite(t, "shape {\nlimits 1/h burst 3\n}\nreverse_proxy")
	body := strings.Repeat("a part of an upload, ", 10_000)
	got, err := send(http.MethodPost, s.url+"/orders?x=1", body, "Host", "shop.example")
	require.NoError(t, err)
	require.Equal(t, admitted, got.status)
	require.Equal(t, "accepted", got.body)
	require.Equal(t, "here", got.header.Get("Upstream"))
	came := s.upstream.arrivals()
	require.Len(t, came, 1)
	require.Equal(t, "POST shop.example/orders?x=1", came[0].line)
	require.Equal(t, body, came[0].body)
}

// order shape before reverse_proxy
func TestTheOrderOfTheLinesOfASiteDoesNotMatter(t *testing.T) {
	s := serveSite(t, "reverse_proxy\nshape {\nlimits 1/h burst 2\n}")
	require.Equal(t, []int{admitted, admitted, refused, refused}, s.statuses(4, "/"))
	require.Len(t, s.upstream.arrivals(), 2, "the upstream sees nothing of what is refused")
}

// shape /login { limits 5/min burst 5 }, at a rate that lets nobody more through meanwhile
func TestAMatcherShapesWhatItMatches(t *testing.T) {
	for name, login := range map[string]string{
		"block":    "shape /login {\nlimits 5/h burst 5\n}",
		"one line": "shape /login limits 5/h burst 5",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveSite(t, "shape {\nlimits 1/h burst 9\n}\n"+login+"\nreverse_proxy")
			begun := time.Now()
			require.Equal(t, []int{admitted, admitted, admitted, admitted, admitted}, s.statuses(5, "/login"))
			last := mustGet(t, s.url+"/login")
			require.Equal(t, refused, last.status)
			after, err := strconv.Atoi(last.header.Get("Retry-After"))
			require.NoError(t, err)
			require.LessOrEqual(t, after, 12*60)
			require.GreaterOrEqual(t, after, int((12*time.Minute - time.Since(begun)).Seconds()))
			require.Equal(t, []int{admitted, admitted, admitted, admitted, refused}, s.statuses(5, "/other"),
				"five of /login have passed the line of the site too")
		})
	}
}

// rules /etc/shaper.yaml
func TestRulesAreReloadedByThemselves(t *testing.T) {
	rules := writeFile(t, "shaper.yaml", "default: 1/h burst 1\n")
	s := serveSite(t, "shape {\nrules "+rules+"\n}\nreverse_proxy")
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/"))

	require.NoError(t, os.WriteFile(rules, []byte("default: 1/parsec\n"), 0o600))
	s.until(func() bool { return strings.Contains(s.log.String(), rules+":1:") }, "the log tells of the mistake")
	require.Equal(t, []int{refused}, s.statuses(1, "/"), "rules with a mistake change nothing")

	// The level is 1, so there is room for two.
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/h burst 3\n"), 0o600))
	s.until(func() bool { return mustGet(t, s.url).status == admitted }, "the new rules are in force")
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/"))
	require.Len(t, s.upstream.arrivals(), 3)
}

// key route client_ip
func TestEachRouteOfEachClientHasABucket(t *testing.T) {
	rules := writeFile(t, "shaper.yaml", "default: 1/h burst 3\nlimits:\n  GET %2Forders%2F{id}: 1/h burst 1\n")
	s := serveSite(t, "shape {\nrules "+rules+"\nkey route client_ip\n}\nreverse_proxy",
		"servers {\ntrusted_proxies static 127.0.0.1/32\n}")
	for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
		from := []string{"X-Forwarded-For", client}
		require.Equal(t, []int{admitted, refused}, s.statuses(2, "/orders/7", from...))
		require.Equal(t, []int{refused}, s.statuses(1, "/orders/8", from...), "it is the same route")
		require.Equal(t, []int{admitted, admitted, admitted, refused}, s.statuses(4, "/"+client, from...), "no route has this path")
		require.Equal(t, []int{refused}, s.statuses(1, "/elsewhere", from...))
	}
}

// key client_ip header:NAME host {any.placeholder}
func TestEachPartOfAKeyTellsRequestsApart(t *testing.T) {
	for key, c := range map[string]struct {
		options           []string
		one, other, equal []string // the path and header fields of requests; equal has the key of one
	}{
		"client_ip": {
			[]string{"servers {\ntrusted_proxies static 127.0.0.1/32\n}"},
			[]string{"/", "X-Forwarded-For", "192.0.2.1"}, []string{"/", "X-Forwarded-For", "192.0.2.2"}, []string{"/x", "X-Forwarded-For", "192.0.2.1"},
		},
		"header:X-Tenant":  {nil, []string{"/", "X-Tenant", "ann"}, []string{"/", "X-Tenant", "bob"}, []string{"/x", "X-Tenant", "ann"}},
		"host":             {nil, []string{"/", "Host", "a.example"}, []string{"/", "Host", "b.example"}, []string{"/x", "Host", "A.example:80"}},
		"{query.tenant}":   {nil, []string{"/?tenant=ann"}, []string{"/?tenant=bob"}, []string{"/x?tenant=ann&y=1"}},
		"{cookie.session}": {nil, []string{"/", "Cookie", "session=ann"}, []string{"/", "Cookie", "session=bob"}, []string{"/", "Cookie", "other=1; session=ann"}},
		"host header:X-Tenant": {
			nil,
			[]string{"/", "Host", "a.example", "X-Tenant", "ann"}, []string{"/", "Host", "b.example", "X-Tenant", "ann"}, []string{"/x", "Host", "a.example", "X-Tenant", "ann"},
		},
	} {
		t.Run(key, func(t *testing.T) {
			s := serveSite(t, "shape {\nlimits 1/h burst 1\nkey "+key+"\n}\nreverse_proxy", c.options...)
			require.Equal(t, []int{admitted, refused}, s.statuses(2, c.one[0], c.one[1:]...))
			require.Equal(t, []int{refused}, s.statuses(1, c.equal[0], c.equal[1:]...))
			require.Equal(t, []int{admitted, refused}, s.statuses(2, c.other[0], c.other[1:]...))
		})
	}
}

// A client that could name its own address would have a fresh bucket for each request.
func TestAnAddressIsNotBelievedWithoutTrustedProxies(t *testing.T) {
	s := serveSite(t, "shape {\nlimits 1/h burst 1\nkey client_ip\n}\nreverse_proxy")
	require.Equal(t, []int{admitted}, s.statuses(1, "/", "X-Forwarded-For", "192.0.2.1"))
	require.Equal(t, []int{refused}, s.statuses(1, "/", "X-Forwarded-For", "192.0.2.2"))
}

// site 200/s depth 500
func TestAllKeysTogetherLeaveAtTheRateOfTheSite(t *testing.T) {
	const n, rate = 60, 50
	s := serveSite(t, "shape {\nlimits 1000/s burst 100\nkey header:X-Tenant\nsite 50/s depth 500\n}\nreverse_proxy")
	begun := time.Now()
	var wait []func() map[int]int
	for i := range n {
		wait = append(wait, getAll(1, s.url, "X-Tenant", fmt.Sprint("tenant", i%7)))
	}
	for _, statuses := range wait {
		require.Equal(t, map[int]int{admitted: 1}, statuses())
	}
	came := s.upstream.arrivals()
	require.Len(t, came, n)
	slices.SortFunc(came, func(a, b arrival) int { return a.at.Compare(b.at) }) // They are noted when they are read.
	for i, a := range came {
		// They could come later, but none before its turn.
		require.GreaterOrEqual(t, a.at.Sub(begun), time.Duration(i)*time.Second/rate, i)
	}

	s = serveSite(t, "shape {\nlimits 1000/s burst 100\nkey header:X-Tenant\nsite 1/h burst 2\n}\nreverse_proxy")
	for i, want := range []int{admitted, admitted, refused, refused} {
		require.Equal(t, want, mustGet(t, s.url, "X-Tenant", strconv.Itoa(i)).status)
	}
}

// ratelimit_headers
func TestAnswersTellTheLimitIfTheyShall(t *testing.T) {
	s := serveSite(t, "shape shop {\nlimits 1/h burst 2\nratelimit_headers\n}\nreverse_proxy")
	first, _, last := mustGet(t, s.url), mustGet(t, s.url), mustGet(t, s.url)
	for _, a := range []answer{first, last} {
		require.Equal(t, `"shop";q=2;w=7200`, a.header.Get("RateLimit-Policy"))
	}
	require.Equal(t, admitted, first.status)
	require.Regexp(t, `^"shop";r=1;t=(3600|35\d\d)$`, first.header.Get("RateLimit"))
	require.Equal(t, refused, last.status)
	require.Equal(t, `"shop";r=0;t=`+last.header.Get("Retry-After"), last.header.Get("RateLimit"))

	s = serveSite(t, "shape {\nlimits 1/h burst 1\n}\nreverse_proxy")
	for _, want := range []int{admitted, refused} {
		a := mustGet(t, s.url)
		require.Equal(t, want, a.status)
		require.Empty(t, a.header.Values("RateLimit"))
		require.Empty(t, a.header.Values("RateLimit-Policy"))
	}
}

// state /var/lib/shaperd/levels.json
func TestLevelsOutliveTheProcess(t *testing.T) {
	state := filepath.Join(t.TempDir(), "levels.json")
	directives := "shape shop {\nlimits 1/h burst 2\nkey header:X-Tenant\nsite 1/h burst 3\nstate " + state + "\n}\nreverse_proxy"
	s := serveSite(t, directives)
	require.Equal(t, []int{admitted, admitted, refused}, s.statuses(3, "/", "X-Tenant", "ann"))
	s.stop()

	s = serveSite(t, directives)
	require.Equal(t, []int{refused}, s.statuses(1, "/", "X-Tenant", "ann"))
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/", "X-Tenant", "bob"), "by the limits of the site")
	require.Len(t, s.upstream.arrivals(), 1)
	s.stop()

	s = serveSite(t, strings.ReplaceAll(directives, "state "+state, ""))
	require.Equal(t, []int{admitted, admitted, refused}, s.statuses(3, "/", "X-Tenant", "ann"), "nothing is known without the file")
}
