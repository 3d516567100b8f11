package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// stopping is a Caddyfile with a line that nobody leaves, and time for load balancers. It
// needs the addresses of admin endpoint and front, and that time.
const stopping = `{
	admin %[1]s
	shutdown_delay %[3]v
	grace_period 20s
}
http://%[2]s {
	shape_ready /ready
	handle {
		shape line {
			limits 1/h depth 100
		}
		respond "served"
	}
}
`

func TestALoadBalancerIsToldBeforeTheLineDrains(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*testing.T, *servers.Process, string){
		"SIGTERM": func(_ *testing.T, p *servers.Process, _ string) { p.Signal(syscall.SIGTERM) },
		"stop":    func(t *testing.T, _ *servers.Process, admin string) { start(t, "stop", "--address", admin) }, // It ends after p.
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for delay := 2 * time.Second; !tellsLoadBalancers(t, delay, stop); delay *= 2 {
				require.Less(t, delay, patience, "all must be asked within that time")
			}
		})
	}
}

// tellsLoadBalancers stops a process while a line is in it, and asks it what load balancers ask.
// It returns false if the test had not asked all before the delay of the end was over.
func tellsLoadBalancers(t *testing.T, delay time.Duration, stop func(*testing.T, *servers.Process, string)) bool {
	t.Helper()
	const inLine = 50
	admin, front := freeAddress(t), freeAddress(t)
	p := serve(t, fmt.Sprintf(stopping, admin, front, delay))
	ready, told := "http://"+front+"/ready", "http://"+admin+"/shape/ready"
	require.Equal(t, http.StatusOK, mustGet(t, ready).status)
	require.JSONEq(t, `{"ready":true}`, mustGet(t, ready).body)
	require.JSONEq(t, `{"ready":true,"waiting":0}`, mustGet(t, told).body)

	// waiting returns how many wait; -1 if nobody answers any more.
	waiting := func() int {
		var is struct{ Waiting int }
		a, err := get(told)
		if err != nil || json.Unmarshal([]byte(a.body), &is) != nil {
			return -1
		}
		return is.Waiting
	}
	statuses := getAll(1+inLine, "http://"+front)
	p.Until(func() bool { return waiting() == inLine }, "all wait")
	// Somebody who looks on must not keep the process from ending in good order.
	stream, err := client.Get("http://" + admin + "/shape/api/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)

	stopped := time.Now()
	isOver := func() bool { return time.Since(stopped) > delay*3/4 }
	stop(t, p, admin)
	last := func(url string) (a answer) {
		p.Until(func() bool {
			a, err = get(url)
			return err == nil && a.status == http.StatusServiceUnavailable || isOver()
		}, "it says that it is not ready")
		return a
	}
	byFront, byAdmin := last(ready), last(told)
	late := getAll(1, "http://"+front)
	p.Until(func() bool { return waiting() == inLine+1 || isOver() }, "one more waits")
	// They leave after all that, and go on leaving when the delay is over.
	faster, err := send(http.MethodPost, "http://"+admin+"/shape/api/limits",
		`{"source":"line","key":"127.0.0.1","limits":"10/s depth 100","for":"1h"}`, "Content-Type", "application/json")
	if isOver() {
		t.Logf("%v were too short", delay)
		return false
	}
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, faster.status, faster.body)
	require.JSONEq(t, `{"ready":false}`, byFront.body)
	require.Equal(t, http.StatusServiceUnavailable, byAdmin.status)

	require.Equal(t, map[int]int{http.StatusOK: 1 + inLine}, statuses())
	require.Equal(t, map[int]int{http.StatusOK: 1}, late(), "until the delay is over, requests are taken as before")
	require.Zero(t, p.Wait())
	return true
}
