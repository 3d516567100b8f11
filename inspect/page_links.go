package inspect

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"strings"
)

// pageParameters are those of the page: beside the ones of the list they say what is
// selected, and how the script shows it.
var pageParameters = append([]string{"key", "filter", "paused"}, listParameters...)

// pageSort is the order of the page if its URL names none.
const pageSort = "-waiting"

// A quickLink is a filter of the page that is one click away.
type quickLink struct {
	Name, Label string
	Pressed     bool
	URL         string // turns the filter on, or off if it is on
}

// quickFilters are the quick filters, with the parameters of the list that each stands
// for.
var quickFilters = []struct {
	name, label string
	parameters  map[string]string
}{
	{"waiting", "has a line", map[string]string{"waiting_gt": "0"}},
	{"half", "over half full", map[string]string{"fill_gt": "0.5"}},
	{"refusing", "refusing now", map[string]string{"refusing": "true"}},
	{"dry_run", "would refuse in dry run", map[string]string{"dry_run": "true", "refused_gt": "0"}},
}

// A columnLink is a column by which the table can be sorted.
type columnLink struct {
	Name, Label string
	Aria        string // ascending, descending or none
	URL         string // sorts by the column, or the other way round if it is sorted by it
}

var columns = []struct{ name, label string }{
	{"key", "Key"}, {"waiting", "Waiting"}, {"oldest_wait", "Oldest wait"}, {"level", "Level"}, {"fill", "Fill"},
	{"departed", "Departed"}, {"refused", "Refused"}, {"abandoned", "Gave up"}, {"idle", "Idle"},
}

// listOfPage returns the first table of the page.
func (i *Inspector) listOfPage(ctx context.Context, q query) (*list, error) {
	asked := query{values: maps.Clone(q.values)}
	asked.values["sort"] = cmp.Or(q.text("sort"), pageSort)
	if name := q.text("filter"); name != "" {
		found := false
		for _, f := range quickFilters {
			if f.name == name {
				maps.Copy(asked.values, f.parameters)
				found = true
			}
		}
		if !found {
			return nil, wrong("filter", name, "must be waiting, half, refusing or dry_run")
		}
	}
	l, err := readListing(asked)
	if err != nil {
		return nil, err
	}
	return i.list(ctx, l)
}

func (q query) quickLinks() []quickLink {
	var links []quickLink
	for _, f := range quickFilters {
		link := quickLink{Name: f.name, Label: f.label, Pressed: q.text("filter") == f.name, URL: q.with("filter", f.name)}
		if link.Pressed {
			link.URL = q.with("filter", "")
		}
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
		link.URL = q.with("sort", sort)
		links = append(links, link)
	}
	return links
}

// Open returns the URL of the page that shows the bucket.
func (b bucket) Open() string {
	return "/?" + url.Values{"source": {b.Source}, "key": {b.raw}}.Encode()
}

// with returns the URL of the page with one parameter changed; empty takes it away. The
// place in the table is kept only if it is what is changed.
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
	return "/?" + values.Encode()
}
