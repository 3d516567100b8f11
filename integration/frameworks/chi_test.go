package frameworks

import (
	"io"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

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
