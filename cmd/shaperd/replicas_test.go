package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// A storage is a server by which replicas agree who has the line.
type storage interface {
	Kill()
	Restart()
}

// storages start the servers for which there are URLs of stores.
var storages = map[string]func(*testing.T) (s storage, url string){
	"Redis": func(t *testing.T) (storage, string) {
		r := servers.StartRedis(t)
		return r, "redis://" + r.Addr
	},
	"PostgreSQL": func(t *testing.T) (storage, string) {
		p := servers.StartPostgres(t)
		return p, p.URL
	},
}

// A provider is an upstream that knows calls by their field X-Id, and answers them with the usage of one token.
type provider struct {
	*httptest.Server

	mu    sync.Mutex
	came  map[string]int // by ID
	at    []time.Time
	holds time.Duration // what the next call is told to wait
}

func startProvider(t *testing.T, more http.Handler) *provider {
	p := &provider{came: map[string]int{}}
	mux := http.NewServeMux()
	mux.Handle("/more/", more)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		p.mu.Lock()
		p.came[r.Header.Get("X-Id")]++
		p.at = append(p.at, time.Now())
		holds := p.holds
		p.holds = 0
		p.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if holds > 0 {
			w.Header().Set("Retry-After-Ms", fmt.Sprint(holds.Milliseconds()))
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":1,"completion_tokens":0}}`)
	})
	p.Server = httptest.NewServer(mux)
	realtime.Close(t, p.Server)
	return p
}

// arrivals returns when calls have come, and the IDs that have come more than once.
func (p *provider) arrivals() (at []time.Time, twice []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, n := range p.came {
		if n > 1 {
			twice = append(twice, id)
		}
	}
	return slices.Clone(p.at), twice
}

// others returns the replicas that do not have the line.
func others(r *servers.Replicas, keeper int) (all []*servers.Gateway) {
	for i, g := range r.All {
		if i != keeper {
			all = append(all, g)
		}
	}
	return all
}

