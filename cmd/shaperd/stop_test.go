package main_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// stopping is a Caddyfile with a line that leaves slowly, and time for load balancers. It
// needs the addresses of admin endpoint and front.
const stopping = `{
	admin %[1]s
	shutdown_delay 2s
	grace_period 20s
}
http://%[2]s {
	shape_ready /ready
	handle {
		shape {
			limits 10/s depth 100
		}
		respond "served"
	}
}
`

func TestALoadBalancerIsToldBeforeTheLineDrains(t *testing.T) {
	for name, stop := range map[string]func(*testing.T, *process, string){
		"SIGTERM": func(_ *testing.T, p *process, _ string) { p.interrupt(syscall.SIGTERM) },
		"stop":    func(t *testing.T, _ *process, admin string) { start(t, "stop", "--address", admin) }, // It ends after p.
	} {
		t.Run(name, func(t *testing.T) {
			admin, front := freeAddress(t), freeAddress(t)
			p := serve(t, fmt.Sprintf(stopping, admin, front))
			ready, told := "http://"+front+"/ready", "http://"+admin+"/shape/ready"
			require.Equal(t, http.StatusOK, mustGet(t, ready).status)
			require.JSONEq(t, `{"ready":true}`, mustGet(t, ready).body)
			require.JSONEq(t, `{"ready":true,"waiting":0}`, mustGet(t, told).body)

			statuses := getAll(50, "http://"+front)
			p.until(func() bool { return waiting(t, told) >= 40 })
			// Somebody who looks on must not keep the process from ending in good order.
			stream, err := client.Get("http://" + admin + "/shape/api/events")
			require.NoError(t, err)
			defer stream.Body.Close()
			require.Equal(t, http.StatusOK, stream.StatusCode)
			stop(t, p, admin)
			p.until(func() bool { return mustGet(t, ready).status == http.StatusServiceUnavailable })
			require.JSONEq(t, `{"ready":false}`, mustGet(t, ready).body)
			require.Equal(t, http.StatusServiceUnavailable, mustGet(t, told).status)
			late := mustGet(t, "http://"+front)
			require.Equal(t, http.StatusOK, late.status, "until the delay is over, requests are taken as before")

			require.Equal(t, map[int]int{http.StatusOK: 50}, statuses())
			require.Zero(t, p.wait())
		})
	}
}
