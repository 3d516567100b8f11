package inspect

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"path"
	"strconv"
	"strings"

	"example.com/leakybucket/internal/limitwords"
)

// files are the page and what it loads. They are served as they are, but for the page,
// which is a template.
//
//go:embed web
var files embed.FS

var pageTemplate = template.Must(template.New("index.html").Funcs(pageFuncs).ParseFS(files, "web/index.html"))

// pageFuncs are the functions of the template.
var pageFuncs = template.FuncMap{
	"percent": func(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) },
	"seconds": limitwords.Seconds,
	"number":  func(f float64) string { return strconv.FormatFloat(math.Round(10*f)/10, 'f', -1, 64) },
}

// A page is what the template of the page is given.
type page struct {
	Title     string
	Control   bool
	Script    string // path of the module of WithScript; empty if there is none
	Error     string // what is wrong with the query, or with the options
	Reports   []report
	Query     map[string]string
	Quick     []quickLink
	Columns   []columnLink
	List      *list
	FirstPage string  // the URL of the first page of the table; empty if this is it
	NextPage  string  // the URL of the next one; empty if there is none
	Selected  *detail // the bucket of source and key; nil if there is none
}

func (i *Inspector) servePage(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return methodNotAllowed(w, r, http.MethodGet)
	}
	p := page{Title: i.title, Control: i.mayControl(), Script: i.script, List: &list{}}
	status := http.StatusOK
	q, err := readQuery(r, pageParameters)
	if err == nil {
		p.List, err = i.listOfPage(r.Context(), q)
	}
	var wrong *failure
	switch {
	case errors.As(err, &wrong):
		status, p.Error, p.List = wrong.Status, wrong.Message, &list{}
	case err != nil:
		return err
	case i.err != nil:
		p.Error = i.err.Error()
	}
	p.Query, p.Quick, p.Columns = q.values, q.quickLinks(), q.columnLinks()
	if q.text("cursor") != "" {
		p.FirstPage = q.with("cursor", "")
	}
	if p.List.Next != nil {
		p.NextPage = q.with("cursor", *p.List.Next)
	}
	if q.text("source") != "" {
		p.Selected, _ = i.detail(r.Context(), q.text("source"), q.text("key"))
	}
	i.mu.Lock()
	p.Reports = i.reports
	i.mu.Unlock()

	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, p); err != nil {
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

// contentTypes are set here, as those of package mime depend on the machine.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}
