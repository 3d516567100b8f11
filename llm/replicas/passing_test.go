package replicas_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm/replicas"
)

// A caller can't tell whether its call was passed on: status, fields, informational responses, bytes, and trailers are the same.
func TestAnAnswerIsTheSameAtEachReplica(t *testing.T) {
	for name, answers := range map[string]http.HandlerFunc{
		"a body": func(w http.ResponseWriter, r *http.Request) {
			w.Header()["X-Twice"] = []string{"a", "b"}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprint(w, r.URL.RawQuery, r.Host, r.Header["X-Forwarded-For"], r.Header["Expect"], r.Header["Accept-Encoding"], r.Header["User-Agent"])
		},
		"none": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"a stream with trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Trailer", "X-Sum")
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
			w.Header().Set("X-Sum", "10")
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		},
		"informational": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			w.Header().Set("X-Final", "1")
			fmt.Fprint(w, "{}")
		},
		"fields of replicas": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Shaper-Replica-Moved", "somebody")
			w.WriteHeader(http.StatusMisdirectedRequest)
		},
		"a refusal": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "100000")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, "no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, answers: answers})
				k := f.keeper()
				var replies [2]reply
				var hints [2][]string
				for i, n := range []*node{k, f.others(k)[0]} {
					time.Sleep(burst)
					replies[i] = <-f.call(n.number, "a", "", func(r *http.Request) {
						r.Host = "llm.example"
						r.Header.Set("X-Forwarded-For", "192.0.2.1")
						*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
							Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
								hints[i] = append(hints[i], fmt.Sprint(code, header["Link"], header["Server"]))
								return nil
							},
						}))
					})
					require.NoError(t, replies[i].err)
					require.Equal(t, "1", replies[i].header.Get(fmt.Sprint("X-Front-", n.number)))
					require.Equal(t, "1", replies[i].header.Get(fmt.Sprint("X-Front-", k.number)))
					for _, field := range []string{"Date", "Server-Timing", "X-Front-0", "X-Front-1"} {
						replies[i].header.Del(field)
					}
					replies[i].at = 0
					for field := range replies[i].header {
						require.NotContains(t, field, "Replica")
					}
				}
				require.Equal(t, replies[0], replies[1])
				require.Equal(t, hints[0], hints[1])
				if name == "informational" {
					require.Len(t, hints[0], 2)
				}
			})
		})
	}
}

// The time in line, wherever that is, and the time without a line are not taken off the timeouts of a server.
func TestTheTimeInLineIsNotTakenOffTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, timeout: 3 * time.Second, answers: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * time.Second)
			if r.Header.Get("X-Call") == "slow" {
				time.Sleep(2 * time.Second)
			}
			fmt.Fprint(w, r.Header.Get("X-Sum"))
		}})
		k := f.keeper()
		for _, n := range []*node{k, f.others(k)[0]} {
			k.line.Hold(10 * time.Second)
			require.Equal(t, 200, (<-f.call(n.number, "a", "held")).status)
			require.Error(t, (<-f.call(n.number, "a", "slow")).err, "they are for the time from there on")
			f.away(true)
			time.Sleep(5 * time.Second)
			r := f.call(n.number, "a", "away")
			time.Sleep(10 * time.Second)
			f.away(false)
			got := <-r
			require.NoError(t, got.err)
			require.Equal(t, 200, got.status)
			f.away(true)
			time.Sleep(5 * time.Second)
			require.Equal(t, 503, (<-f.call(n.number, "a", "away for long")).status)
			f.away(false)
			k = f.keeper()
		}
	})
}

// An upgraded connection goes through both replicas.
func TestAnUpgradeIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, answers: func(w http.ResponseWriter, _ *http.Request) {
			conn, both, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer func() { _ = conn.Close() }()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			line, _ := both.ReadString('\n')
			fmt.Fprint(conn, "echo ", line)
		}})
		k := f.keeper()
		for _, n := range []*node{k, f.others(k)[0]} {
			conn, err := f.network.dial(t.Context(), "caller", addressOf(n.number))
			require.NoError(t, err)
			_, err = fmt.Fprint(conn, "GET /v1/realtime HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			require.NoError(t, err)
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
			time.Sleep(10 * time.Second)
			_, err = fmt.Fprint(conn, "hello\n")
			require.NoError(t, err)
			text, err := reader.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "echo hello\n", text)
			_ = conn.Close()
		}
	})
}

