package report

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/caddyfile"
	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A Setup has the parts of a configuration beside the limits of a [Document].
type Setup struct {
	Files    []string // of the rules
	Key      []string // the parts of the keys
	Routes   []string // patterns of routes, beside those in the rules
	IPv6Bits int      // of a client's address
}

// A limited is a rule with its limits in a configuration.
type limited struct {
	rule    string // its key
	text    string
	limits  shaper.Limits
	comment string // why there are none, or how they were found; "": none
}

// limits returns the limits that were replayed, or found.
func (d *Document) limits() (all []limited, err error) {
	add := func(rule, text, comment string) {
		l := limited{rule: rule, text: text, comment: comment}
		if text != "" && err == nil {
			l.limits, err = shaper.ParseLimits(text)
		}
		all = append(all, l)
	}
	for _, r := range d.Rules {
		comment := ""
		if r.Limits == "" {
			comment = "it has no candidate"
		}
		add(r.Rule, r.Limits, comment)
	}
	for _, f := range d.Found {
		switch {
		case f.Requests == 0:
			add(f.Rule, f.Now.Limits, "no request met it, so the limits are as they were")
		case f.Found.Limits == "":
			add(f.Rule, "", "no rate keeps to the goal")
		default:
			add(f.Rule, f.Found.Limits, "")
		}
	}
	return all, err
}

// head writes the origin of the configuration, as comments.
func (d *Document) head(b *strings.Builder, differs ...string) {
	fmt.Fprintf(b, "# %s\n", d.title())
	if d.Goal != "" {
		fmt.Fprintf(b, "# found for %s\n", strings.Join(strings.Fields(d.Goal), " "))
	}
	for _, note := range d.Notes {
		fmt.Fprintf(b, "# Note: %s\n", note)
	}
	b.WriteString("#\n# Differences from the replay:\n")
	for _, text := range differs {
		fmt.Fprintf(b, "# - %s\n", text)
	}
	b.WriteString("\n")
}

// Caddy returns the directive shape for a Caddyfile.
func Caddy(d *Document, s Setup) (string, error) {
	all, err := d.limits()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	d.head(&b, "nothing in the limits: the shaper in Caddy is the one of the replay",
		"the client is what Caddy takes for it, by trusted_proxies and trusted_proxies_strict")
	files, err := caddyWords(s.Files, caddyfile.Literal)
	if err != nil {
		return "", err
	}
	key, err := caddyWords(s.Key, caddyfile.Word)
	if err != nil {
		return "", err
	}
	routes, err := caddyWords(s.Routes, caddyfile.Literal)
	if err != nil {
		return "", err
	}
	lines := []string{}
	switch {
	case d.Goal == "" && !d.Candidates:
		lines = append(lines, "rules "+files)
	case len(all) == 1 && all[0].rule == "" && all[0].text != "":
		lines = append(lines, "limits "+all[0].text)
	default:
		fmt.Fprintf(&b, "# Write this into %s:\n#\n", s.Files[len(s.Files)-1])
		for line := range strings.Lines(strings.ReplaceAll(yamlOf(all), "{$", `{\u0024`)) { // To YAML they are the same.
			b.WriteString("#\t" + line)
		}
		b.WriteString("\n")
		lines = append(lines, "rules "+files)
	}
	lines = append(lines, "key "+key)
	if len(s.Routes) > 0 {
		lines = append(lines, "routes "+routes)
	}
	if s.IPv6Bits != 64 && slices.Contains(s.Key, "client_ip") {
		lines = append(lines, "ipv6_bits "+strconv.Itoa(s.IPv6Bits))
	}
	b.WriteString("shape {\n\t" + strings.Join(lines, "\n\t") + "\n}\n")
	return caddyfile.Plain(b.String()), nil
}

// caddyWords returns words as a Caddyfile has them.
func caddyWords(words []string, write func(string) (string, error)) (string, error) {
	all := make([]string, len(words))
	for i, w := range words {
		var err error
		if all[i], err = write(w); err != nil {
			return "", err
		}
	}
	return strings.Join(all, " "), nil
}

// yamlOf returns rules as a file of package config.
func yamlOf(all []limited) string {
	text, rules := "", ""
	for _, l := range all {
		comment := ""
		if l.comment != "" {
			comment = " # " + l.comment
		}
		switch {
		case l.text == "":
			rules += fmt.Sprintf("  # %s: %s\n", strconv.Quote(ruleName(l.rule)), l.comment)
		case l.rule == "":
			text += fmt.Sprintf("default: %s%s\n", l.text, comment)
		default:
			rules += fmt.Sprintf("  %s: %s%s\n", strconv.Quote(l.rule), l.text, comment)
		}
	}
	if rules != "" {
		rules = "limits:\n" + rules
	}
	return text + rules
}

