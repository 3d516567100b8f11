package browsertest_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// patience is how long a test waits for what must come at last. It is long, as the machine
// may be busy, and is used up only by a failure.
const patience = 2 * time.Minute

// A tab is one page in the browser. It keeps everything that goes wrong: messages to the
// console, exceptions, requests that fail or that go elsewhere, dialogs. The test fails
// by each that it has not announced.
type tab struct {
	t    testing.TB
	ctx  context.Context
	host string // with the port: the only one that the page may talk to
	dir  string // for pictures

	mu       sync.Mutex
	problems []string
	expected []*regexp.Regexp
	requests []string          // methods and URLs
	urls     map[string]string // by id of the request
}

// newTab opens an empty page that may talk to the server at the address, and closes it
// when the test ends. It shares nothing with other tabs, as if it were the only one of a browser.
func newTab(t testing.TB, address string) *tab {
	t.Helper()
	return openTab(t, requireBrowser(t), address, chromedp.WithNewBrowserContext())
}

// beside opens another tab of the same browser: both share its connections.
func (p *tab) beside() *tab {
	p.t.Helper()
	return openTab(p.t, p.ctx, "http://"+p.host)
}

func openTab(t testing.TB, in context.Context, address string, opts ...chromedp.ContextOption) *tab {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(in, opts...)
	p := &tab{t: t, ctx: ctx, host: u.Host, dir: t.ArtifactDir(), urls: map[string]string{}}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, p.note))
	t.Cleanup(func() {
		defer cancel()
		for _, problem := range p.unexpected() {
			t.Error(problem)
		}
		if t.Failed() {
			p.shoot("failed")
		}
		require.NoError(t, p.close())
	})
	return p
}

// close closes the tab and its browser context. chromedp gives that up after five seconds, so
// on a busy machine it is done again.
func (p *tab) close() error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	id := chromedp.FromContext(p.ctx).BrowserContextID
	err := chromedp.Cancel(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	again, cancel := context.WithTimeout(browser.ctx, patience)
	defer cancel()
	_, err = cdp.Call(again, chromedp.FromContext(browser.ctx).Browser, target.DisposeBrowserContext,
		target.DisposeBrowserContextParams{BrowserContextID: id})
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil // Any other error is of a context that has gone meanwhile.
}

// note is called with the events of the page in their order.
func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	problem := func(format string, args ...any) { p.problems = append(p.problems, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if kind := string(e.Type); kind == "error" || kind == "warning" || kind == "assert" {
			problem("console.%s: %s", kind, arguments(e.Args))
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		problem("exception: %s", text)
	case *log.EventEntryAdded:
		if level := string(e.Entry.Level); level == "error" || level == "warning" {
			problem("log %s: %s: %s %s", level, e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.urls[string(e.RequestID)] = e.Request.URL
		p.requests = append(p.requests, e.Request.Method+" "+e.Request.URL)
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Scheme != "data" && (u.Scheme != "http" || u.Host != p.host) {
			problem("request to another host: %s %s", e.Request.Method, e.Request.URL)
		}
	case *network.EventWebSocketCreated:
		problem("request to another host: websocket %s", e.URL)
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 {
			problem("status %d: %s", e.Response.Status, e.Response.URL)
		}
	case *network.EventLoadingFailed:
		if !e.Canceled { // a page that is left, and a stream that is closed, cancel
			problem("failed: %s: %s", e.ErrorText, p.urls[string(e.RequestID)])
		}
	case *page.EventJavascriptDialogOpening:
		problem("dialog: %s", e.Message)
		go func() { // not from here: it waits for an answer that is read after this
			_, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	case *inspector.EventTargetCrashed:
		problem("the page has crashed")
	}
}

func arguments(args []*runtime.RemoteObject) string {
	var texts []string
	for _, a := range args {
		texts = append(texts, a.Description+string(a.Value))
	}
	return strings.Join(texts, " ")
}

// expect says that problems which match the pattern are part of the test.
func (p *tab) expect(pattern string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, regexp.MustCompile(pattern))
}

// unexpected returns the problems so far that the test has not said it expects.
func (p *tab) unexpected() (problems []string) {
	// Events come in their order: those before this answer have been noted.
	_, _ = run(p, chromedp.Evaluate[int]("0"))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range p.problems {
		if !slices.ContainsFunc(p.expected, func(e *regexp.Regexp) bool { return e.MatchString(problem) }) {
			problems = append(problems, problem)
		}
	}
	return problems
}

// sent returns how many requests so far match the pattern; a request reads "GET http://…".
func (p *tab) sent(pattern string) (n int) {
	expression := regexp.MustCompile(pattern)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if expression.MatchString(r) {
			n++
		}
	}
	return n
}

// run runs an action that returns a value, and gives it up late.
func run[T any](p *tab, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, action)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	_, err := run(p, chromedp.Steps(steps...))
	require.NoError(p.t, err)
}

// call is an action that sends a command of the protocol whose answer does not matter.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (p *tab) open(address string) {
	p.t.Helper()
	p.do(chromedp.Navigate(address))
}

