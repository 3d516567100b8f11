package frameworks

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// A router is a site of some framework: the middleware in front of a handler
// that answers a POST of / with the request's body.
type router func(middleware func(http.Handler) http.Handler) http.Handler

const (
	// serverTimeout is longer than a busy machine keeps a process from running.
	serverTimeout = 6 * time.Second
	enough        = time.Minute
)

// holds checks the promises that a framework could break: that a refused request does not reach the
// handler, that a body survives a wait that is longer than the server's timeouts, and
// that a refusal reaches a client that withholds its body. The last two need the
// connection, which a framework's ResponseWriter must not hide.
func (site router) holds(t *testing.T) {
	t.Parallel() // It spends its time waiting.
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: 1})
	require.NoError(t, err)
	defer s.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{
		Handler:      site(shaper.Middleware(s)),
		ReadTimeout:  serverTimeout,
		WriteTimeout: serverTimeout,
		// No ConnContext: with it the middleware would not need the
		// ResponseWriter for deadlines.
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	}()
	addr := listener.Addr().String()
	client := &http.Client{Timeout: enough, Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(body string) string {
		answer, err := client.Post("http://"+addr, "text/plain", strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		if err != nil {
			return err.Error() // This is not the test's goroutine, so it must not call require.
		}
		return answer.Status + " " + string(content)
	}

	require.Equal(t, "200 OK at once", post("at once"))
	waited := make(chan string, 1)
	go func() { waited <- post("after a wait") }()
	realtime.Until(t, func() bool { return s.Stats().Waiting == 1 }, "a request waits")
	require.Contains(t, post("refused"), "429 Too Many Requests {")

	time.Sleep(serverTimeout * 6 / 5)
	require.NoError(t, s.SetLimits(shaper.Limits{Rate: rate.Every(time.Hour), Burst: 2, Depth: 1}))
	require.Equal(t, "200 OK after a wait", <-waited)
	require.Equal(t, uint64(2), s.Stats().Departed)

	require.NoError(t, s.SetLimits(shaper.Limits{Rate: rate.Every(time.Hour)}))
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(enough)))
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n12345")
	require.NoError(t, err)
	start := time.Now()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
	require.Less(t, time.Since(start), enough/2)
}

// chi's middleware is net/http's.
func TestChi(t *testing.T) {
	router(func(shape func(http.Handler) http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(middleware.Compress(5)) // A wrapper of the ResponseWriter, as there often is one.
		r.Use(shape)
		r.Post("/", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		return r
	}).holds(t)
}

// echo wraps it itself.
func TestEcho(t *testing.T) {
	router(func(shape func(http.Handler) http.Handler) http.Handler {
		e := echo.New()
		e.Use(echo.WrapMiddleware(shape))
		e.POST("/", func(c *echo.Context) error {
			_, err := io.Copy(c.Response(), c.Request().Body)
			return err
		})
		return e
	}).holds(t)
}

// gin has a middleware of its own kind, made by Gin.
func TestGin(t *testing.T) {
	gin.SetMode(gin.TestMode)
	router(func(shape func(http.Handler) http.Handler) http.Handler {
		r := gin.New()
		r.Use(Gin(shape))
		r.POST("/", func(c *gin.Context) { _, _ = io.Copy(c.Writer, c.Request.Body) })
		return r
	}).holds(t)
}

// In front of gin, a middleware with a cap passes on a ResponseWriter of its own. It must
// have the methods that gin asserts.
func TestGinStreamsBehindACap(t *testing.T) {
	gin.SetMode(gin.TestMode)
	s, err := shaper.New(shaper.Limits{Rate: 1000, InFlight: 1})
	require.NoError(t, err)
	r := gin.New()
	r.GET("/", func(c *gin.Context) {
		steps := 0
		c.Stream(func(w io.Writer) bool {
			steps++
			_, _ = io.WriteString(w, "x")
			return steps < 3
		})
	})
	server := httptest.NewServer(shaper.Middleware(s)(r))
	defer server.Close()
	answer, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "xxx", string(text))
}