// Nginx returns the directives limit_req_zone and limit_req for the block http of nginx.
func Nginx(d *Document, s Setup) (string, error) {
	all, err := d.limits()
	if err != nil {
		return "", err
	}
	// The rule with more parts is the one that counts.
	slices.SortStableFunc(all, func(a, b limited) int {
		return cmp.Or(cmp.Compare(strings.Count(b.rule+"/", "/"), strings.Count(a.rule+"/", "/")), cmp.Compare(b.rule, a.rule))
	})
	n := nginx{key: s.Key, routes: map[string]string{}}
	var b strings.Builder
	d.head(&b, n.differences(s, all)...)
	n.writeRoutes(&b, s.Routes, all)
	several := len(all) > 1 || len(all) == 1 && all[0].rule != ""
	if several {
		n.writeChoice(&b, all)
	}
	uses := ""
	for i, l := range all {
		name := fmt.Sprintf("shape_%d", i+1)
		fmt.Fprintf(&b, "# %s: %s\n", Quoted(ruleName(l.rule)), cmp.Or(l.text, "no limits"))
		if l.comment != "" {
			fmt.Fprintf(&b, "# %s\n", l.comment)
		}
		if l.text == "" || l.limits.Rate == rate.Inf {
			b.WriteString("\n")
			continue
		}
		key := `"` + n.expression("$binary_remote_addr") + `"`
		if several {
			fmt.Fprintf(&b, "map $shape_rule $%s {\n    %d %s;\n    default \"\";\n}\n", name, i+1, key)
			key = "$" + name
		}
		perTime, rounded := nginxRate(l.limits.Rate)
		for _, text := range rounded {
			fmt.Fprintf(&b, "# %s\n", text)
		}
		fmt.Fprintf(&b, "limit_req_zone %s zone=%s:10m rate=%s;\n", key, name, perTime)
		burst, comments := nginxBurst(l.limits)
		for _, text := range comments {
			fmt.Fprintf(&b, "# %s\n", text)
		}
		b.WriteString("\n")
		uses += fmt.Sprintf("limit_req zone=%s%s;\n", name, burst)
	}
	b.WriteString("# These may stand in a block server or location instead.\nlimit_req_status 429;\n" + uses)
	return b.String(), nil
}

// An nginx writes the parts of keys in the words of nginx.
type nginx struct {
	key    []string
	routes map[string]string // the values of $shape_route, by patterns
}

// differences are comments about things that nginx does in another way.
func (n *nginx) differences(s Setup, all []limited) []string {
	texts := []string{"nginx counts in milliseconds, and rates in whole requests per second or minute; there is no Retry-After"}
	if slices.Contains(s.Key, "client_ip") && s.IPv6Bits < 128 {
		texts = append(texts, fmt.Sprintf("each IPv6 address is a client by itself, and not the first %d bits of it", s.IPv6Bits))
	}
	if slices.Contains(s.Key, "route") {
		texts = append(texts, "a route is the first expression of $shape_route that fits, and in Go the most special pattern")
	}
	for _, part := range s.Key {
		if header, ok := strings.CutPrefix(part, "header:"); ok && len(s.Key) == 1 {
			texts = append(texts, "a request without the header field "+header+" is not limited")
		}
	}
	if !slices.ContainsFunc(all, func(l limited) bool { return l.rule == "" }) {
		texts = append(texts, "requests that no rule matches are not limited; a Group refuses them")
	}
	return texts
}

// expression returns the text that is the key of a bucket. client is the variable with the
// address.
func (n *nginx) expression(client string) string {
	parts := []string{}
	for _, part := range n.key {
		header, isHeader := strings.CutPrefix(part, "header:")
		switch {
		case isHeader:
			parts = append(parts, "${http_"+strings.ReplaceAll(strings.ToLower(header), "-", "_")+"}")
		case part == "client_ip":
			parts = append(parts, client)
		case part == "host":
			parts = append(parts, "$host")
		case part == "route":
			parts = append(parts, "$shape_route")
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "|")
}

// writeRoutes writes the map from requests to routes, if the keys have them.
func (n *nginx) writeRoutes(b *strings.Builder, patterns []string, all []limited) {
	at := slices.Index(n.key, "route")
	if at < 0 {
		return
	}
	patterns = slices.Clone(patterns)
	for _, l := range all {
		if parts := strings.Split(l.rule, "/"); at < len(parts) {
			if pattern, err := url.PathUnescape(parts[at]); err == nil && strings.Contains(pattern, "/") {
				patterns = append(patterns, pattern)
			}
		}
	}
	slices.SortFunc(patterns, func(a, b string) int {
		return cmp.Or(cmp.Compare(rankOf(b), rankOf(a)), cmp.Compare(a, b))
	})
	b.WriteString("map \"$request_method $host$uri\" $shape_route {\n    default -;\n")
	for i, pattern := range slices.Compact(patterns) {
		n.routes[pattern] = fmt.Sprintf("r%d", i+1)
		fmt.Fprintf(b, "    \"~%s\" %s; # %s\n", regexpOf(pattern), n.routes[pattern], Quoted(pattern))
	}
	b.WriteString("}\n")
}

// rankOf is greater for patterns that are more special.
func rankOf(pattern string) int {
	rank := 2 * len(pattern)
	if strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, "...}") {
		rank -= 1000
	}
	rank -= 100 * strings.Count(pattern, "{")
	if !strings.HasPrefix(pattern, "/") {
		rank += 1 << 20 // It names a method or a host.
	}
	return rank
}

