package frameworks

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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
