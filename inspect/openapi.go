package inspect

import (
	_ "embed"
	"net/http"
)

// document describes the API in OpenAPI 3.1. A test holds it to routes, and to what is
// answered.
//
//go:embed openapi.json
var document []byte

func (i *Inspector) serveOpenAPI(w http.ResponseWriter, _ *http.Request, _ query) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document)
	return nil
}