// Whichever replica a call comes to, its caller sees what the provider sends, as from one gateway.
func TestACallThatIsPassedOnIsAsIfItWereNot(t *testing.T) {
	t.Parallel()
	streams := make(chan chan bool, 1) // of the next stream: it sends a piece for each value
	var seen http.Header
	reached, gone := make(chan bool, 1), make(chan bool, 1)
	more := http.NewServeMux()
	more.HandleFunc("/more/stream", func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("Content-Type", "text/event-stream")
		for range <-streams { // A piece is sent when the one before has come.
			_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	})
	more.HandleFunc("/more/upgrade", func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, both)
	})
	more.HandleFunc("/more/hangs", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // Only then the server notices who goes.
		reached <- true
		<-r.Context().Done()
		gone <- true
	})
	p := startProvider(t, more)
	_, url := storages["Redis"](t)
	r := servers.StartReplicas(t, 3, program, url, p.URL, "openai-compatible", "--requests 600 --burst 30s --wait 1m")
	keeper := r.Keeper()
	other := others(r, keeper)[0]

	// A caller knows the names of the fields by which replicas know each other's calls, and forges all of them.
	forged := map[string]string{"X-Team": "gold"}
	for _, name := range []string{"Call", "Team", "Keeper", "Left", "Moved"} {
		forged["X-Shaper-Replica-"+name] = "Zm9yZ2Vk"
	}
	for _, to := range r.All {
		request, err := http.NewRequest(http.MethodPost, to.URL+"/more/stream?a=%2F&b", strings.NewReader(`{"model":"m","stream":true}`))
		require.NoError(t, err)
		for name, value := range forged {
			request.Header.Set(name, value)
		}
		pieces := make(chan bool, 1)
		pieces <- true
		streams <- pieces
		answered, err := client.Do(request)
		require.NoError(t, err)
		require.Equal(t, 200, answered.StatusCode)
		require.Contains(t, answered.Header.Get("Server-Timing"), "shape;dur=")
		fields := map[string]int{}
		for name, values := range answered.Header {
			fields[name] = len(values)
		}
		delete(fields, "Server") // Caddy's proxy removes it, where it is Caddy's own.
		require.Equal(t, map[string]int{"Content-Type": 1, "Date": 1, "Server-Timing": 1, "Via": 1, "X-Ratelimit-Limit-Requests": 1, "X-Ratelimit-Remaining-Requests": 1, "X-Ratelimit-Reset-Requests": 1}, fields)
		lines := bufio.NewReader(answered.Body)
		for piece := range 5 {
			for _, want := range []string{"data: {\"choices\":[]}\n", "\n"} {
				line, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, want, line)
			}
			if piece < 4 {
				pieces <- true
			}
		}
		close(pieces)
		rest, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.NoError(t, answered.Body.Close())
		for name := range seen {
			require.NotRegexp(t, "(?i)^x-shaper-|^x-team$|^x-forwarded-|^via$", name)
		}
	}
	for _, used := range r.All[keeper].Usage(t, 3) {
		require.Equal(t, "gold", used.Team)
	}

	// What nobody has signed is not taken for a call that was passed on: it has not been sent, and says so.
	a, err := send(http.MethodPost, r.All[keeper].URL+"/v1/x", "{}", "X-Shaper-Replica-Signature", strings.Repeat("0", 64), "X-Shaper-Replica-Team", "Z29sZA==")
	require.NoError(t, err)
	require.Equal(t, http.StatusMisdirectedRequest, a.status)

	conn, err := net.Dial("tcp", strings.TrimPrefix(other.URL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /more/upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	answered, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, answered.StatusCode)
	for _, word := range []string{"there", "and back\n"} {
		_, err = io.WriteString(conn, word)
		require.NoError(t, err)
		echoed := make([]byte, len(word))
		_, err = io.ReadFull(reader, echoed)
		require.NoError(t, err)
		require.Equal(t, word, string(echoed))
	}

	// A caller who goes ends its call, at the provider and in line.
	ctx, leave := context.WithCancel(t.Context())
	call := func(path string) <-chan error {
		done := make(chan error, 1)
		go func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodPost, other.URL+path, strings.NewReader("{}"))
			answer, err := client.Do(request)
			if err == nil {
				err = fmt.Errorf("it is answered with %s", answer.Status)
				_ = answer.Body.Close()
			}
			done <- err
		}()
		return done
	}
	hangs := call("/more/hangs")
	<-reached
	p.mu.Lock()
	p.holds = 20 * time.Second
	p.mu.Unlock()
	held := make(chan answer, 1)
	go func() {
		a, _ := send(http.MethodPost, other.URL+"/v1/x", "{}")
		held <- a
	}()
	page := r.Page(keeper) + "/api/v1/buckets/openai-compatible/"
	r.All[keeper].Until(func() bool { return bucketAt(t, page).Waiting == 1 }, "the line is held")
	waits := call("/v1/x")
	r.All[keeper].Until(func() bool {
		select {
		case err := <-waits:
			require.NoError(t, err)
		default:
		}
		return bucketAt(t, page).Waiting == 2
	}, "a call waits")
	require.Contains(t, mustGet(t, r.Page(keeper)+"/api/v1/quota/openai-compatible/").body, "This replica has the line.")
	for _, g := range others(r, keeper) {
		i := slices.Index(r.All, g)
		require.Contains(t, mustGet(t, r.Page(i)+"/api/v1/quota/openai-compatible/").body, "The line is at "+strings.TrimPrefix(r.All[keeper].URL, "http://"))
		require.Equal(t, 200, mustGet(t, g.URL+"/-/ready").status)
	}
	leave()
	require.ErrorIs(t, <-hangs, context.Canceled)
	require.ErrorIs(t, <-waits, context.Canceled)
	<-gone
	r.All[keeper].Until(func() bool { return bucketAt(t, page).Waiting == 1 }, "its place is free")
	require.Regexp(t, `shaper_replica_passed_total\{rule="openai-compatible"\} [1-9]`, mustGet(t, r.Page(slices.Index(r.All, other))+"/metrics").body)
}

// A load is callers that send one call after another to any of some replicas.
type load struct {
	p    *provider
	stop chan bool
	all  sync.WaitGroup

	mu    sync.Mutex
	ended []ended
}

// An ended is a call that has ended.
type ended struct {
	status int // 0: its replica had ended before; lost: meanwhile
	body   string
	at     time.Time
}

// lost is for calls whose connection has broken.
const lost = -1

// startLoad starts so many callers.
func startLoad(p *provider, r *servers.Replicas, callers int) *load {
	l := &load{p: p, stop: make(chan bool)}
	urls := make([]string, len(r.All))
	for i, g := range r.All {
		urls[i] = g.URL
	}
	for caller := range callers {
		l.all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				a, err := send(http.MethodPost, urls[rand.N(len(urls))]+"/v1/chat/completions", `{"model":"m","max_tokens":5}`,
					"X-Id", fmt.Sprintf("%d-%d", caller, n), "X-Team", fmt.Sprint(caller%10))
				if err != nil {
					a.status = lost
					if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
						a.status = 0
					}
					time.Sleep(20 * time.Millisecond) // A load balancer would know that it has ended.
				}
				l.mu.Lock()
				l.ended = append(l.ended, ended{a.status, a.body, time.Now()})
				l.mu.Unlock()
			}
		})
	}
	return l
}

