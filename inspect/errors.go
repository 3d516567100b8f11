package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// A failure is the answer to a request that cannot be served.
type failure struct {
	Status    int    `json:"-"`
	Parameter string `json:"parameter"` // empty if no parameter is to blame
	Value     string `json:"value"`
	Message   string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

// wrong returns a failure with status 400 that names a parameter and quotes its value.
func wrong(parameter, value, format string, args ...any) *failure {
	return quoting(http.StatusBadRequest, parameter, value, format, args...)
}

// unknown returns a failure with status 404 that does so.
func unknown(parameter, value, format string, args ...any) *failure {
	return quoting(http.StatusNotFound, parameter, value, format, args...)
}

func quoting(status int, parameter, value, format string, args ...any) *failure {
	parameter, value = shorten(parameter), shorten(value)
	return &failure{status, parameter, value, fmt.Sprintf("%s is %q, %s", parameter, value, fmt.Sprintf(format, args...))}
}

// maxQuote is how many bytes of a wrong value an error quotes.
const maxQuote = 100

func shorten(value string) string {
	if len(value) <= maxQuote {
		return value
	}
	return value[:maxQuote] + "…"
}

// fail answers a request with an error.
func fail(w http.ResponseWriter, err error) {
	f := &failure{Status: http.StatusInternalServerError, Message: err.Error()}
	errors.As(err, &f)
	answer := *f
	answer.Value = shorten(f.Value)
	writeJSON(w, f.Status, struct {
		Error failure `json:"error"`
	}{answer})
}

// writeJSON answers a request with a value. The value is encoded before anything is
// sent.
func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":{"parameter":"","value":"","message":"the answer can't be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
