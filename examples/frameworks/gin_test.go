package frameworks

import (
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
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
