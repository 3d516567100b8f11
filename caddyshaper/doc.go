// Package caddyshaper is a module for Caddy: the handler http.handlers.shape, with the
// directive shape for Caddyfiles. It lets requests wait in line, so that they reach the
// upstream at a steady rate, and refuses at once those for which there is no place.
//
//	shop.example {
//		shape {
//			rules /etc/shaper.yaml          # how much may pass, by key; read again when it changes
//			key   route client_ip           # each has a line of its own
//			site  200/s depth 500           # one line for all, behind the lines of the keys
//			store redis://127.0.0.1:6379    # levels shared with other processes
//			state /var/lib/shaperd/levels.json
//			ratelimit_headers
//		}
//		shape /login limits 5/min burst 5
//		reverse_proxy 10.0.0.5:3000
//	}
//
// [Shape] has the fields of the JSON, and [Shape.UnmarshalCaddyfile] all subdirectives.
//
// The directive stands before invoke, handle and route in Caddy's order, so that it also
// holds for requests in these. "order shape before reverse_proxy" puts it behind them: then
// only requests in no handle or route block go through it. A block needs lines of its own, as
// everywhere in a Caddyfile; a shape with nothing but limits may be written in one line.
//
// # Limits
//
// Limits are a text (shaper.ParseLimits): "50/s burst 10 depth 100 wait 2s inflight 8" lets
// 10 requests pass at once and 50 a second after that, while up to 100 wait in line for 2
// seconds at most, and not more than 8 are being answered. "100 in 1min burst 20" lets at most 100
// pass in any window of a minute ([shaper.Window]). Without a depth no request waits.
//
// Either limits says them for all keys, or rules names files of package config, each a layer
// over those before it, in which the rule for a key is looked up. Changed files are read again
// by themselves. If they have mistakes, the rules in force stay, and the log has the mistakes;
// at the start, and when Caddy loads a configuration, a mistake in them is an error that names
// file and line.
//
// candidate names limits to try: they hold no request up, and only give their verdict. In rules
// each rule may have one. dry_run does the same with the limits themselves.
//
// # Keys
//
// Each key has a line of its own. key names its parts, which shaper.Join joins:
//
//   - client_ip: the address that Caddy takes for the client's, by trusted_proxies; of an
//     IPv6 address the first 64 bits (ipv6_bits). This is the default. Behind a proxy set
//     trusted_proxies_strict too: without it Caddy takes the first address of
//     X-Forwarded-For, which the client may have written.
//   - route: the pattern that the request matches, as "POST /login" or "/orders/{id}". Patterns
//     begin the keys of rules, or are named by routes. A request that matches none has the part
//     "-". It is not the path, because a client could ask for ever new ones.
//   - host: the host of the request, in lower case and without its port.
//   - header:NAME: the value of a header field. A client may write anything there.
//   - {placeholder}: any text with placeholders of Caddy.
//   - all, alone: all requests have one line.
//
// Put the part that picks the rule first. At most max_keys keys have a line of their own; further
// keys share lines (see shaper.Group), so that no client gains by making up keys.
//
// cost is the cost of a request, by a number or placeholders. A value that is no number, or is
// less than 1, counts as 1: whatever a client sends there, it is not free. The most is 1000,
// or a second number. To let requests pass, such as health checks, use a matcher.
//
// With fair in place of key there is one line, whose rate the keys share: they take turns, by
// their weights ([shaper.WithFairQueue]). A weight counts from the first request of a key in line until
// the key has none, also over a reload. With rules fair has no words: the files have the parts of the keys,
// their weights and, as their default, the limits of the line.
//
// With quota in place of limits the handler is a gateway to a provider of language models, and its
// cost units are parts of a minute's quota ([gateway.Gateway]). A reload that changes the quota re-times the
// calls in line, by the limit that has grown least.
//
// # Refusals, placeholders and logs
//
// A refusal is 429 where there is no place, the wait would be too long or the limit is reached,
// 503 where the store can't be asked or the process ends, and 500 where no rule matches. It has
// Retry-After, Cache-Control and the application/problem+json body of shaper.WriteError. If
// handle_errors, or the error routes of a subroute, match it, they respond in its place, with
// Retry-After and Cache-Control already set. A client that has left while it waited is logged
// with status 499. Refusals with 503 and 500 are logged as errors, at most one line a second for
// each of the two, with their number since the line before.
//
// The handlers behind, error routes and the access log have:
//
//	{http.shape.name}     shape_name     the name of the handler
//	{http.shape.key}      shape_key      the key of the request
//	{http.shape.wait}     shape_wait     the time in line, in seconds; of several handlers the sum
//	{http.shape.verdict}  shape_verdict  of a candidate or dry run: "leave", "wait;seconds=1.300", "refuse;reason=queue-full"
//	{http.shape.error}    shape_error    why it was not admitted: queue-full, too-late, too-costly,
//	                                     unavailable, closed, deadline, gone, failed
//
// Where a request goes through several handlers, name, key, verdict and error are the last
// one's. ratelimit_headers, server_timing and verdict_header add fields to responses, and
// log_refusals logs refusals, at most one line a second.
//
// # Names and reloads
//
// A handler's lines are known by its name. In a Caddyfile that is the first address of the
// site and the matcher, unless the directive has a name; two that would have the same name need
// one. Handlers of one name share their lines, as when a snippet is imported by two sites, and
// so must have the same settings.
//
// A reload of Caddy loses no request. The lines outlive it: requests that wait stay where
// they are, levels stay, and changed limits count at once, also for these requests. This goes
// for limits, rules, candidate, site, state and all settings of keys and responses. If the limits of
// a key get or lose an inflight, the key keeps its limits until its line is empty.
//
// Fair queueing or not, store, fallback, patience, shared_inflight, site_shared_inflight, cold_guard, rate_version,
// max_keys, line_timeout, block, coarse_timer, dry_run, and the name can't change for lines in use. After a reload that changes
// them, requests go to new lines, which take over the levels of the old ones if the name is the same.
// Levels are not taken over between a line with fair queueing and lines without it. Requests that
// wait in the old lines leave at the old rate, beside the new ones. All have their seats from one store, so together
// they are never above the greater of both caps.
//
// A configuration that fails changes nothing: its limits come into force only when all of it
// has started.
//
// A server of net/http that ends, as the old one does at each reload, closes a new connection
// whose first request it reads at that moment. No handler has seen such a request, and clients
// repeat it.
//
// When the process ends, lines drain at their rates while Caddy's grace_period lasts. A
// request that still waits shortly before its end (a tenth of it, from 100 ms to 2 s) is
// refused with 503 and Retry-After. Without a grace_period Caddy waits until all lines are
// empty.
//
// # Stores and state
//
// store keeps the levels where several processes share them: redis:// or rediss:// for one
// server, several of these for servers that each have a part of the keys,
// redis+cluster://host?addr=host2, redis+sentinel://host?master_name=name, or postgres://,
// where the table is made if it is not there. Handlers with the same URL share connections.
// Passwords belong into placeholders such as {env.REDIS_PASSWORD}; no error or log has them.
// fallback counts while the store can't be asked: with closed no request leaves, with open each
// process uses the whole rate, and with local 3 a third of it. shared_inflight 20 lets all processes together have
// 20 requests of a key at the upstream, and site_shared_inflight so many of the site. docs/shared.md has the rest.
//
// Beside a quota, store is for replicas of the gateway: one of them has the line of the handler's name, and the
// others pass their calls on to the address that it advertises. Levels are that process's own.
// Its end, and a configuration with another store or none, hand the line on; every other reload
// keeps it ([example.com/leakybucket/llm/replicas]). docs/gateway.md has the rest.
//
// state names a file that keeps the levels while the process does not run: it is written every
// minute and at the end, and read at the start. Several handlers may name one file. Its folder
// must exist. A malformed file is set aside with the ending .broken. Beside a quota and a store, each replica has a file of
// its own: it counts when all have ended, and never lowers what is handed on.
//
// # Looking on
//
// The directive shape_inspect serves the live page and the API of package inspect ([Inspect]),
// and /shape/ at Caddy's admin endpoint does so for programs ([Admin]). Caddy's metrics include
// the metrics of package promshaper, whose label rule is the name of the handler, or the name
// with "/candidate" or "/site" behind it. For rules in files there are also
// shaper_config_last_reload_successful and shaper_config_last_reload_success_timestamp_seconds.
// shape_ready tells load balancers whether to send requests here ([Readiness]), and shape_healthy
// answers 200 as long as the process serves.
package caddyshaper
