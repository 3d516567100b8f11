package inspect

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// A route is a path of the API.
type route struct {
	method     string // GET, which includes HEAD, or POST
	path       string // such as "/api/v1/buckets"
	bucket     bool   // {source} and {id} follow the path
	parameters []string
	serve      func(*Inspector, http.ResponseWriter, *http.Request, query) error
}

// routes are all paths of the API. openapi.json describes each, which a test sees to.
var routes = []route{
	{http.MethodGet, "/api/v1/buckets", false, listParameters, (*Inspector).serveBuckets},
	{http.MethodGet, "/api/v1/buckets.csv", false, exportParameters, exportAs("csv", writeCSV)},
	{http.MethodGet, "/api/v1/buckets.json", false, exportParameters, exportAs("json", writeWholeList)},
	{http.MethodGet, "/api/v1/buckets", true, nil, (*Inspector).serveBucket},
	{http.MethodGet, "/api/v1/line", true, []string{"max"}, (*Inspector).serveLine},
	{http.MethodGet, "/api/v1/keys", true, []string{"max"}, (*Inspector).serveKeys},
	{http.MethodGet, "/api/v1/quota", true, []string{"teams"}, (*Inspector).serveQuota},
	{http.MethodGet, "/api/v1/top", false, []string{"source", "n"}, (*Inspector).serveTop},
	{http.MethodGet, "/api/v1/changes", false, []string{"source"}, (*Inspector).serveChanges},
	{http.MethodPost, "/api/v1/limits", false, nil, changing((*controller).setLimits, "limits", "for")},
	{http.MethodPost, "/api/v1/reset", false, nil, changing((*controller).reset)},
	{http.MethodPost, "/api/v1/hold", false, nil, changing((*controller).hold, "for")},
	{http.MethodPost, "/api/v1/release", false, nil, changing((*controller).release)},
	{http.MethodGet, "/api/v1/openapi.json", false, nil, (*Inspector).serveOpenAPI},
	{http.MethodGet, "/api/v1/events", false, []string{"source", "key", "since"}, (*Inspector).serveEvents},
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
	if rest, ok := strings.CutPrefix(path, "/api/"); ok && !strings.HasPrefix(rest, "v1/") {
		path = "/api/v1/" + rest // The names from before there were versions.
	}
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
	if path == "/api/v1/what-if" {
		return unknown("path", r.URL.Path, "which is served no longer; a candidate in dry run beside the live rule shows what other limits would do, and shapereplay computes it from a log")
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
func (c *core) isClosed() bool { return hasEnded(c.closing) }

// hasEnded reports whether a channel is closed, in which nothing is sent.
func hasEnded(done <-chan struct{}) bool {
	select {
	case <-done:
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

// sourcesNamed returns the source of a name, and all sources for the name "".
func (c *core) sourcesNamed(name string) ([]*watched, error) {
	if name == "" {
		return c.all(), nil
	}
	w, err := c.sourceNamed(name)
	return []*watched{w}, err
}

func unknownSource(name string) *failure {
	return unknown("source", name, "which is not the name of a source")
}

// policy is the Content-Security-Policy: a browser may run and show files from here, and nothing
// else. There is no inline script and no inline style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Guard returns a handler that lets through to h only requests that the Inspector would
// answer itself, by their Host field and by where they come from, and sets the same
// header fields on the answer. It is for other things that a program serves beside an
// Inspector.
func (i *Inspector) Guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("X-Frame-Options", "DENY")
		if err := i.admits(r); err != nil {
			fail(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// admits returns nil if r names a host that is allowed and comes from where it may.
func (i *Inspector) admits(r *http.Request) error {
	if !i.knowsHost(r.Host) {
		// A page of another site can make its own name stand for 127.0.0.1 and then read
		// the answers as its own (DNS rebinding). The browser still sends that name.
		return &failure{Status: http.StatusMisdirectedRequest, Parameter: "Host", Value: r.Host,
			Message: fmt.Sprintf("the host %q is not served here; use a loopback name, or name it among the hosts of the page (WithHosts)", shorten(r.Host))}
	}
	if len(i.hosts) == 0 && !isLocal(r) {
		return &failure{Status: http.StatusForbidden,
			Message: "only clients of this machine are answered, unless hosts are named (WithHosts)"}
	}
	return nil
}

// knowsHost reports whether a Host field names a loopback address or a host of
// [WithHosts].
func (i *Inspector) knowsHost(field string) bool {
	field = strings.ToLower(field)
	host, _, err := net.SplitHostPort(field)
	if err != nil {
		host = field
	}
	host = bare(host)
	if slices.Contains(i.hosts, field) || slices.Contains(i.hosts, host) {
		return true
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// bare returns a host without the brackets around an address of IPv6. One with a port
// keeps them.
func bare(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return host
}

// isForeign reports whether a browser says that a page of another origin has sent a
// request. Other clients name no origin.
func isForeign(r *http.Request) bool {
	from := r.Header.Get("Sec-Fetch-Site")
	return from != "" && from != "same-origin" && from != "none"
}

// isLocal reports whether a request comes from this machine.
func isLocal(r *http.Request) bool {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return peer.Addr().Unmap().IsLoopback()
	}
	own, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return own != nil && own.Network() == "unix"
}

// document describes the API in OpenAPI 3.1. A test holds it to routes, and to the
// answers.
//
//go:embed openapi.json
var document []byte

func (i *Inspector) serveOpenAPI(w http.ResponseWriter, _ *http.Request, _ query) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document)
	return nil
}

// A failure is the answer to a request that cannot be served.
type failure struct {
	Status    int    `json:"-"`
	Parameter string `json:"parameter"` // empty if no parameter is to blame
	Value     string `json:"value"`
	Message   string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

// missing returns a failure with status 400 that names a parameter.
func missing(parameter string) *failure {
	return &failure{http.StatusBadRequest, parameter, "", parameter + " is missing"}
}

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

// files are the page and the files that it loads. They are served as they are, but for
// the page, which is a template.
//
//go:embed web
var files embed.FS

var pageTemplate = template.Must(template.ParseFS(files, "web/index.html"))

// pageParameters are the parameters in the address of the page, which its script reads: beside the
// ones of the list, the selection, and how it is shown. "source" and "key" select a bucket, which
// does not narrow the table; "in" is the source to which the table is narrowed.
var pageParameters = append([]string{"key", "in", "filter", "span", "paused", "at"}, listParameters...)

// servePage answers with the page, which has no figures: its script asks for them.
func (i *Inspector) servePage(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return methodNotAllowed(w, r, http.MethodGet)
	}
	status := http.StatusOK
	_, err := readQuery(r, pageParameters)
	if err != nil {
		status = http.StatusBadRequest
	}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, map[string]any{"Title": i.title, "Script": i.script, "Error": cmp.Or(err, i.err)}); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes())
	return nil
}

// serveFile answers with a file of the page.
func (i *Inspector) serveFile(w http.ResponseWriter, r *http.Request, name string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return methodNotAllowed(w, r, http.MethodGet)
	}
	text, err := fs.ReadFile(files, path.Join("web", name))
	if err != nil || !fs.ValidPath(name) || strings.HasSuffix(name, ".html") {
		return unknown("path", r.URL.Path, "which is not served here")
	}
	kind, ok := contentTypes[path.Ext(name)]
	if !ok {
		kind = "text/plain; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text)
	return nil
}

// contentTypes are set here, as the types of package mime depend on the machine.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".csv":  "text/csv; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}