var wildcard = regexp.MustCompile(`\{[^{}]*\}`)

// regexpOf returns the regular expression of a pattern of [net/http.ServeMux], over the method,
// the host and the path.
func regexpOf(pattern string) string {
	method, rest, ok := strings.Cut(pattern, " ")
	switch {
	case !ok:
		method, rest = "[^ ]+", pattern
	case method == "GET":
		method = "(?:GET|HEAD)"
	}
	rest = strings.TrimLeft(rest, " \t")
	host, path, _ := strings.Cut(rest, "/")
	hosts := "[^/]*"
	if host != "" {
		hosts = quoteMeta(host)
	}
	text, from := "/", 0
	for _, at := range wildcard.FindAllStringIndex(path, -1) {
		text += quoteMeta(path[from:at[0]])
		switch name := path[at[0]+1 : at[1]-1]; {
		case name == "$":
		case strings.HasSuffix(name, "..."):
			text += ".*"
		default:
			text += "[^/]+"
		}
		from = at[1]
	}
	text += quoteMeta(path[from:])
	if strings.HasSuffix(rest, "/") {
		text += ".*"
	}
	return "^" + method + " " + hosts + text + "$"
}

// quoteMeta returns a regular expression for a text, in the quotes of nginx.
func quoteMeta(text string) string {
	return strings.NewReplacer(`\\`, `\\\\`, `"`, `\"`).Replace(regexp.QuoteMeta(text))
}

// writeChoice writes the map from requests to the numbers of rules.
func (n *nginx) writeChoice(b *strings.Builder, all []limited) {
	fmt.Fprintf(b, "map \"%s\" $shape_rule {\n", n.expression("$remote_addr"))
	at := slices.Index(n.key, "route")
	for i, l := range all {
		if l.rule == "" {
			fmt.Fprintf(b, "    default %d;\n", i+1)
			continue
		}
		parts, prefixed := strings.Split(l.rule, "/"), false
		for j, part := range parts {
			plain, err := url.PathUnescape(part)
			switch {
			case err != nil:
				plain = part
			case part == "-" && j != at:
				plain = ""
			}
			if j == at {
				plain = cmp.Or(n.routes[plain], plain)
			}
			if _, err := netip.ParsePrefix(plain); err == nil {
				prefixed = true
			}
			parts[j] = quoteMeta(plain)
		}
		comment := Quoted(l.rule)
		if prefixed {
			comment += ", which nginx never meets: it compares whole addresses"
		}
		fmt.Fprintf(b, "    \"~^%s(?:\\||$)\" %d; # %s\n", strings.Join(parts, `\|`), i+1, comment)
	}
	b.WriteString("}\n\n")
}

// nginxRate returns a rate in nginx's words, and the differences.
func nginxRate(r rate.Limit) (text string, comments []string) {
	const nearly = 1e-9
	whole := func(n float64) bool { return math.Abs(n-math.Round(n)) < nearly*n }
	perSecond, perMinute := float64(r), float64(r)*60
	switch {
	case perSecond >= 1 && whole(perSecond):
		return fmt.Sprintf("%.0fr/s", perSecond), nil
	case perMinute < 1:
		return "1r/m", []string{"nginx knows no slower rate than one request per minute"}
	case !whole(perMinute):
		comments = []string{"the rate is rounded"}
	}
	return fmt.Sprintf("%.0fr/m", perMinute), comments
}

// nginxBurst returns the words that follow the zone in limit_req, and the differences. nginx counts
// requests above the rate, so without the first.
func nginxBurst(l shaper.Limits) (text string, comments []string) {
	atOnce, depth := max(l.Burst, 1)-1, l.Depth
	if l.MaxWait > 0 {
		byRate := l
		byRate.InFlight = 0
		if most := limitwords.BurstOf(byRate).Waiting; most < depth {
			depth = most
			comments = append(comments, fmt.Sprintf("nginx has no longest wait, so there is room for the requests that leave within %s", limitwords.Seconds(l.MaxWait.Seconds())))
		}
	}
	if l.InFlight > 0 {
		comments = append(comments, fmt.Sprintf("inflight %d: limit_conn of nginx refuses further requests, and lets none wait", l.InFlight))
	}
	switch {
	case atOnce+depth == 0:
		return "", comments
	case depth == 0:
		return fmt.Sprintf(" burst=%d nodelay", atOnce), comments
	case atOnce == 0:
		return fmt.Sprintf(" burst=%d", depth), comments
	}
	return fmt.Sprintf(" burst=%d delay=%d", atOnce+depth, atOnce), comments
}
