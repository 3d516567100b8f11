package replicas_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/replicas"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// thousand is a quota of a call each 60 ms, and burst what a hundred of them cost.
var thousand = llm.Quota{Requests: 1000}

const (
	interval = 60 * time.Millisecond
	burst    = 6 * time.Second
)

// Wherever calls come in, they leave by one line, at the rate of one, and the store is asked once a second and replica.
func TestCallsOfAllReplicasLeaveByOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst})
		k := f.keeper()
		asked := f.asked()
		began := time.Since(f.begun)
		const calls = 999
		var replies []<-chan reply
		for i := range calls {
			replies = append(replies, f.call(i%3, fmt.Sprint("team-", i%2), fmt.Sprint(i)))
		}
		for _, r := range replies {
			got := <-r
			require.NoError(t, got.err)
			require.Equal(t, 200, got.status)
			require.Equal(t, "{}", got.body)
		}
		sent := f.got()
		require.Len(t, sent, calls)
		teams := map[string]int{}
		for i, s := range sent {
			require.Equal(t, k.number, s.by)
			require.Equal(t, max(began, k.begins[0].at+time.Duration(i+1)*interval), s.at)
			if teams[s.team]++; i == calls/2 {
				require.InDelta(t, teams["team-0"], teams["team-1"], 2, "each team has its turn, wherever its calls come in")
			}
		}
		f.once()
		require.LessOrEqual(t, f.asked()-asked, int64(3*(calls*interval/time.Second+1)), "a call needs no round trip")
		synctest.Wait()
		for _, n := range f.nodes {
			require.Zero(t, n.Bodies())
			require.Zero(t, n.State().Passing)
			if n != k {
				require.Equal(t, uint64(calls/3), n.State().Passed)
				require.Equal(t, addressOf(k.number), n.State().Keeper)
			}
		}
	})
}

// A death of the one that has the line. Calls in line go to the next, which begins within 4 s with full levels. A call that had left
// fails, and an answer that had begun breaks off.
func TestADeathOfTheKeeper(t *testing.T) {
	for name, inLine := range map[string]int{"with a long line": 200, "with a short line": 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst, answers: func(w http.ResponseWriter, r *http.Request) {
					switch r.Header.Get("X-Call") {
					case "begun":
						fmt.Fprint(w, "half of ")
						_ = http.NewResponseController(w).Flush()
						sleep(r, time.Hour)
					case "left", "its own":
						sleep(r, time.Hour)
					}
					fmt.Fprint(w, "{}")
				}})
				k := f.keeper()
				others := f.others(k)
				begun, left := f.call(others[0].number, "a", "begun"), f.call(others[1].number, "a", "left")
				time.Sleep(time.Second)
				var replies []<-chan reply
				for i := range inLine {
					replies = append(replies, f.call(others[i%2].number, "a", fmt.Sprint(i)))
				}
				own := f.call(k.number, "a", "its own")
				time.Sleep(713 * time.Millisecond)
				died := time.Since(f.begun)
				k.kill()
				got := <-begun
				require.Equal(t, 200, got.status)
				require.Equal(t, "half of ", got.body)
				require.Error(t, got.err, "it must not look like a whole answer")
				got = <-left
				require.Equal(t, http.StatusBadGateway, got.status)
				require.Error(t, (<-own).err)
				next := f.keeper()
				begins := next.begins[len(next.begins)-1]
				require.LessOrEqual(t, begins.at-died, 4*time.Second)
				require.True(t, begins.full)
				lost := 0
				for _, r := range replies {
					if got := <-r; got.status != 200 {
						t.Logf("%+v", got)
						lost++
					}
				}
				require.Zero(t, lost, "what was in line is lost")
				f.once()
				first := time.Duration(0)
				for _, s := range f.got() {
					if s.by == next.number && first == 0 {
						first = s.at
					}
				}
				if inLine == 200 {
					require.Equal(t, begins.at+interval, first, "the levels must be full")
				}
				require.Zero(t, next.Bodies())
			})
		})
	}
}

