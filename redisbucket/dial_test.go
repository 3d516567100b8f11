package redisbucket_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// A failedDials is a hook that sends a value for each attempt to connect that has failed. It
// must be added before a Bucket's own, which then has noted it.
type failedDials chan struct{}

func (f failedDials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			select {
			case f <- struct{}{}:
			default:
			}
		}
		return conn, err
	}
}

func (failedDials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (failedDials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// takes makes a call whose time ends while the client waits to dial again, and returns its error.
func (f failedDials) takes(t *testing.T, bucket *redisbucket.Bucket, key string) error {
	ctx, cancel := context.WithCancel(within(t))
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-f:
		case <-ctx.Done():
		}
		cancel()
	}()
	_, err := bucket.Take(ctx, one(key))
	cancel()
	<-over
	return err
}

// A client of go-redis dials for longer than a call may take. Whoever looks for the reason of an
// outage must read it, and not only that time has passed.
func TestARefusedConnectionIsTold(t *testing.T) {
	t.Parallel()
	for name, newClient := range map[string]func(addr string) redis.UniversalClient{
		"defaults": func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) },
		"a context that is obeyed": func(addr string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		},
		"one attempt": func(addr string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := servers.StartRedis(t)
			client, dialed := newClient(server.Addr), make(failedDials, 1)
			defer func() { require.NoError(t, client.Close()) }()
			client.AddHook(dialed)
			bucket := redisbucket.New(client)
			require.True(t, taken(t, bucket, "key"))
			s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 9}, shaper.WithBucket(bucket, "other", shared.Options{}))
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.Wait(within(t)))

			server.Kill()
			for range 3 {
				require.ErrorIs(t, dialed.takes(t, bucket, "key"), syscall.ECONNREFUSED)
			}
			ctx, cancel := context.WithCancel(t.Context())
			waiting := make(chan error, 1)
			go func() { waiting <- s.Wait(ctx) }()
			realtime.Until(t, func() bool {
				b := s.Stats().Bucket
				return b.State == shared.StateDown && errors.Is(b.Err, syscall.ECONNREFUSED)
			}, "it counts as unavailable, and says why")
			cancel()
			realtime.Next(t, waiting)

			server.Restart()
			require.True(t, taken(t, bucket, "new"))
			server.Pause()
			defer server.Resume()
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err = bucket.Take(ctx, one("key"))
			require.Equal(t, context.DeadlineExceeded, err, "that was another outage")
		})
	}
}

// What a cluster's servers refuse is told of each server's keys alone.
func TestARefusedConnectionToANodeIsTold(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, ContextTimeoutEnabled: true, ReadTimeout: patience})
	defer func() { require.NoError(t, client.Close()) }()
	dialed := make(failedDials, 1)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(dialed) })
	bucket := redisbucket.New(client)
	up, down := keysOf(cluster, 0, "up", 1)[0], keysOf(cluster, 2, "down", 1)[0]
	require.True(t, taken(t, bucket, up))
	require.True(t, taken(t, bucket, down))

	cluster.Nodes[2].Kill()
	require.ErrorIs(t, dialed.takes(t, bucket, down), syscall.ECONNREFUSED)
	cluster.Nodes[0].Pause()
	defer cluster.Nodes[0].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := bucket.Take(ctx, one(up))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, syscall.ECONNREFUSED)
}

// far is a round trip to a server that is far away. A call has time for two of them, and a
// connection with TLS takes three.
const far = 100 * time.Millisecond

// startFar starts a server with TLS that is far away, and returns the options of its clients.
func startFar(t *testing.T) *redis.Options {
	dir, port := t.TempDir(), servers.FreePort(t)
	site := httptest.NewTLSServer(nil) // It has a certificate for 127.0.0.1, and serves nobody.
	site.Close()
	private, err := x509.MarshalPKCS8PrivateKey(site.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	file := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	certFile := file("cert.pem", "CERTIFICATE", site.Certificate().Raw)
	servers.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-cert-file", certFile, "--tls-key-file", file("key.pem", "PRIVATE KEY", private), "--tls-ca-cert-file", certFile)
	proxy := servers.StartProxy(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	proxy.SetDelay(far, 0)
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	return &redis.Options{Addr: proxy.Addr, TLSConfig: &tls.Config{RootCAs: roots}}
}

// A call that is too short to make a connection must not be all in vain: otherwise each call
// begins anew, and a healthy server is never reached.
func TestAFarServerIsReachedByAColdClient(t *testing.T) {
	t.Parallel()
	for _, obeys := range []bool{false, true} {
		t.Run(strconv.FormatBool(obeys), func(t *testing.T) {
			t.Parallel()
			options := startFar(t)
			options.ContextTimeoutEnabled = obeys
			client := redis.NewClient(options)
			defer func() { require.NoError(t, client.Close()) }()
			s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 9}, shaper.WithBucket(redisbucket.New(client), "key", shared.Options{}))
			require.NoError(t, err)
			defer s.Close()
			began := time.Now()
			require.NoError(t, s.Wait(within(t)))
			t.Logf("the first request left after %v, and %d calls that failed", time.Since(began), s.Stats().Bucket.Failures)
		})
	}
}