// click clicks an element. It does not do so by the mouse: when the page moves an element just
// then, a click at the place where it was misses it.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.WaitVisible(chromedp.CSS(selector)))
	eval[bool](p, fmt.Sprintf("(element => { element.focus(); element.click(); return true })(document.querySelector(%q))", selector))
}

// set types a text into a field, in place of its content.
func (p *tab) set(selector, text string) {
	p.t.Helper()
	field := chromedp.CSS(selector)
	p.do(chromedp.Focus(field, chromedp.NodeVisible), chromedp.Evaluate[chromedp.Void](`document.activeElement.select()`), chromedp.SendKeys(field, text))
}

// eval returns the value of a JavaScript expression.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	value, err := run(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoErrorf(p.t, err, "%s", expression)
	return value
}

// await evaluates the expression again and again until its value is as wanted, and returns it.
// An error counts as not yet: the page may be about to be replaced by another.
func await[T any](p *tab, what, expression string, wanted func(T) bool) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		if err == nil && wanted(value) {
			return value
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("%s: not within %v; last: %v %v", what, patience, value, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitTrue waits until the JavaScript condition holds.
func (p *tab) awaitTrue(what, condition string) {
	p.t.Helper()
	await(p, what, "Boolean("+condition+")", func(ok bool) bool { return ok })
}

// shows waits until the text of an element has all these parts, and returns it.
func (p *tab) shows(what, selector string, parts ...string) string {
	p.t.Helper()
	return await(p, what, text(selector), func(shown string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(shown, part) })
	})
}

// js returns v as JavaScript.
func js(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// prefers sets media features, such as prefers-color-scheme, by name and value.
func (p *tab) prefers(features ...string) {
	p.t.Helper()
	var params emulation.SetEmulatedMediaParams
	for pair := range slices.Chunk(features, 2) {
		params.Features = append(params.Features, &emulation.MediaFeature{Name: pair[0], Value: pair[1]})
	}
	p.do(call(emulation.SetEmulatedMedia, params))
}

// phone makes the tab as wide as a phone, with fingers for a mouse.
func (p *tab) phone() {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(2)))
}