// At a Shutdown the levels go to the next replica, which goes on as if there had been one line. Nothing is lost, and no answer breaks.
func TestShutdownHandsTheLineOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst, teams: 150, answers: func(w http.ResponseWriter, r *http.Request) {
			sleep(r, 2*time.Second)
			fmt.Fprint(w, "{}")
		}})
		k := f.keeper()
		time.Sleep(burst) // The levels have drained.
		began := time.Since(f.begun)
		const calls = 250 // of which a hundred leave at once
		var replies []<-chan reply
		for i := range calls {
			replies = append(replies, f.call(i%3, fmt.Sprint("team-", i%2), fmt.Sprint(i)))
		}
		time.Sleep(1030 * time.Millisecond)
		require.NoError(t, k.Shutdown(t.Context()))
		over := time.Since(f.begun)
		for _, r := range replies {
			got := <-r
			require.NoError(t, got.err)
			require.Equal(t, 200, got.status)
		}
		f.once()
		sent := f.got()
		require.Len(t, sent, calls)
		pause := time.Duration(0) // while the line moves
		for i, s := range sent {
			due := began + time.Duration(max(0, i-99))*interval
			if s.at < over {
				require.Equal(t, due, s.at)
				require.Equal(t, k.number, s.by)
				continue
			}
			if pause == 0 {
				pause = s.at - due
				require.LessOrEqual(t, pause, 500*time.Millisecond)
			}
			require.NotEqual(t, k.number, s.by)
			require.LessOrEqual(t, due, s.at, "more than the bound")
			require.LessOrEqual(t, s.at, due+pause)
		}
		// What could not leave while the line moved did so then.
		require.Equal(t, began+(calls-100)*interval, sent[calls-1].at)
		records := 0
		for _, n := range f.nodes {
			for _, r := range n.records {
				require.Equal(t, 200, r.Status, "a call that moves is neither gone nor refused")
			}
			records += len(n.records)
		}
		require.Equal(t, calls, records)
		require.Zero(t, k.line.Stats().Waiting)
		require.Zero(t, k.line.Stats().Reserved)
		require.Zero(t, k.models[0].Ledger().Waiting())
		require.Len(t, f.keeper().begins, 1)
		require.Equal(t, begin{f.keeper().begins[0].at, true, false}, f.keeper().begins[0])
		got := <-f.call(k.number, "a", "later")
		require.Equal(t, 200, got.status, "until its end a replica passes calls on")
	})
}

// A replica that was stopped looks at the clock before each call that its line lets leave.
func TestNothingLeavesAfterTheLease(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply time.Duration // of the store
		calls int
	}{
		{"a quick store", 0, 200},
		{"a slow store", 400 * time.Millisecond, 200},
	} {
		for _, isStopped := range []bool{true, false} {
			t.Run(fmt.Sprint(tt.name, ", stopped ", isStopped), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, options{nodes: 1, quota: thousand, burst: burst, config: func(c *replicas.Config) {
						c.Wait = func() time.Duration { return time.Minute }
					}})
					f.store.SetDelay(0, tt.reply)
					k := f.keeper()
					time.Sleep(2 * time.Second)
					var replies []<-chan reply
					for i := range tt.calls {
						replies = append(replies, f.call(0, "a", fmt.Sprint(i)))
					}
					time.Sleep(2 * time.Second)
					if isStopped {
						k.Stop()
					} else {
						k.store.isCut.Store(true)
					}
					time.Sleep(10 * time.Second)
					ends := time.UnixMicro(f.store.KeepState("k").Ends).Sub(f.begun)
					sent := f.got()
					last := sent[len(sent)-1].at
					require.LessOrEqual(t, last, ends, "a call left when another could have had the line")
					if !isStopped || tt.reply == 0 { // Else it may not have heard of the latest lease.
						require.Greater(t, last, ends-2*interval, "the lease must be used to its end")
					}
					require.Less(t, len(sent), tt.calls)
					require.Zero(t, k.line.Stats().Reserved)
					if isStopped {
						return
					}
					k.store.isCut.Store(false)
					for _, r := range replies {
						require.Equal(t, 200, (<-r).status)
					}
					f.once()
				})
			})
		}
	}
}

