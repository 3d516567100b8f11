package browsertest_test

import (
	_ "embed"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// axeSource is axe-core, which knows hundreds of ways in which a page can shut somebody out.
//
//go:embed testdata/axe/axe.min.js
var axeSource string

// readableByAll requires that axe-core finds nothing in the page as it is now, in light and in dark
// colors. Both differ in nothing but their colors, so in dark only these are looked at.
func (p *tab) readableByAll(what string) {
	p.t.Helper()
	p.prefers("prefers-color-scheme", "light")
	require.Empty(p.t, p.violations(), "%s, light", what)
	p.shoot(what + " light")
	p.prefers("prefers-color-scheme", "dark")
	require.Empty(p.t, p.violations("color-contrast"), "%s, dark", what)
	p.shoot(what + " dark")
}

// violations returns what axe-core finds in the page as it is now: one text for each rule
// that is broken, with the elements that break it. The script is evaluated by the
// debugger, so the page's Content-Security-Policy, which must forbid it, stays in force.
// Without names of rules all rules are looked at.
func (p *tab) violations(rules ...string) []string {
	p.t.Helper()
	if !eval[bool](p, `"axe" in window`) {
		p.do(chromedp.Evaluate[chromedp.Void](axeSource))
	}
	only := ""
	if len(rules) > 0 {
		only = "runOnly: " + js(rules) + ", "
	}
	axe := `axe.run(document, {` + only + `resultTypes: ["violations"], preload: false}).then(found =>
		found.violations.map(v => v.id + ": " + v.help + v.nodes.map(n => "\n\t" + n.html + "\n\t\t" + n.failureSummary).join("")))`
	found, err := run(p, chromedp.Evaluate[[]string](axe, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err)
	return found
}
