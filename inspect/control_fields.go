package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"unicode/utf8"
)

// maxBody is the size of the largest body that is read, in bytes.
const maxBody = 64 << 10

// readFields reads the body of a request: a JSON object whose values are strings. Fields
// that known does not name are wrong, as are fields that come twice: encoding/json alone
// would take the latter, and would not mind upper case either.
func readFields(w http.ResponseWriter, r *http.Request, known []string) (map[string]string, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		w.Header().Set("Accept-Post", "application/json")
		return nil, &failure{http.StatusUnsupportedMediaType, "Content-Type", r.Header.Get("Content-Type"), "the body must be application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &failure{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", maxBody)}
	case err != nil:
		return nil, badBody("it can't be read: %v", err)
	case !utf8.Valid(body):
		return nil, badBody("it is not UTF-8 (a key that is not can be given by its id)")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil, badBody("it is not a JSON object")
	}
	fields := map[string]string{}
	for d.More() {
		name, value, err := readField(d, known)
		if err != nil {
			return nil, err
		}
		if _, twice := fields[name]; twice {
			return nil, &failure{http.StatusBadRequest, name, value, name + " is given twice"}
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, badBody("it is not JSON: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, badBody("something follows the JSON object")
	}
	return fields, nil
}

// readField reads one field of an object.
func readField(d *json.Decoder, known []string) (name, value string, err error) {
	token, err := d.Token()
	if err != nil {
		return "", "", badBody("it is not JSON: %v", err)
	}
	name, _ = token.(string)
	if !slices.Contains(known, name) {
		return "", "", &failure{http.StatusBadRequest, shorten(name), "", fmt.Sprintf("%q is not a field here", shorten(name))}
	}
	if token, err = d.Token(); err != nil {
		return "", "", badBody("it is not JSON: %v", err)
	}
	value, isText := token.(string)
	if !isText {
		return "", "", &failure{http.StatusBadRequest, name, "", name + " must be a string"}
	}
	return name, value, nil
}

func badBody(format string, args ...any) *failure {
	return &failure{Status: http.StatusBadRequest, Parameter: "body", Message: "the body is wrong: " + fmt.Sprintf(format, args...)}
}