// A replica that was stopped answers nothing, and its connections stay. What is in line there goes to the next.
func TestTheKeeperIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst})
		k := f.keeper()
		l := k.limits
		l.Rate = 0.1 // Nothing leaves there any more.
		require.NoError(t, k.line.SetLimits(l))
		var replies []<-chan reply
		for i, n := range f.others(k) {
			replies = append(replies, f.call(n.number, "a", fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		k.Stop()
		stopped := time.Since(f.begun)
		for _, r := range replies {
			got := <-r
			require.Equal(t, 200, got.status)
			require.LessOrEqual(t, got.at-stopped, 5*time.Second)
		}
		f.once()
		synctest.Wait()
		require.Zero(t, k.line.Stats().Waiting)
	})
}

// While nobody can have the line, calls wait, and in the end get 503. When the store can be asked again, they leave.
func TestTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst, config: func(c *replicas.Config) {
			c.Wait = func() time.Duration { return 8 * time.Second }
		}})
		f.keeper()
		f.away(true)
		away := time.Since(f.begun)
		time.Sleep(4 * time.Second)
		early, late := f.call(0, "a", "early"), make([]<-chan reply, 3)
		time.Sleep(6 * time.Second)
		for i := range late {
			late[i] = f.call(i, "a", fmt.Sprint("late ", i))
		}
		got := <-early
		require.Equal(t, 503, got.status)
		require.Equal(t, "3", got.header.Get("Retry-After"))
		require.Equal(t, away+12*time.Second, got.at, "a call waits for so long from when it came")
		f.away(false)
		back := time.Since(f.begun)
		for _, r := range late {
			got := <-r
			require.Equal(t, 200, got.status)
			require.LessOrEqual(t, got.at-back, 2*time.Second)
		}
		f.once()
		require.NoError(t, f.keeper().State().Err)
	})
}

// With a fallback each replica has a part of the quota while the store is away, and one has all of it afterwards.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst, config: func(c *replicas.Config) { c.Fallback = 3 }})
		f.keeper()
		time.Sleep(time.Second)
		f.away(true)
		time.Sleep(5 * time.Second)
		began := time.Since(f.begun)
		var replies []<-chan reply
		for i := range 900 {
			replies = append(replies, f.call(i%3, "a", fmt.Sprint(i)))
		}
		time.Sleep(10*time.Second + time.Millisecond)
		counts := map[int]int{}
		for _, s := range f.got() {
			counts[s.by]++
			require.Less(t, s.at, began+10*time.Second+time.Millisecond)
		}
		for _, n := range f.nodes {
			require.InDelta(t, float64(10*time.Second/(3*interval)), counts[n.number], 12, "its third of the rate")
			require.True(t, n.State().Apart)
			require.Equal(t, []int{3}, n.parts)
			require.Equal(t, begin{n.begins[len(n.begins)-1].at, false, true}, n.begins[len(n.begins)-1])
		}
		f.away(false)
		back := time.Since(f.begun)
		sent := len(f.got())
		k := f.keeper()
		for _, r := range replies {
			require.Equal(t, 200, (<-r).status)
		}
		for _, s := range f.got()[sent:] {
			if s.at > back+2*time.Second {
				require.Equal(t, k.number, s.by)
			}
		}
		for _, n := range f.nodes {
			require.Equal(t, []int{3, 1}, n.parts)
			require.False(t, n.State().Apart)
		}
		require.True(t, k.begins[len(k.begins)-1].full)
		f.once()
	})
}

// What was handed on before an outage is all of it, unless others may have had parts of the quota meanwhile.
func TestALineThatWasHandedOnBeforeAnOutage(t *testing.T) {
	for fallback, isFull := range map[int]bool{0: false, 2: true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst, config: func(c *replicas.Config) { c.Fallback = fallback }})
			k := f.keeper()
			other := f.others(k)[0]
			other.store.isCut.Store(true)
			require.NoError(t, k.Shutdown(t.Context()))
			k.kill()
			r := f.call(other.number, "a", "finds that the keeper has gone")
			time.Sleep(10 * time.Second)
			require.Equal(t, fallback > 0, other.State().Apart)
			other.store.isCut.Store(false)
			f.keeper()
			last := other.begins[len(other.begins)-1]
			require.True(t, last.handed)
			require.Equal(t, isFull, last.full)
			require.Equal(t, 200, (<-r).status)
		})
	}
}