// withoutScript turns the page's JavaScript off; the JavaScript of the test still runs.
func (p *tab) withoutScript() {
	p.t.Helper()
	p.do(call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
}

// shoot writes a picture of the whole page into the test's folder of artifacts, if go test has the
// flag -artifacts: otherwise nobody could look at it, and it costs as much as opening the page.
func (p *tab) shoot(name string) {
	if flag.Lookup("test.artifacts").Value.String() != "true" {
		return
	}
	picture, err := run(p, chromedp.FullScreenshot(100))
	if err != nil {
		p.t.Logf("no picture: %v", err)
		return
	}
	file := filepath.Join(p.dir, name+".png")
	require.NoError(p.t, os.WriteFile(file, picture, 0o644))
	p.t.Logf("picture: %s", file)
}

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

// requireChromium returns the program to run. Where there is none the test is skipped,
// unless nothing may be missing.
func requireChromium(t testing.TB) string {
	t.Helper()
	program, err := findChromium()
	if err != nil && os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
	return program
}

// findChromium returns the program that CHROME_BIN names, or else the first in PATH of
// those that are Chromium or Chrome. The headless shell is Chromium without its windows:
// it draws pages with the same code, and takes a third of the processor time.
func findChromium() (string, error) {
	names := []string{"chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"}
	if bin := os.Getenv("CHROME_BIN"); bin != "" { // It must not be replaced in silence if it is missing.
		names = []string{bin}
	}
	for _, name := range names {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", fmt.Errorf("none of %q is in PATH (Debian: apt-get install chromium-headless-shell fonts-dejavu-core)", names)
}

// browser is shared by all tests, as it takes a second to start. It is started by the
// first test that needs it.
var browser struct {
	once sync.Once
	ctx  context.Context
	err  error
	stop func() error // nil before the start
}

// requireBrowser returns the context of the browser; the context of a tab is made from it.
func requireBrowser(t testing.TB) context.Context {
	t.Helper()
	program := requireChromium(t)
	browser.once.Do(func() { startBrowser(program) })
	require.NoError(t, browser.err)
	return browser.ctx
}

func startBrowser(program string) {
	var output bytes.Buffer
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.CombinedOutput(&output),
		chromedp.WSURLReadTimeout(patience),
		chromedp.Env("HOME="+os.Getenv("TMPDIR")), // Debian's launcher and NSS look there
		// The sandbox cannot start as root, nor in many a container. It would protect from
		// foreign pages, and there are none: all names lead nowhere.
		chromedp.NoSandbox,
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("lang", "en-US"),
		chromedp.WindowSize(1280, 900),
	)
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	browser.ctx = ctx
	browser.stop = func() error {
		defer stopAllocator()
		defer cancel()
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return chromedp.Cancel(ctx)
	}
	if err := chromedp.Do(ctx); err != nil {
		browser.err = fmt.Errorf("%s does not start: %w\n%s", program, err, &output)
	}
}

// stopBrowser ends the browser, and waits for its end.
func stopBrowser() error {
	if browser.stop == nil || browser.err != nil { // The error was said already by each test.
		return nil
	}
	return browser.stop()
}

// What the tests rely on to notice that something goes wrong must notice it.
func TestATabNoticesWhatGoesWrong(t *testing.T) {
	t.Parallel()
	const html = `<!doctype html><link rel="icon" href="data:,">
		<img src="/missing.png" alt="">
		<img src="http://127.0.0.1:1/" alt="">
		<script>fetch("http://elsewhere.example/").catch(() => {})</script>
		<script>console.error("oh", {a: 1})</script>
		<script>alert("gotcha")</script>
		<script>nobody()</script>
		<script>Promise.reject(new Error("broken"))</script>
		<meta http-equiv="Content-Security-Policy" content="script-src 'none'">
		<script>forbidden()</script>`
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, html)
	}))
	p := newTab(t, server)
	p.open(server)
	for _, problem := range []string{
		`status 404: .*missing\.png`,
		`request to another host: GET http://127\.0\.0\.1:1/`,
		`request to another host: GET http://elsewhere\.example/`,
		`failed: net::ERR_NAME_NOT_RESOLVED: http://elsewhere\.example/`,
		`console\.error: .*oh`,
		`dialog: gotcha`,
		`exception: .*nobody is not defined`,
		`exception: .*broken`,
		`log error: security: .*Content Security Policy`,
	} {
		found := func() bool { return slices.ContainsFunc(p.unexpected(), regexp.MustCompile("^"+problem).MatchString) }
		realtime.Until(t, found, "what went wrong is "+problem)
	}
	p.expect("")
}

func TestAxeFindsWhatShutsPeopleOut(t *testing.T) {
	t.Parallel()
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'unsafe-inline'")
		io.WriteString(w, `<!doctype html><html lang="en"><title>x</title><link rel="icon" href="data:,"><main><h1>x</h1>
			<button></button><p style="color: #ccc; background: #fff">faint</p></main>`)
	}))
	p := newTab(t, server)
	p.open(server)
	found := p.violations()
	require.Len(t, found, 2)
	require.Regexp(t, "^button-name: ", found[0])
	require.Regexp(t, "^color-contrast: ", found[1])
}

// serve runs the handler at an address of this machine until the test ends.
func serve(t testing.TB, h http.Handler) (address string) {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
