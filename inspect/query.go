package inspect

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, &failure{http.StatusBadRequest, "", r.URL.RawQuery, "the query can't be read: " + err.Error()}
	}
	for name, given := range values {
		switch {
		case !slices.Contains(known, name):
			return q, wrong(name, given[0], "which is not a parameter here")
		case len(given) > 1:
			return q, wrong(name, given[1], "but it is given more than once")
		}
		q.values[name] = given[0]
	}
	return q, nil
}

// maxKeptKey is how long a key may be, in bytes, of which the Inspector keeps a history or
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
