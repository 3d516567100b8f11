package inspect

import (
	"bytes"
	"cmp"
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

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