// end ends the load, and returns how many calls have ended with each status.
func (l *load) end() map[int]int {
	close(l.stop)
	l.all.Wait()
	counts := map[int]int{}
	for _, e := range l.ended {
		counts[e.status]++
	}
	return counts
}

// longestGap returns the longest time without an arrival between two instants.
func longestGap(at []time.Time, from, to time.Time) (longest time.Duration) {
	before := from
	for _, a := range append(slices.Clone(at), to) {
		if a.Before(from) || a.After(to) {
			continue
		}
		longest, before = max(longest, a.Sub(before)), a
	}
	return longest
}

// mostWithin returns the largest number of arrivals in any window of a length.
func mostWithin(at []time.Time, window time.Duration) (most int) {
	from := 0
	for i := range at {
		for at[i].Sub(at[from]) > window {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// Replicas that end, die and come back, and a store that does, neither let more through than one gateway would, nor send a call
// twice; and calls that have not left lose nothing but time.
func TestTheLineOutlivesTheReplicaThatHasIt(t *testing.T) {
	for name, start := range storages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, url := start(t)
			p := startProvider(t, http.NotFoundHandler())
			const perSecond, atOnce = 20, 20
			r := servers.StartReplicas(t, 3, program, url, p.URL, "openai-compatible", fmt.Sprintf("--requests %d --burst 1s --wait 1m", 60*perSecond))
			load := startLoad(p, r, 60)
			time.Sleep(3 * time.Second)
			gap := func(of string, most time.Duration, do func(), lasts time.Duration) {
				from := time.Now()
				do()
				time.Sleep(lasts)
				at, _ := p.arrivals()
				longest := longestGap(at, from, time.Now())
				t.Logf("%s: the longest time without a departure is %v", of, longest)
				require.Lessf(t, longest, most, "after %s", of)
			}
			keeper := r.Keeper()
			gap("the end of the keeper", 1500*time.Millisecond, func() {
				require.Zero(t, r.All[keeper].Stop(syscall.SIGTERM))
			}, 2*time.Second)
			r.Restart(keeper)
			r.All[0].Until(func() bool { return r.Keeper() >= 0 }, "a replica has the line")
			require.Zero(t, load.statuses(http.StatusBadGateway), "nothing that had left is lost by an end in good order")
			require.LessOrEqual(t, load.statuses(lost), 2, "net/http closes a connection whose first request comes as its server ends")

			keeper = r.Keeper()
			gap("the death of the keeper", 5*time.Second, r.All[keeper].Kill, 7*time.Second)
			r.Restart(keeper)
			store.Kill()
			time.Sleep(2 * time.Second)
			gap("the return of the store", 5*time.Second, store.Restart, 5*time.Second)

			counts := load.end()
			at, twice := p.arrivals()
			t.Logf("%v, %d arrivals", counts, len(at))
			require.Empty(t, twice, "no call is sent twice")
			delete(counts, 0)
			delete(counts, lost) // They were connected to the one that died.
			require.LessOrEqual(t, counts[http.StatusBadGateway], perSecond, "those that had left when the keeper died")
			delete(counts, http.StatusBadGateway)
			require.Greater(t, counts[http.StatusOK], 10*perSecond)
			delete(counts, http.StatusOK)
			require.Empty(t, counts)
			for _, window := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
				require.LessOrEqual(t, mostWithin(at, window), atOnce+int(window.Seconds()*perSecond)+2, "in %v", window)
			}
			for _, g := range r.All {
				told := regexp.MustCompile(`"logger":"shape.replicas"`).FindAllString(g.Output(), -1)
				require.NotEmpty(t, told)
				require.Less(t, len(told), 15, "each change is told once")
				require.NotContains(t, g.Output(), `"level":"error"`)
			}
		})
	}
}

// statuses returns how many calls have ended with a status so far.
func (l *load) statuses(of int) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.ended {
		if e.status == of {
			n++
		}
	}
	return n
}