// Nobody but a replica that knows the secret can say whose call it is, and no signature is good for another call.
func TestWhoseCallItIsMustBeSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
		k := f.keeper()
		other := f.others(k)[0]
		time.Sleep(burst)
		require.Equal(t, 200, (<-f.call(other.number, "a", "passed")).status)
		signed := f.lastCame()
		require.NotEmpty(t, signed.Header.Get("X-Shaper-Replica-Signature"))
		require.Empty(t, signed.Header.Get("Authorization"), "the token stays where the call has come in")
		number := 0
		for _, tt := range []struct {
			name   string
			at     *node
			change func(r *http.Request)
			status int
			team   string
		}{
			{"the same call again", k, func(*http.Request) {}, http.StatusBadGateway, ""},
			{"another call", k, func(r *http.Request) { r.Header.Set("X-Shaper-Replica-Call", "another") }, 421, ""},
			{"another team", k, func(r *http.Request) { r.Header.Set("X-Shaper-Replica-Team", "Yg==") }, 421, ""},
			{"another method", k, func(r *http.Request) { r.Method = http.MethodPut }, 421, ""},
			{"another path", k, func(r *http.Request) { r.URL.Path = "/v1/other" }, 421, ""},
			{"another query", k, func(r *http.Request) { r.URL.RawQuery = "x=2" }, 421, ""},
			{"another replica", k, func(r *http.Request) { r.Header.Set("X-Shaper-Replica-Keeper", "another") }, 421, ""},
			{"another signature", k, func(r *http.Request) { r.Header.Set("X-Shaper-Replica-Signature", strings.Repeat("00", 32)) }, 421, ""},
			{"no hexadecimal", k, func(r *http.Request) { r.Header.Set("X-Shaper-Replica-Signature", "x") }, 421, ""},
			{"at a replica without the line", other, func(*http.Request) {}, 421, ""},
			{"no signature", k, func(r *http.Request) { r.Header.Del("X-Shaper-Replica-Signature") }, 401, ""},
			{"no signature, and a token", k, func(r *http.Request) {
				r.Header.Del("X-Shaper-Replica-Signature")
				r.Header.Set("Authorization", "b")
			}, 200, "b"},
			{"no signature, and a token, at the other", other, func(r *http.Request) {
				r.Header.Del("X-Shaper-Replica-Signature")
				r.Header.Set("Authorization", "c")
			}, 200, "c"},
			{"a signature and a token", k, func(r *http.Request) {
				r.Header.Set("X-Shaper-Replica-Team", "Yg==")
				r.Header.Set("Authorization", "d")
			}, 421, ""},
		} {
			before := len(f.got())
			number++
			got := <-f.call(tt.at.number, "", fmt.Sprint(number), func(r *http.Request) {
				*r.URL = *signed.URL
				r.URL.Scheme, r.URL.Host = "http", addressOf(tt.at.number)
				r.Header = signed.Header.Clone()
				r.Header.Set("X-Call", fmt.Sprint(number))
				tt.change(r)
			})
			require.Equal(t, tt.status, got.status, tt.name)
			sent := f.got()[before:]
			if tt.team == "" {
				require.Empty(t, sent, tt.name)
				continue
			}
			require.Len(t, sent, 1, tt.name)
			require.Equal(t, tt.team, sent[0].team, tt.name)
		}
		// A secret is for one time of having the line.
		k.store.isCut.Store(true)
		time.Sleep(4 * time.Second)
		k.store.isCut.Store(false)
		other.store.isCut.Store(true)
		time.Sleep(10 * time.Second)
		require.True(t, k.State().Here)
		got := <-f.call(k.number, "", "old", func(r *http.Request) {
			*r.URL = *signed.URL
			r.URL.Scheme, r.URL.Host = "http", addressOf(k.number)
			r.Header = signed.Header.Clone()
		})
		require.Equal(t, 421, got.status)
	})
}

// A connection between two replicas breaks. The call takes its own place in line again, and it is not sent again if it has left.
func TestABrokenConnectionBetweenReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, answers: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Call") == "left" {
				time.Sleep(5 * time.Second) // It does not notice.
			}
			fmt.Fprint(w, "{}")
		}})
		k := f.keeper()
		other := f.others(k)[0]
		left := f.call(other.number, "a", "left")
		time.Sleep(time.Second)
		k.line.Hold(10 * time.Second)
		waits := f.call(other.number, "a", "waits")
		time.Sleep(time.Second)
		for range 5 {
			f.network.breaks(addressOf(other.number), addressOf(k.number))
			time.Sleep(1300 * time.Millisecond)
			require.Equal(t, 1, k.line.Stats().Waiting)
		}
		require.Equal(t, http.StatusBadGateway, (<-left).status)
		require.Equal(t, 200, (<-waits).status)
		f.once()
		require.Len(t, f.got(), 2)
		time.Sleep(time.Minute)
		f.call(other.number, "a", "later")
		time.Sleep(time.Minute)
		f.call(other.number, "a", "latest")
		time.Sleep(time.Second)
		require.Equal(t, 2, k.Left(), "those that have left long ago are forgotten")
	})
}