// Whoever has the line goes on when the store has lost its state. If it is dead besides, the next waits for as long as its lease may
// last.
func TestTheStoreLosesItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst})
		k := f.keeper()
		for range 20 {
			time.Sleep(730 * time.Millisecond)
			f.store.Wipe()
			time.Sleep(2200 * time.Millisecond)
			require.True(t, k.State().Here)
			require.Len(t, k.begins, 1, "it must not begin anew")
		}
		time.Sleep(time.Second)
		for _, n := range f.others(k) {
			require.Equal(t, addressOf(k.number), n.State().Keeper)
			require.Equal(t, 200, (<-f.call(n.number, "a", fmt.Sprint(n.number))).status)
		}
		// It can't be asked by the one that has the line, which goes on to the end of its lease.
		k.store.isCut.Store(true)
		f.store.Wipe()
		lost := time.Since(f.begun)
		others := f.others(k)
		for !others[0].State().Here && !others[1].State().Here {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		require.GreaterOrEqual(t, time.Since(f.begun)-lost, 3*time.Second)
		require.LessOrEqual(t, time.Since(f.begun)-lost, 6*time.Second)
	})
}

// A replica that has lost the line, and finds the store without a state, leaves the key to the one that has the line now.
func TestWhoHasLostTheLineTakesNoKeyThatTheStoreHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
		k := f.keeper()
		for range 20 {
			k.store.isCut.Store(true)
			next := f.others(k)[0]
			for !next.State().Here {
				time.Sleep(170 * time.Millisecond)
				synctest.Wait()
			}
			begins := len(next.begins)
			waits := f.call(k.number, "a", fmt.Sprint(begins, next.number)) // So it asks more often.
			synctest.Wait()
			k.store.isCut.Store(false)
			f.store.Wipe()
			time.Sleep(4 * time.Second)
			require.Equal(t, 200, (<-waits).status)
			require.True(t, next.State().Here)
			require.Len(t, next.begins, begins, "it must not begin anew")
			k = next
		}
	})
}

// What was passed on stays where it is while the store has lost its state: the one that has the line may let it leave at any moment.
func TestALossOfStateRecallsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst})
		k := f.keeper()
		k.line.Hold(5 * time.Second)
		n := f.others(k)[0]
		r := f.call(n.number, "a", "passed")
		time.Sleep(500 * time.Millisecond)
		f.store.Wipe()
		require.Equal(t, 200, (<-r).status)
		require.Equal(t, uint64(1), n.State().Passed)
		require.Len(t, k.begins, 1)
	})
}

// A hold goes on with the next replica that has the line: as it is after a Shutdown, and as it was at the last renewal after a death.
func TestAHoldGoesOnAtTheNextReplica(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *node){
		"shutdown": func(t *testing.T, n *node) { require.NoError(t, n.Shutdown(t.Context())) },
		"death":    func(_ *testing.T, n *node) { n.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := time.Duration(0)
				f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst})
				f.answers = func(w http.ResponseWriter, _ *http.Request) {
					if refused == 0 {
						refused = time.Since(f.begun)
						w.Header().Set("Retry-After", "20")
						w.WriteHeader(http.StatusTooManyRequests)
					}
				}
				f.store.Step(time.Hour) // The clocks need not agree.
				k := f.keeper()
				first := f.call(f.others(k)[0].number, "a", "refused")
				time.Sleep(2 * time.Second)
				second := f.call(f.others(k)[1].number, "a", "another")
				time.Sleep(2 * time.Second)
				ends(t, k)
				require.Equal(t, 200, (<-second).status)
				sent := f.got()
				got := <-first
				require.GreaterOrEqual(t, sent[1].at, refused+20*time.Second)
				require.LessOrEqual(t, sent[1].at, refused+20*time.Second+2*interval)
				if name == "death" { // It had left, and whether the provider has refused it is not known here.
					require.Equal(t, http.StatusBadGateway, got.status)
					return
				}
				require.Equal(t, 200, got.status)
			})
		})
	}
}

