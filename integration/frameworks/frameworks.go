// Package frameworks shows Middleware in front of handlers of three web
// frameworks. For chi and echo it needs no code of its own, for gin a few
// lines, which are here to be copied.
package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin makes middleware of net/http into middleware of gin:
//
//	router.Use(Gin(shaper.Middleware(s)))
//
// If the middleware does not pass a request on, it has answered the request, and gin's
// later handlers are skipped.
func Gin(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		handedOn := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			handedOn = true
			c.Request = r
			c.Next()
		})
		middleware(next).ServeHTTP(c.Writer, c.Request)
		if !handedOn {
			c.Abort()
		}
	}
}
