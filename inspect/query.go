package inspect

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A query is the parameters of a request, each of which is given once at most.
type query struct {
	values map[string]string
	source string // of the path
	key    string // of the path
}

// readQuery reads the query of a URL. Parameters that known does not name are wrong, so
// that a misspelt one is noticed.
func readQuery(r *http.Request, known []string) (query, error) {
	q := query{values: map[string]string{}}
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if pair == "" {
			continue
		}
		name, value, err := readPair(pair)
		_, given := q.values[name]
		switch {
		case err != nil:
			return q, wrong(name, value, "which can't be read: %v", err)
		case !slices.Contains(known, name):
			return q, wrong(name, value, "which is not a parameter here")
		case given:
			return q, wrong(name, value, "but it is given more than once")
		}
		q.values[name] = value
	}
	return q, nil
}

// readPair reads one parameter. What can't be read is returned as it stands.
func readPair(pair string) (name, value string, err error) {
	rawName, rawValue, _ := strings.Cut(pair, "=")
	name, err = url.QueryUnescape(rawName)
	if err != nil {
		return rawName, rawValue, err
	}
	if strings.Contains(pair, ";") { // Some take it for "&".
		return name, rawValue, errors.New("a semicolon must be sent as %3B")
	}
	if value, err = url.QueryUnescape(rawValue); err != nil {
		return name, rawValue, err
	}
	return name, value, nil
}

// maxKeptKey is how long a key may be, in bytes, of which the [Inspector] keeps a history or
// a recording. Each is kept for a time, and so is its key, whether or not it has a bucket.
const maxKeptKey = 8 << 10

// keeps returns nil if a key is short enough to be kept.
func keeps(key string) error {
	if len(key) > maxKeptKey {
		return wrong("key", key, "but here it must be at most %d bytes", maxKeptKey)
	}
	return nil
}

// text returns a parameter; "" if it is not given.
func (q query) text(name string) string { return q.values[name] }

// has reports whether a parameter is given, if only as empty.
func (q query) has(name string) bool {
	_, ok := q.values[name]
	return ok
}

// whole returns a parameter that is a whole number from low to high, or otherwise if it
// is empty or not given.
func (q query) whole(name string, low, high, otherwise int) (int, error) {
	value := q.values[name]
	if value == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		if high == math.MaxInt {
			return 0, wrong(name, value, "must be a whole number of at least %d", low)
		}
		return 0, wrong(name, value, "must be a whole number from %d to %d", low, high)
	}
	return n, nil
}

// number returns a parameter that is a number of at least 0; negative if it is empty or
// not given.
func (q query) number(name string) (float64, error) {
	value := q.values[name]
	if value == "" {
		return -1, nil
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0) || math.IsInf(f, 0) {
		return 0, wrong(name, value, "must be a number of at least 0")
	}
	return f, nil
}

// duration returns a parameter that is a duration of at least 0; negative if it is empty
// or not given.
func (q query) duration(name string) (time.Duration, error) {
	value := q.values[name]
	if value == "" {
		return -1, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, wrong(name, value, `must be a duration such as "90s" or "1h30m"`)
	}
	return d, nil
}

// truth returns a parameter that is true or false; nil if it is empty or not given.
func (q query) truth(name string) (*bool, error) {
	value := q.values[name]
	if value == "" {
		return nil, nil
	}
	b := value == "true"
	if !b && value != "false" {
		return nil, wrong(name, value, "must be true or false")
	}
	return &b, nil
}
