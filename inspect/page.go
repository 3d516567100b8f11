package inspect

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// files are the page and the files that it loads. They are served as they are, but for
// the page, which is a template.
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

// A page is the data for the template of the page.
type page struct {
	Title     string
	Control   bool
	Script    string // path of the module of WithScript; empty if there is none
	Error     string // the mistake in the query, or in the options
	Reports   []report
	Query     map[string]string
	Quick     []quickLink
	Columns   []columnLink
	List      *list
	FirstPage string  // the URL of the first page of the table; empty if this is it
	NextPage  string  // the URL of the next one; empty if there is none
	Export    string  // the query of an export of the whole table
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
		p.List, p.Export, err = i.listOfPage(r.Context(), q)
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

// contentTypes are set here, as the types of package mime depend on the machine.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".csv":  "text/csv; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// pageParameters are the parameters of the page: beside the ones of the list, the
// selection, and how the script shows it. "source" and "key" select a bucket, which
// does not narrow the table; "in" is the source to which the table is narrowed.
var pageParameters = append([]string{"key", "in", "filter", "span", "paused", "at"}, listParameters...)

// pageSort is the order of the page if its URL names none.
const pageSort = "-waiting"

// A quickLink is a filter of the page that is one click away.
type quickLink struct {
	Name, Label string
	Pressed     bool
	Value       string // of the parameter "filter" that turns it on, or off if it is on
}

// A quickFilter is one with the parameters of the list that it stands for.
type quickFilter struct {
	name, label string
	parameters  map[string]string
}

var quickFilters = []quickFilter{
	{"waiting", "has a line", map[string]string{"waiting_gt": "0"}},
	{"half", "over half full", map[string]string{"fill_gt": "0.5"}},
	{"refusing", "refusing now", map[string]string{"refusing": "true"}},
	{"dry_run", "would refuse in dry run", map[string]string{"dry_run": "true", "refused_gt": "0"}},
	{"idle", "idle for an hour", map[string]string{"idle_gt": "1h"}},
}

// A columnLink is a column by which the table can be sorted.
type columnLink struct {
	Name, Label string
	Aria        string // ascending, descending or none
	Value       string // of the parameter "sort" that sorts by it, or the other way round if the table is sorted by it
}

var columns = []struct{ name, label string }{
	{"key", "Key"}, {"fill", "Fill"}, {"waiting", "Waiting"}, {"oldest_wait", "Longest wait"}, {"level", "Level"},
	{"refused", "Refused"}, {"departed", "Departed"}, {"abandoned", "Gave up"}, {"idle", "Idle"},
}

// listOfPage returns the first table of the page, and the query of its export.
func (c *core) listOfPage(ctx context.Context, q query) (*list, string, error) {
	asked := query{values: maps.Clone(q.values)}
	asked.values["sort"] = cmp.Or(q.text("sort"), pageSort)
	asked.values["source"] = q.text("in")
	for _, name := range q.filters() {
		k := slices.IndexFunc(quickFilters, func(f quickFilter) bool { return f.name == name })
		if k < 0 {
			return nil, "", wrong("filter", name, "must be waiting, half, refusing, dry_run or idle, or several with commas between them")
		}
		maps.Copy(asked.values, quickFilters[k].parameters)
	}
	l, err := readListing(asked)
	if err != nil {
		return nil, "", err
	}
	values := url.Values{}
	for _, name := range exportParameters {
		if value := asked.text(name); value != "" {
			values.Set(name, value)
		}
	}
	shown, err := c.list(ctx, l)
	return shown, values.Encode(), err
}

// filters returns the names of the quick filters that are on.
func (q query) filters() []string {
	return strings.FieldsFunc(q.text("filter"), func(c rune) bool { return c == ',' })
}

func (q query) quickLinks() []quickLink {
	on := q.filters()
	var links []quickLink
	for _, f := range quickFilters {
		link := quickLink{Name: f.name, Label: f.label, Pressed: slices.Contains(on, f.name)}
		after := slices.DeleteFunc(slices.Clone(on), func(name string) bool { return name == f.name })
		if !link.Pressed {
			after = append(after, f.name)
		}
		link.Value = strings.Join(after, ",")
		links = append(links, link)
	}
	return links
}

func (q query) columnLinks() []columnLink {
	name, descending := strings.CutPrefix(cmp.Or(q.text("sort"), pageSort), "-")
	var links []columnLink
	for _, c := range columns {
		link := columnLink{Name: c.name, Label: c.label, Aria: "none"}
		sort := "-" + c.name // Whoever sorts by numbers looks for the largest,
		if c.name == "key" {
			sort = c.name // but names are read from the first.
		}
		switch {
		case name == c.name && descending:
			link.Aria, sort = "descending", c.name
		case name == c.name:
			link.Aria, sort = "ascending", "-"+c.name
		}
		link.Value = sort
		links = append(links, link)
	}
	return links
}

// Open returns the URL of the page that shows the bucket.
func (b bucket) Open() string {
	return "./?" + url.Values{"source": {b.Source}, "key": {b.raw}}.Encode()
}

// longestName is how many letters of a key the page shows.
const longestName = 400

// Name returns the name of the bucket on the page: its key, cut if it is long, with signs
// for characters that cannot be seen, or would change the text around them, and with the
// codes of bytes that are no text. The script's nameOf does the same.
func (b bucket) Name() string {
	switch {
	case b.only:
		return b.Source
	case b.raw == "":
		return "(empty key)"
	}
	var shown strings.Builder
	for rest := b.raw; rest != ""; {
		c, size := utf8.DecodeRuneInString(rest)
		switch {
		case c == utf8.RuneError && size == 1:
			fmt.Fprintf(&shown, `\x%x`, rest[0])
		case unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			fmt.Fprintf(&shown, `\u{%x}`, c)
		default:
			shown.WriteRune(c)
		}
		rest = rest[size:]
	}
	name := strings.TrimLeft(shown.String(), " ")
	before := shown.Len() - len(name)
	core := strings.TrimRight(name, " ")
	name = strings.Repeat("␣", before) + core + strings.Repeat("␣", len(name)-len(core))
	if letters := []rune(name); len(letters) > longestName {
		return string(letters[:longestName]) + "…"
	}
	return name
}

// with returns the URL of the page with one parameter changed; empty takes it away. The place in
// the table is kept only if the place itself is changed.
func (q query) with(name, value string) string {
	values := url.Values{}
	for name, value := range q.values {
		if value != "" || name == "key" {
			values.Set(name, value)
		}
	}
	values.Del("cursor")
	values.Del(name)
	if value != "" {
		values.Set(name, value)
	}
	return "./?" + values.Encode()
}

// Badges returns the special states of the bucket now, in the words of the script.
func (b bucket) Badges() string {
	var badges []string
	add := func(applies bool, text string) {
		if applies {
			badges = append(badges, text)
		}
	}
	add(b.DryRun, "dry run")
	add(b.Override != nil, "changed")
	add(b.HeldUntil != nil, "held")
	add(b.BlockedUntil != nil, "blocked")
	add(b.Shared != nil && b.Shared.State != string(shaper.BucketShared), "bucket unavailable")
	add(b.Refusing && b.DryRun, "would refuse")
	add(b.Refusing && !b.DryRun, "refusing")
	return strings.Join(badges, ", ")
}
