// Package inspect shows running shapers and groups to people and programs: a live page,
// and an API that lists, filters and explains buckets.
//
//	i := inspect.New()
//	defer i.Close()
//	i.Add("upstream", inspect.Of(s))
//	i.Add("clients", inspect.OfGroup(g))
//	l, err := net.Listen("tcp", "127.0.0.1:6060")
//	…
//	go http.Serve(l, i)
//
// An [Inspector] is an [http.Handler] for a listener of its own: it answers at the paths
// "/", "/web/…" and "/api/…". Its page names them relative to its own address, so with
// [http.StripPrefix] it can also be served below a path that ends in "/". Unless [WithHosts] names others, it answers only clients of
// the same machine that call it by a loopback name, so that neither another machine nor
// a page that a browser has open elsewhere can read it. Unless [WithControl] is given,
// nothing can be changed through it.
//
// Looking costs little. A list of buckets comes from a scan of its source, which is made
// only when somebody asks and at most once a second, however many ask. Keys are text
// wherever they are shown, whatever bytes they hold.
//
// docs/inspect.md describes the API, and openapi.json, which the Inspector serves at
// /api/v1/openapi.json, is its exact form.
package inspect
