package frameworks

import (
	"io"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
)

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
