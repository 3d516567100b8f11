package sharedfaults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// While the server does not answer, a process that makes a Shaper for each of its clients
// must not be left with what each of them waited for.
func TestAThousandShapersWithoutAServerLeaveNothingRunning(t *testing.T) {
	atLength(t)
	for _, e := range []engine{redisEngine, postgresEngine} {
		t.Run(string(e), func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Run("", func(t *testing.T) {
				p := plan{Engine: e, Addrs: []string{fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))}}
				if e == postgresEngine {
					p.Addrs = []string{"postgres://nobody@" + p.Addrs[0] + "/none?sslmode=disable"}
				}
				b := open(t, p)
				for i := range 1000 {
					s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 10}, shaper.WithBucket(b, fmt.Sprint(i)))
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%3)*time.Millisecond)
					require.Error(t, s.Wait(ctx))
					cancel()
					require.NoError(t, s.Close())
				}
			})
			// A pool of go-redis looks once a second whether it has been closed.
			dials := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
			for end := time.Now().Add(patience); goleak.Find(before, dials) != nil && time.Now().Before(end); { // It waits for half a second itself.
			}
			goleak.VerifyNone(t, before, dials)
		})
	}
}