// A call comes again while its first connection is still open: one of both is in line.
func TestACallIsInLineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
		k := f.keeper()
		k.line.Hold(10 * time.Second)
		waits := f.call(f.others(k)[0].number, "a", "waits")
		time.Sleep(time.Second)
		signed := f.lastCame()
		again := f.call(k.number, "", "", func(r *http.Request) {
			r.Header, r.URL.Host = signed.Header.Clone(), addressOf(k.number)
		})
		time.Sleep(time.Second)
		require.Equal(t, 1, k.line.Stats().Waiting)
		require.Equal(t, 421, (<-again).status, "the other has taken its place, in turn")
		require.Equal(t, 200, (<-waits).status)
		f.once()
	})
}

// A call moves with its body, if that is still whole.
func TestTheBodyOfACallThatMoves(t *testing.T) {
	for _, tt := range []struct {
		name   string
		length int
		bodies int64
		status int
	}{
		{"none", 0, 0, 200},
		{"a short one", 100, 0, 200},
		{"a MiB", 1 << 20, 0, 200},
		{"more than a MiB", 1<<20 + 2, 0, http.StatusBadGateway},
		{"long", 5 << 20, 0, http.StatusBadGateway},
		{"no room", 100_000, 50_000, http.StatusBadGateway},
		{"just enough room", 100_000, 500_000, 200},
	} {
		for _, isPassed := range []bool{false, true} {
			for _, ends := range []string{"dies", "shuts down", "stays"} {
				if ends == "dies" && !isPassed {
					continue
				}
				t.Run(fmt.Sprintf("%s, passed %v, %s", tt.name, isPassed, ends), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						body := bytes.Repeat([]byte("0123456789"), tt.length/10+1)[:tt.length]
						f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, config: func(c *replicas.Config) { c.Bodies = tt.bodies }})
						f.answers = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Sum")) }
						k := f.keeper()
						number := k.number
						if isPassed {
							number = f.others(k)[0].number
						}
						k.line.Hold(10 * time.Second)
						r := f.call(number, "a", "", func(r *http.Request) {
							r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(tt.length)
							if tt.length == 0 {
								r.Body = http.NoBody
							}
						})
						time.Sleep(time.Second)
						require.LessOrEqual(t, f.nodes[number].Bodies(), int64(max(tt.bodies, 2<<20)))
						want := tt.status
						switch ends {
						case "dies":
							k.kill()
						case "shuts down":
							require.NoError(t, k.Shutdown(t.Context()))
							if !isPassed && tt.length > 1<<20 {
								want = 200 // The rest is still on its way from the caller.
							}
						default:
							want = 200
						}
						got := <-r
						if got.err == nil || want == 200 || tt.length <= 1<<20 { // Else the connection may end before the caller has sent all.
							require.NoError(t, got.err)
							require.Equal(t, want, got.status)
						}
						if want == 200 {
							require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(body)), got.body)
						}
						synctest.Wait()
						require.Zero(t, f.nodes[number].Bodies())
						require.Zero(t, k.line.Stats().Waiting)
					})
				})
			}
		}
	}
}

// A call that the provider has refused, and that is in line again, moves too.
func TestACallInLineAgainMoves(t *testing.T) {
	for _, isPassed := range []bool{false, true} {
		t.Run(fmt.Sprint("passed ", isPassed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refuses atomic.Bool
				refuses.Store(true)
				f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, answers: func(w http.ResponseWriter, _ *http.Request) {
					if refuses.Load() {
						w.Header().Set("Retry-After", "5")
						w.WriteHeader(http.StatusTooManyRequests)
						return
					}
					fmt.Fprint(w, "{}")
				}})
				k := f.keeper()
				number := k.number
				if isPassed {
					number = f.others(k)[0].number
				}
				r := f.call(number, "a", "")
				time.Sleep(time.Second)
				refuses.Store(false)
				require.NoError(t, k.Shutdown(t.Context()))
				got := <-r
				require.NoError(t, got.err)
				require.Equal(t, 200, got.status)
				require.Equal(t, "{}", got.body)
				require.Empty(t, got.header.Get("Retry-After"))
				sent := f.got()
				require.Len(t, sent, 2)
				require.NotEqual(t, k.number, sent[1].by)
				synctest.Wait()
				require.Zero(t, k.line.Stats().Reserved)
				require.Empty(t, k.records)
			})
		})
	}
}

// A body that fails to come is the caller's fault, and is refused as without replicas.
func TestABodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
		k := f.keeper()
		other := f.others(k)[0]
		time.Sleep(burst)
		other.store.isCut.Store(true)
		time.Sleep(5 * time.Second)
		for _, n := range []*node{k, other} {
			handler := n.Wrap(n.models.Wrap(http.HandlerFunc(n.provider)))
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(strings.Repeat("x", 1000)))
			r.Header.Set("Authorization", "a")
			r.Body = http.MaxBytesReader(w, r.Body, 500)
			handler.ServeHTTP(w, r)
			require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
		}
		require.Equal(t, addressOf(k.number), other.State().Keeper, "it is not forgotten for that, although the store can't be asked")
		require.Empty(t, f.got())
	})
}