// While the store is away calls wait, and those that have waited for long enough are told so; with a fallback each replica has its part
// of the quota.
func TestReplicasWithoutTheirStore(t *testing.T) {
	for name, start := range storages {
		for _, fallback := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fallback %v", name, fallback), func(t *testing.T) {
				t.Parallel()
				store, url := start(t)
				p := startProvider(t, http.NotFoundHandler())
				options := "--requests 1200 --burst 1s --wait 2s"
				if fallback {
					options += " --store-fallback 2"
				}
				r := servers.StartReplicas(t, 2, program, url, p.URL, "openai-compatible", options)
				store.Kill()
				r.All[0].Until(func() bool { return r.Keeper() < 0 }, "nobody has the line")
				time.Sleep(4 * time.Second) // Calls may have to wait for a lease that has not ended.
				before := len(p.came)
				load := startLoad(p, r, 40)
				time.Sleep(6 * time.Second)
				if fallback {
					require.Contains(t, mustGet(t, r.Page(0)+"/api/v1/quota/openai-compatible/").body, "this replica has a line of its own, with the quota divided by 2")
					store.Restart()
					r.All[0].Until(func() bool { return r.Keeper() >= 0 }, "a replica has the line")
				}
				counts := load.end()
				at, twice := p.arrivals()
				require.Empty(t, twice)
				t.Logf("%v, %d arrivals", counts, len(at))
				if fallback {
					require.Greater(t, len(at)-before, 60, "20 a second, by both together")
					require.LessOrEqual(t, mostWithin(at, 3*time.Second), 20+60+2)
					return
				}
				require.Zero(t, len(at)-before)
				require.Positive(t, counts[http.StatusServiceUnavailable])
				require.Len(t, counts, 1)
				a, err := send(http.MethodPost, r.All[0].URL+"/v1/x", "{}")
				require.NoError(t, err)
				require.Equal(t, http.StatusServiceUnavailable, a.status)
				require.Contains(t, a.body, `"type":"server_error"`)
				require.NotEmpty(t, a.header.Get("Retry-After"))
				store.Restart()
				back := time.Now()
				r.All[0].Until(func() bool {
					a, err := send(http.MethodPost, r.All[1].URL+"/v1/x", "{}")
					return err == nil && a.status == 200
				}, "a call leaves")
				t.Logf("a call leaves %v after the store's return", time.Since(back))
				require.Less(t, time.Since(back), 5*time.Second)
			})
		}
	}
}

// Other handlers, tokens and paths of a Caddyfile are as with one process. A replica that ends with none beside it answers those who wait.
func TestReplicasOfACaddyfile(t *testing.T) {
	t.Parallel()
	_, url := storages["Redis"](t)
	held := false
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "hold" && !held {
			held = true
			w.Header().Set("Retry-After", "50")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		fmt.Fprintf(w, "%s of %s, %q%q: %s", r.URL, r.Header.Get("X-Seen"), r.Header.Get("Authorization"), r.Header.Get("X-Shaper-Replica-Call"), body)
	}))
	realtime.Close(t, p)
	teams := writeFile(t, "teams", "a team: "+hashOf("a token")+"\n")
	var both []*servers.Process
	var urls []string
	for range 2 {
		address := freeAddress(t)
		urls = append(urls, "http://"+address)
		both = append(both, serve(t, fmt.Sprintf(`{
	admin off
	grace_period 4s
	default_bind 127.0.0.1
}
http://%s {
	header X-Front yes
	handle_path /openai/* {
		shape gate {
			quota openai-compatible {
				requests 600
			}
			wait 1m
			teams %s
			store %s
			advertise %s
		}
		reverse_proxy %s {
			header_up X-Seen {http.shape.team}
		}
	}
}
`, port(t, address), teams, url, address, p.URL)))
	}
	for _, to := range urls {
		a, err := send(http.MethodPost, to+"/openai/v1/x?a=%2F", "its body", "Authorization", "Bearer a token")
		require.NoError(t, err)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, `/v1/x?a=%2F of a team, """": its body`, a.body)
		require.Equal(t, []string{"yes"}, a.header["X-Front"])
		a, err = send(http.MethodPost, to+"/openai/v1/x", "its body", "Authorization", "Bearer another")
		require.NoError(t, err)
		require.Equal(t, 401, a.status)
		require.Equal(t, []string{"yes"}, a.header["X-Front"])
	}

	both[0].Kill()
	both[1].Says("this replica has the line")
	answers := make(chan answer, 2)
	for range 2 {
		go func() {
			a, err := send(http.MethodPost, urls[1]+"/openai/v1/x", "hold", "Authorization", "Bearer a token")
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	both[1].Says("the provider has refused a call with 429")
	require.Zero(t, both[1].Stop(syscall.SIGTERM))
	told := map[int]string{}
	for range 2 {
		a := <-answers
		told[a.status] = a.body
	}
	require.Contains(t, told[503], `"type":"server_error"`)
	require.Contains(t, told, 429, "the provider's, as it has not been asked again")
}
