package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// guide is the page for operators.
const guide = "../../docs/proxy.md"

// The Caddyfiles of the guide are only adapted: the hosts and files in them do not exist here. The
// adapter warns of a file that "shaperd fmt" would change.
func TestTheCaddyfilesOfTheGuideAreAdapted(t *testing.T) {
	t.Setenv("OPS_PASSWORD_HASH", "$2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG")
	block := regexp.MustCompile("(?s)```caddyfile\n(.*?)```")
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	found := block.FindAllStringSubmatch(string(text), -1)
	require.Len(t, found, 7)
	for _, b := range found {
		status, text := do(t, "adapt", "--config", writeFile(t, "Caddyfile", b[1]))
		require.Zero(t, status, "%s\n%s", b[1], text)
		require.Contains(t, text, `"handler":"shape"`, b[1])
		require.NotContains(t, text, `"level":"warn"`, b[1])
		require.NotContains(t, text, `"level":"error"`, b[1])
	}
}

func TestTheGuideHasARowForEachSubdirective(t *testing.T) {
	read, documented := subdirectives(t)
	require.Greater(t, len(read), 20, "these are not all of them")
	require.Equal(t, read, documented, "the comment of UnmarshalCaddyfile")

	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "\n## All that a shape may say\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)[^`]*`").FindAllStringSubmatch(row[1], -1) {
			// The other words in the first column are values, such as the values of fallback.
			if slices.Contains(read, name[1]) || !strings.HasPrefix(row[1], "`fallback ") {
				rows = append(rows, name[1])
			}
		}
	}
	slices.Sort(rows)
	require.Equal(t, read, slices.Compact(rows))
}

// subdirectives returns the subdirectives of shape in order: those that caddyshaper reads, and
// those that the comment of UnmarshalCaddyfile has.
func subdirectives(t *testing.T) (read, documented []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../caddyshaper/caddyfile.go", nil, parser.ParseComments)
	require.NoError(t, err)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.GenDecl:
			read = append(read, keysOf(t, d, "subdirectives")...)
		case *ast.FuncDecl:
			if d.Name.Name == "UnmarshalCaddyfile" {
				for _, line := range regexp.MustCompile(`(?m)^\t\t([a-z0-9_]+)`).FindAllStringSubmatch(d.Doc.Text(), -1) {
					documented = append(documented, line[1])
				}
			}
		}
	}
	slices.Sort(read)
	slices.Sort(documented)
	return read, documented
}

// keysOf returns the keys of the map that a declaration gives to a variable.
func keysOf(t *testing.T, d *ast.GenDecl, variable string) (keys []string) {
	t.Helper()
	for _, spec := range d.Specs {
		values, ok := spec.(*ast.ValueSpec)
		if !ok || values.Names[0].Name != variable {
			continue
		}
		for _, element := range values.Values[0].(*ast.CompositeLit).Elts {
			key, err := strconv.Unquote(element.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value)
			require.NoError(t, err)
			keys = append(keys, key)
		}
	}
	return keys
}

// Without ">" the field would have the placeholder itself, as Caddy runs header before shape.
func TestTheFieldOfTheGuideHasTheName(t *testing.T) {
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^\theader (.*)$`).FindStringSubmatch(string(text))
	require.NotNil(t, line)
	s := serveSite(t, "shape shop {\nlimits 1/h\n}\nheader "+line[1]+"\nreverse_proxy")
	for _, status := range []int{admitted, refused} {
		a := mustGet(t, s.url)
		require.Equal(t, status, a.status)
		require.Equal(t, "shop", a.header.Get("X-Shape"))
	}
}

// With "key all" the key is the empty text, which a change must have all the same.
func TestTheChangeOfTheGuideIsMade(t *testing.T) {
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	change := regexp.MustCompile("`(\\{\"source\":.*?\\})`").FindStringSubmatch(string(text))
	require.NotNil(t, change)
	admin, front := freeAddress(t), freeAddress(t)
	p := serve(t, "{\nadmin "+admin+"\ndefault_bind 127.0.0.1\n}\nhttp://"+port(t, front)+" {\nshape shop {\nlimits 1/h\nkey all\n}\nrespond ok\n}\n")
	url := "http://" + front
	require.Equal(t, 200, mustGet(t, url).status)
	require.Equal(t, refused, mustGet(t, url).status)
	fields := []string{"Content-Type", "application/json"}
	a, err := send("POST", "http://"+admin+"/shape/api/limits", strings.Replace(change[1], `"key":"",`, "", 1), fields...)
	require.NoError(t, err)
	require.Equal(t, 400, a.status, a.body)
	a, err = send("POST", "http://"+admin+"/shape/api/limits", change[1], fields...)
	require.NoError(t, err)
	require.Equal(t, 200, a.status, a.body)
	p.Until(func() bool { return mustGet(t, url).status == 200 }, "the limits of the change are in force")
}

// Each command of the page for operators of the gateway is read, and says as a Caddyfile what it would serve. The options that the page names
// are there.
func TestTheCommandsOfTheGatewaysGuideAreRead(t *testing.T) {
	text, err := os.ReadFile("../../docs/gateway.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^shaperd (llm .*)$`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(commands), 5)
	for _, c := range commands {
		args := strings.Fields(c[1])
		if strings.Contains(c[1], "--demo") {
			continue // It serves at once: see TestTheDemonstrationOfTheGatewayShowsTeamsThatTakeTurns.
		}
		printed, err := servers.Shaperd(t, program, append(args, "--print")...).Output() // It may go into a file.
		require.NoError(t, err, c[1])
		require.Contains(t, string(printed), "quota "+args[2], c[1])
	}

	status, help := do(t, "help", "llm")
	require.Zero(t, status)
	for _, option := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		require.Contains(t, help, option[1]+" ", "docs/gateway.md")
	}
}

func TestTheVersionSaysWhatThisIs(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		status, text := do(t, args...)
		require.Zero(t, status)
		// The second is what Go makes of a checkout, unless GOFLAGS say -buildvcs=false.
		require.Regexp(t, `^shaperd (\(devel\).*|v\d+\.\d+\.\d+\S*), Caddy v2\.\d+\.\d+ `, text)
	}
	status, text := do(t, "help")
	require.Zero(t, status)
	require.Contains(t, text, "leaky-bucket traffic shaper")
	require.Contains(t, text, "shaperd [command]")
}

// Caddy's validate provisions a configuration and starts none of it.
func TestValidateTouchesNoServer(t *testing.T) {
	file := writeFile(t, "Caddyfile", "http://"+freeAddress(t)+" {\n\tshape {\n\t\tlimits 5/s\n\t}\n}\n")
	status, text := do(t, "validate", "--config", file)
	require.Zero(t, status, text)
	require.Contains(t, text, "Valid configuration")
}

// Whoever asks whether the server is ready says no password, and whoever looks at the line does not wait in it.
func TestDirectivesHaveTheirOrder(t *testing.T) {
	file := writeFile(t, "Caddyfile", "http://:8480 {\n\tshape shop {\n\t\tlimits 5/s\n\t}\n\tshape_inspect /shaper/* {\n\t\thosts a b\n\t}\n\tbasic_auth /shaper/* {\n\t\tAnn $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n\t}\n\tshape_ready /ready\n\treverse_proxy 127.0.0.1:1\n}\n")
	status, text := do(t, "adapt", "--config", file)
	require.Zero(t, status, text)
	require.Regexp(t, `"handler":"shape_ready".*"handler":"authentication".*"handler":"shape_inspect".*"handler":"shape".*"handler":"reverse_proxy"`, text)
}
