package inspect

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A route is a path of the API.
type route struct {
	method     string // GET, which includes HEAD, or POST
	path       string // such as "/api/buckets"
	bucket     bool   // {source} and {id} follow the path
	parameters []string
	serve      func(*Inspector, http.ResponseWriter, *http.Request, query) error
}

// routes are all paths of the API. openapi.json describes each, which a test sees to.
var routes = []route{
	{http.MethodGet, "/api/buckets", false, listParameters, (*Inspector).serveBuckets},
	{http.MethodGet, "/api/buckets", true, nil, (*Inspector).serveBucket},
	{http.MethodGet, "/api/line", true, []string{"max"}, (*Inspector).serveLine},
	{http.MethodGet, "/api/top", false, []string{"source", "n"}, (*Inspector).serveTop},
	{http.MethodGet, "/api/what-if", false, []string{"source", "key", "id", "limits"}, (*Inspector).serveWhatIf},
	{http.MethodGet, "/api/changes", false, []string{"source"}, (*Inspector).serveChanges},
	{http.MethodPost, "/api/limits", false, nil, (*Inspector).serveLimits},
	{http.MethodPost, "/api/reset", false, nil, (*Inspector).serveReset},
	{http.MethodPost, "/api/hold", false, nil, (*Inspector).serveHold},
	{http.MethodPost, "/api/release", false, nil, (*Inspector).serveRelease},
	{http.MethodGet, "/api/openapi.json", false, nil, (*Inspector).serveOpenAPI},
	{http.MethodGet, "/api/events", false, []string{"source", "key"}, (*Inspector).serveEvents},
}

// route answers a request that may be answered.
func (i *Inspector) route(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	var err error
	switch {
	case path == "/":
		err = i.servePage(w, r)
	case strings.HasPrefix(path, "/web/"):
		err = i.serveFile(w, r, strings.TrimPrefix(path, "/web/"))
	default:
		err = i.serveAPI(w, r, path)
	}
	if err != nil {
		fail(w, err)
	}
}

// serveAPI answers a request for a path of the API. Paths are read as they were sent:
// in a key that holds "/" or "..", these are encoded and mean nothing.
func (i *Inspector) serveAPI(w http.ResponseWriter, r *http.Request, path string) error {
	var allowed []string
	for _, route := range routes {
		source, key, ok, err := route.match(path)
		if !ok {
			continue
		}
		if err != nil {
			return err
		}
		if !route.allows(r.Method) {
			allowed = append(allowed, route.method)
			continue
		}
		if i.isClosed() {
			return &failure{Status: http.StatusServiceUnavailable, Message: "the inspector is closed"}
		}
		if route.method == http.MethodGet && isForeign(r) {
			// Its page can't read the answer, but it could keep us busy, and take the streams.
			return &failure{Status: http.StatusForbidden, Message: "a page of another origin may not ask the API"}
		}
		q, err := readQuery(r, route.parameters)
		if err != nil {
			return err
		}
		q.source, q.key = source, key
		return route.serve(i, w, r, q)
	}
	if allowed != nil {
		return methodNotAllowed(w, r, allowed...)
	}
	return unknown("path", r.URL.Path, "which is not served here")
}

// match reports whether path is one of the route, and returns the source and the key
// that it names.
func (p route) match(path string) (source, key string, ok bool, err error) {
	if !p.bucket {
		return "", "", path == p.path, nil
	}
	rest, ok := strings.CutPrefix(path, p.path+"/")
	if !ok || rest == "" {
		return "", "", false, nil
	}
	name, id, _ := strings.Cut(rest, "/")
	if strings.Contains(id, "/") {
		return "", "", true, &failure{http.StatusBadRequest, "id", id, "id is more than one segment; a \"/\" of a key must be sent as %2F"}
	}
	if source, err = keyOf(name); err == nil {
		key, err = keyOf(id)
	}
	if err != nil {
		return "", "", true, &failure{http.StatusBadRequest, "id", id, err.Error()}
	}
	return source, key, true, nil
}

func (p route) allows(method string) bool {
	return method == p.method || method == http.MethodHead && p.method == http.MethodGet
}

// methodNotAllowed says in the Allow field with which methods a path is served.
func methodNotAllowed(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, http.MethodGet) {
		methods = append(methods, http.MethodHead)
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return &failure{Status: http.StatusMethodNotAllowed,
		Message: fmt.Sprintf("the method %s is not allowed here, only %s", shorten(r.Method), strings.Join(methods, ", "))}
}

// isClosed reports whether Close has been called.
func (c *core) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// sourceNamed returns the source of a name, or a failure that names the parameter.
func (c *core) sourceNamed(name string) (*watched, error) {
	if w := c.source(name); w != nil {
		return w, nil
	}
	return nil, unknownSource(name)
}

func unknownSource(name string) *failure {
	return unknown("source", name, "which is not the name of a source")
}
