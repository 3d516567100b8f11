package caddyshaper_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// useTLS makes the site one of https, with HTTP/2. It returns what its directives need.
func (s *site) useTLS() string {
	s.t.Helper()
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // It has a certificate for tests.
	borrowed.Close()
	pair := borrowed.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(s.t, err)
	dir := s.t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(s.t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	transport := s.client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2 = true
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	s.scheme = "https"
	return "tls " + certFile + " " + keyFile + "\n	"
}

func TestTheTimeInLineIsNotTakenOffTimeouts(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			s := newSite(t)
			directives := ""
			if proto == "HTTP/2.0" {
				directives = s.useTLS()
			}
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body) // A proxy that has timed out ends it.
				_, _ = w.Write([]byte(r.Header.Get("Via") + strings.ToUpper(string(body))))
			})
			body := strings.Repeat("a", 200_000) // more than is read ahead
			for timeout := 600 * time.Millisecond; ; timeout *= 2 {
				answers, inTime := s.waitLongerThan(timeout, directives, body)
				waited := true
				for _, a := range answers {
					if inTime {
						require.NoError(t, a.err)
						require.Equal(t, 200, a.status)
					}
					waited = waited && a.status == 200 && waitOf(t, a) > timeout
				}
				if !waited {
					require.Less(t, timeout, 8*time.Second, "in no try did both wait for longer than the timeouts: %v", answers)
					continue
				}
				for _, a := range answers {
					require.Contains(t, a.header.Get("Via"), "Caddy")
					require.True(t, strings.HasSuffix(a.body, strings.ToUpper(body)), "%d bytes", len(a.body))
				}
				break
			}
			logged := s.logged(3)
			require.Contains(t, logged[len(logged)-1], `"proto":"`+proto+`"`)
		})
	}
}

// waitLongerThan sends a request that does not wait, and two that wait for longer than the
// timeouts of the server. It returns the answers of these, and whether each of them, or its
// failure, came soon after its slot: long before the timeouts were over once more.
func (s *site) waitLongerThan(timeout time.Duration, directives, body string) (answers []answer, inTime bool) {
	s.t.Helper()
	s.global = fmt.Sprintf("servers {\n timeouts {\n read_body %[1]v\n write %[1]v\n }\n }", timeout)
	interval := timeout * 5 / 3
	s.reload(fmt.Sprintf("%sshape line%d {\n limits 1 per %v depth 3\n server_timing\n}%s", directives, timeout.Milliseconds(), interval, proxied))
	begun := time.Now()
	inTime = true
	soonAfter := func(slot int) {
		inTime = inTime && time.Since(begun) < time.Duration(slot)*interval+timeout/2
	}
	first := s.get("/")
	soonAfter(0)
	if inTime {
		require.NoError(s.t, first.err)
		require.Equal(s.t, 200, first.status)
	}
	came := make(chan answer, 2)
	for range 2 {
		go func() { came <- s.send(http.MethodPost, "/", strings.NewReader(body)) }()
	}
	for slot := range 2 {
		answers = append(answers, <-came)
		soonAfter(slot + 1)
	}
	return answers, inTime
}

// waitOf returns for how long a request was in line, by its answer.
func waitOf(t testing.TB, a answer) time.Duration {
	t.Helper()
	ms, ok := strings.CutPrefix(a.header.Get("Server-Timing"), "shaper;dur=")
	require.True(t, ok, a.header)
	d, err := time.ParseDuration(ms + "ms")
	require.NoError(t, err)
	return d
}

func TestAddressesAreThoseThatCaddyFinds(t *testing.T) {
	s := newSite(t)
	s.global = "servers {\n trusted_proxies_unix\n trusted_proxies_strict\n }"
	s.reload("shape limits 100/s burst 10\n	respond {http.shape.key}")
	for forwarded, key := range map[string]string{
		"198.51.100.7, 192.0.2.1": "192.0.2.1", // What the client has written comes first.
		"2001:db8:0:1:2:3:4:5":    "2001:db8:0:1::%2F64",
		"::ffff:192.0.2.1":        "192.0.2.1",
		"":                        "-",
	} {
		require.Equal(t, key, s.get("/", "X-Forwarded-For", forwarded).body, "of %q", forwarded)
	}
	// A client that could name its own address would have a fresh bucket for each request.
	s.global = ""
	s.reload("shape limits 100/s burst 10\n	respond {http.shape.key}")
	require.Equal(t, "-", s.get("/", "X-Forwarded-For", "192.0.2.1").body)
}

func TestOneNameInTwoSitesIsOneLine(t *testing.T) {
	s := newSite(t)
	s.reload("shape shared {\n limits 1/h\n key all\n}\n	respond a\n}\nhttp://other.example {\n	bind unix/" + s.socket + "2\n	shape shared {\n limits 1/h\n key all\n}\n	respond b")
	require.Equal(t, 200, s.get("/").status)
	s.socket += "2"
	s.client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://other.example/", nil)
	require.NoError(t, err)
	require.Equal(t, 429, do(s.client, r).status)
}
