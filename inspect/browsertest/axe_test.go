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

// violations returns what axe-core finds in the page as it is now: one text for each rule
// that is broken, with the elements that break it. The script is evaluated by the
// debugger, so the page's Content-Security-Policy, which must forbid it, stays in force.
func (p *tab) violations() []string {
	p.t.Helper()
	p.do(chromedp.Evaluate[chromedp.Void](axeSource))
	const axe = `axe.run(document, {resultTypes: ["violations"], preload: false}).then(found =>
		found.violations.map(v => v.id + ": " + v.help + v.nodes.map(n => "\n\t" + n.html + "\n\t\t" + n.failureSummary).join("")))`
	found, err := run(p, chromedp.Evaluate[[]string](axe, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err)
	return found
}
