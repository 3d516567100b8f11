package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// maxBody is how long the body of a request to the demo's API may be, in bytes.
const maxBody = 4096

// post registers what a button does: act gets the JSON object that the page sends.
func post[T any](mux *http.ServeMux, c *control, name string, act func(T) error) {
	mux.HandleFunc("POST /demo/"+name, func(w http.ResponseWriter, r *http.Request) {
		var arguments T
		err := readObject(w, r, &arguments)
		if err == nil {
			err = act(arguments)
		}
		if err != nil {
			writeProblem(w, err)
			return
		}
		writeJSON(w, http.StatusOK, c.state())
	})
}

// A problem is why a request to the demo's API is not followed.
type problem struct {
	Parameter string `json:"parameter"` // the field of the object that is wrong; "" if none is
	Value     string `json:"value"`
	Message   string `json:"message"`
	status    int
}

func (p *problem) Error() string { return p.Parameter + ": " + p.Message }

func badField(field string, value any, format string, args ...any) *problem {
	return &problem{Parameter: field, Value: fmt.Sprint(value), Message: fmt.Sprintf(format, args...), status: http.StatusBadRequest}
}

// readObject reads the JSON object of a request.
func readObject(w http.ResponseWriter, r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &problem{Parameter: "Content-Type", Value: r.Header.Get("Content-Type"), Message: "must be application/json", status: http.StatusUnsupportedMediaType}
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badField(wrong.Field, wrong.Value, "must be of another type: %s", wrong.Type)
	}
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = errors.New("there is something after the object")
		}
	}
	if err != nil {
		// The error has no type of its own.
		if quoted, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			if field, bad := strconv.Unquote(quoted); bad == nil {
				return badField(field, "", "is not a field here")
			}
		}
		return badField("", "", "the body is not the JSON object that is expected: %v", err)
	}
	return nil
}

// protected lets pages of other origins press no button of h, and says so in the form of
// all other answers.
func protected(h http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, &problem{Message: "a page of another origin may not press buttons here", status: http.StatusForbidden})
	}))
	return origin.Handler(h)
}

func writeProblem(w http.ResponseWriter, err error) {
	p, ok := errors.AsType[*problem](err)
	if !ok { // What the visitor asks for does not go with what is there.
		p = &problem{Message: err.Error(), status: http.StatusConflict}
	}
	writeJSON(w, p.status, map[string]*problem{"error": p})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