// A caller that goes takes its call out of the line, wherever that is.
func TestACallerThatGoesLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
		k := f.keeper()
		k.line.Hold(time.Minute)
		for _, n := range f.nodes {
			ctx, leave := context.WithCancel(t.Context())
			gone := f.call(n.number, "a", "gone", func(r *http.Request) { *r = *r.WithContext(ctx) })
			time.Sleep(time.Millisecond) // A request waits only then.
			synctest.Wait()
			require.Equal(t, 1, k.line.Stats().Waiting)
			leave()
			require.ErrorIs(t, (<-gone).err, context.Canceled)
			synctest.Wait()
			require.Zero(t, k.line.Stats().Waiting)
			require.Zero(t, n.State().Passing)
			require.Zero(t, n.Bodies())
		}
		require.Len(t, k.records, 2)
	})
}

// The value in the store counts only if the one that keeps the key has written it.
func TestTheValueOfAnEarlierKeeperIsNotUsed(t *testing.T) {
	for name, value := range map[string]func(*fleet) []byte{
		"of an earlier one": func(f *fleet) []byte { return f.store.KeepState("k").Value },
		"damaged":           func(*fleet) []byte { return []byte("{") },
		"none":              func(*fleet) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, options{nodes: 2, quota: thousand, burst: burst})
				k := f.keeper()
				was := value(f)
				k.kill()
				f.store.SetKeep("k", shared.KeepState{ID: "a stranger", Lease: 3 * time.Second, Ends: f.store.Now() + 3_000_000, Value: was})
				time.Sleep(1500 * time.Millisecond)
				other := f.others(k)[0]
				require.Empty(t, other.State().Keeper)
				r := f.call(other.number, "a", "waits")
				time.Sleep(time.Second)
				require.Zero(t, other.State().Passed)
				require.Equal(t, 1, other.State().Waiting)
				require.Equal(t, 200, (<-r).status)
				last := other.begins[len(other.begins)-1]
				require.True(t, last.full)
				require.Equal(t, name == "of an earlier one", last.handed)
			})
		})
	}
}

// An address that leads to another replica, to nobody, or to a server that is no replica is found out. No call goes in circles, and what a
// stranger answers is not taken for the answer of a call, which is not sent again either.
func TestAnAddressThatLeadsElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name, leads string
		status      int
		want        string
	}{
		{"another replica", addressOf(2), http.StatusServiceUnavailable, `calls can't be passed to "node-2:80", which has the line: its address leads to another replica`},
		{"nobody", "nobody:80", http.StatusServiceUnavailable, `calls can't be passed to "nobody:80", which has the line: `},
		{"a server of HTTPS", "tls:443", http.StatusBadGateway, `its address leads to no replica, but to a server that answers with status 400`},
		{"the provider", "provider:80", http.StatusBadGateway, `its address leads to no replica, but to a server that answers with status 200`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var warnings atomic.Int64
				f := newFleet(t, options{nodes: 3, quota: thousand, burst: burst, config: func(c *replicas.Config) {
					c.Log = slog.New(slog.NewTextHandler(writerFunc(func(line []byte) {
						if strings.Contains(string(line), "calls can't be passed to the replica that has the line") {
							warnings.Add(1)
						}
					}), nil))
					c.Advertise = tt.leads
					c.Wait = func() time.Duration { return 5 * time.Second }
				}})
				var strange atomic.Int64
				stranger := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					strange.Add(1)
					w.Header().Set("X-Shaper-Replica-By", "somebody")
					if tt.leads == "tls:443" {
						w.WriteHeader(http.StatusBadRequest)
					}
				})}
				defer func() { _ = stranger.Close() }()
				for i, n := range f.nodes { // All are listened to, but only the address that all advertise is found.
					if addressOf(i) != tt.leads {
						l := f.network.listen(addressOf(i))
						go func() { _ = n.server.Serve(l) }()
					}
				}
				switch tt.leads {
				case "nobody:80":
					f.network.cut(tt.leads)
				case "tls:443", "provider:80":
					l := f.network.listen(tt.leads)
					go func() { _ = stranger.Serve(l) }()
				}
				k := f.keeper()
				for _, n := range f.nodes {
					got := <-f.call(n.number, "a", fmt.Sprint(n.number))
					if n == k || tt.leads == addressOf(k.number) {
						require.Equal(t, 200, got.status)
						continue
					}
					require.Equal(t, tt.status, got.status)
					require.ErrorContains(t, n.State().Err, tt.want)
					require.LessOrEqual(t, n.State().Passed, uint64(25))
				}
				require.Equal(t, int64(2), warnings.Load(), "each tells it once")
				require.LessOrEqual(t, strange.Load(), int64(2), "once for each call")
				f.once()
			})
		})
	}
}

