package replicas_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm/replicas"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// An openLine is a line in which a call waits until it is let go.
type openLine struct{}

func (openLine) Save() ([]byte, error)                   { return nil, nil }
func (openLine) Holds() ([]byte, error)                  { return nil, nil }
func (openLine) Begin([]byte, time.Duration, bool) error { return nil }
func (openLine) Part(int) error                          { return nil }

// The same over TCP, with the Transport that replicas have: a call is passed on, its caller may go, and a death is noticed.
func TestReplicasOverTCP(t *testing.T) {
	t.Parallel()
	store := buckettest.NewMemory()
	// Another has handed the line on before, so nobody waits for a lease that was lost.
	store.SetKeep("k", shared.KeepState{Value: []byte("{}")})
	var sent atomic.Int64
	waits, goes := make(chan string, 10), make(chan bool)
	var nodes [2]*replicas.Replica
	var servers [2]*httptest.Server
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		r, err := replicas.New(replicas.Config{Keeper: store, Key: "k", Advertise: l.Addr().String(), Line: openLine{}})
		require.NoError(t, err)
		nodes[i] = r
		servers[i] = httptest.NewUnstartedServer(r.Wrap(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			waits <- string(body)
			select {
			case <-goes:
			case <-req.Context().Done():
				waits <- "gone"
				return
			}
			if r.Leaves(w, req) == nil {
				sent.Add(1)
				fmt.Fprintf(w, "%d: %s", i, body)
			}
		})))
		_ = servers[i].Listener.Close()
		servers[i].Listener = l
		servers[i].Start()
		t.Cleanup(func() {
			servers[i].CloseClientConnections()
			servers[i].Close()
			require.NoError(t, r.Close())
		})
	}
	require.Eventually(t, func() bool {
		return nodes[0].State().Here != nodes[1].State().Here && nodes[0].State().Keeper == nodes[1].State().Keeper
	}, 10*time.Second, 10*time.Millisecond)
	keeper := 0
	if nodes[1].State().Here {
		keeper = 1
	}
	other := 1 - keeper
	client := &http.Client{}
	call := func(body string) <-chan string {
		answers := make(chan string, 1)
		go func() {
			response, err := client.Post(servers[other].URL, "text/plain", strings.NewReader(body))
			if err != nil {
				answers <- err.Error()
				return
			}
			defer func() { _ = response.Body.Close() }()
			text, _ := io.ReadAll(response.Body)
			answers <- fmt.Sprint(response.StatusCode, " ", string(text))
		}()
		return answers
	}
	first := call("first")
	require.Equal(t, "first", <-waits)
	goes <- true
	require.Equal(t, fmt.Sprint("200 ", keeper, ": first"), <-first)

	conn, err := net.Dial("tcp", servers[other].Listener.Addr().String())
	require.NoError(t, err)
	_, err = fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nleaves")
	require.NoError(t, err)
	require.Equal(t, "leaves", <-waits)
	require.NoError(t, conn.Close())
	require.Equal(t, "gone", <-waits)

	second := call("second")
	require.Equal(t, "second", <-waits)
	died := time.Now()
	nodes[keeper].Stop()
	servers[keeper].CloseClientConnections()
	_ = servers[keeper].Listener.Close()
	require.Equal(t, "gone", <-waits)
	require.Equal(t, "second", <-waits)
	require.Less(t, time.Since(died), 5*time.Second)
	goes <- true
	require.Equal(t, fmt.Sprint("200 ", other, ": second"), <-second)
	require.Equal(t, int64(2), sent.Load())
	client.CloseIdleConnections()
}