type writerFunc func(line []byte)

func (w writerFunc) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}

// A Shutdown says that the line could not be handed on.
func TestShutdownWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, options{nodes: 1, quota: thousand, burst: burst})
		k := f.keeper()
		k.store.isCut.Store(true)
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.Shutdown(brief), context.DeadlineExceeded)
		require.EqualError(t, k.Shutdown(t.Context()), "replicas: the line could not be handed on before its lease ended: the store is away")
		require.LessOrEqual(t, time.Since(f.begun), 7*time.Second)
		require.NoError(t, f.start(1, options{quota: thousand}).Shutdown(t.Context()), "one without the line has nothing to hand on")
	})
}

func TestWrongSettings(t *testing.T) {
	for want, change := range map[string]func(*replicas.Config){
		"Config.Keeper is nil":                                  func(c *replicas.Config) { c.Keeper = nil },
		"Config.Key is empty":                                   func(c *replicas.Config) { c.Key = "" },
		"Config.Line is nil":                                    func(c *replicas.Config) { c.Line = nil },
		`Config.Advertise: "", must be a host and a port`:       func(c *replicas.Config) { c.Advertise = "" },
		`Config.Advertise: "host", must be a host and a port`:   func(c *replicas.Config) { c.Advertise = "host" },
		`Config.Advertise: ":80", must be a host and a port`:    func(c *replicas.Config) { c.Advertise = ":80" },
		`Config.Advertise: "host:0", must be a host and a port`: func(c *replicas.Config) { c.Advertise = "host:0" },
		`Config.Advertise: "host:x", must be a host and a port`: func(c *replicas.Config) { c.Advertise = "host:x" },
		`Config.Advertise: "0.0.0.0:80" is no address`:          func(c *replicas.Config) { c.Advertise = "0.0.0.0:80" },
		`Config.Advertise: "[::]:80" is no address`:             func(c *replicas.Config) { c.Advertise = "[::]:80" },
		`Config.Advertise: "host:65536", must be`:               func(c *replicas.Config) { c.Advertise = "host:65536" },
		`Config.Advertise: "a host:80", must be`:                func(c *replicas.Config) { c.Advertise = "a host:80" },
		`Config.Advertise: "{host}:80", must be`:                func(c *replicas.Config) { c.Advertise = "{host}:80" },
		`Config.Advertise: "a@host:80", must be`:                func(c *replicas.Config) { c.Advertise = "a@host:80" },
		`Config.Advertise: "[::%eth0]:80" is no address`:        func(c *replicas.Config) { c.Advertise = "[::%eth0]:80" },
		"Config.Fallback is -1, must not":                       func(c *replicas.Config) { c.Fallback = -1 },
		"Config.Bodies is -1, must not":                         func(c *replicas.Config) { c.Bodies = -1 },
	} {
		c := replicas.Config{Keeper: buckettest.NewMemory(), Key: "k", Advertise: "[::1]:80", Line: &node{}}
		change(&c)
		_, err := replicas.New(c)
		require.ErrorContains(t, err, "replicas: "+want)
	}
}

// sleep sleeps until the caller goes at most.
func sleep(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}
