// Package tollgate_test holds the house rules that no compiler checks: the closed top level, who may import whom, and how
// files have to begin. Each failure says which rule it is and why there is one.
package tollgate_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// topLevel is all that may stand at the top. What git ignores may be there as well.
var topLevel = map[string]bool{
	"cmd": true, "edge": true, "prefetch": true, "localbucket": true, "lua": true, "bench": true,
	"quota": true, "ledger": true, "deploy": true, "docs": true,
	"go.mod": true, "go.sum": true, "Makefile": true, "README.md": true, "LICENSE": true, "CHANGELOG.md": true,
	"layout_test.go": true, ".gitignore": true, ".ci": true, ".git": true, "bin": true, "data": true, ".run": true,
}

func TestTopLevelIsClosed(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !topLevel[e.Name()] {
			t.Errorf("%s: the top level is closed, so that a newcomer can hold it in mind; a new folder needs a decision record in docs/decisions and a line here", e.Name())
		}
	}
}

// layers say which way imports point: only to a lower number. Equal numbers are siblings and do not know each other.
var layers = map[string]int{"cmd": 4, "edge": 3, "bench": 3, "prefetch": 2, "localbucket": 2, "ledger": 2, "lua": 1, "quota": 0}

// fence forbids importers (all below from) an import (all below to).
type fence struct {
	from, to   string
	except     []string // importers that may
	testsMay   bool     // test files may
	dependency bool     // to is outside of this module
	reason     string
}

var fences = []fence{
	{
		from: "", to: "bench", except: []string{"cmd/tollbench", "bench"}, testsMay: true,
		reason: "what measures the product must not become part of it",
	},
	{
		from: "", to: "lua/redistest", except: []string{"lua/redistest"}, testsMay: true,
		reason: "it starts servers and fails tests; only tests have a use for that",
	},
	{
		from: "cmd/tollctl", to: "lua", testsMay: true,
		reason: "the operator's CLI talks to the admin API, never to Redis behind the node's back",
	},
	{
		from: "cmd/tollctl", to: "ledger", testsMay: true,
		reason: "the operator's CLI talks to the admin API, never to SQL behind the node's back",
	},
	{
		from: "localbucket", to: "github.com/valyala/fasthttp", dependency: true,
		reason: "the bucket and the breaker are pure, so that the simulator and the node run the same code",
	},
	{
		from: "localbucket", to: "github.com/redis/rueidis", dependency: true,
		reason: "the breaker says when Redis rules; it must not ask Redis",
	},
	{
		from: "", to: "edge/tokens", except: []string{"edge"},
		reason: "counting tokens sizes a request, which is the data plane's business",
	},
	{
		from: "", to: "github.com/redis/rueidis", except: []string{"lua"}, testsMay: true, dependency: true,
		reason: "every call of Redis goes through lua.Store and its guard, so that none can bypass the breaker or the time budget",
	},
	{
		from: "", to: "database/sql", except: []string{"ledger"}, testsMay: true, dependency: true,
		reason: "the durable truth has one owner",
	},
	{
		from: "lua/redistest", to: "github.com", dependency: true,
		reason: "test support stands on the standard library, so that it cannot share a fault with what it tests",
	},
}

func TestImportFences(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, imported := range f.imports {
			own, isOwn := strings.CutPrefix(imported, "tollgate/")
			if isOwn {
				checkLayers(t, f, own)
			}
			for _, fence := range fences {
				target := imported
				if !fence.dependency {
					if !isOwn {
						continue
					}
					target = own
				}
				exempt := fence.testsMay && f.isTest || slices.ContainsFunc(fence.except, func(e string) bool { return below(e, f.dir) })
				if below(fence.from, f.dir) && below(fence.to, target) && !exempt {
					t.Errorf("%s imports %s: %s", f.path, imported, fence.reason)
				}
			}
		}
	}
}

func checkLayers(t *testing.T, f goFile, imported string) {
	from, _, _ := strings.Cut(f.dir, "/")
	to, _, _ := strings.Cut(imported, "/")
	fromLayer, known := layers[from]
	toLayer, knownTo := layers[to]
	switch {
	case !known || !knownTo:
		t.Errorf("%s imports %s: one of them has no layer", f.path, imported)
	case from == to && from != "cmd":
		// Parts of one layer's own tree; Go refuses circles.
	case f.isTest && imported == "lua/redistest", f.isTest && to == "bench":
		// Test support is for every layer.
	case to == "bench" && from == "cmd":
		// A fence says which command.
	case fromLayer < toLayer:
		t.Errorf("%s imports %s: imports point downwards only (cmd → edge → prefetch, localbucket, ledger → lua → quota), so that a lower part can be understood, and tested, without the upper ones", f.path, imported)
	case fromLayer == toLayer:
		t.Errorf("%s imports %s: siblings do not know each other; declare the interface you need and let the part above wire it", f.path, imported)
	}
}

// pureForbidden are the selectors that would give a decision an input besides its arguments.
var pureForbidden = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"},
}

// Decisions are functions of (state, now, request): the node, the simulator and the tests run the same ones.
func TestDecisionCoreIsPure(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest || !below("quota", f.dir) && !below("localbucket", f.dir) {
			continue
		}
		for _, imported := range f.imports {
			if imported == "math/rand" || imported == "math/rand/v2" || imported == "crypto/rand" {
				t.Errorf("%s imports %s: a decision must not depend on chance; the caller passes what is random", f.path, imported)
			}
		}
		for pkg, names := range pureForbidden {
			for _, name := range f.selectors(pkg) {
				if slices.Contains(names, name) {
					t.Errorf("%s uses %s.%s: the decision core takes now from its caller", f.path, pkg, name)
				}
			}
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a goroutine in the decision core; the thin loop around it starts them", f.fset.Position(g.Pos()))
			}
			return true
		})
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string]int{}
	for _, f := range goFiles(t) {
		if f.isTest {
			continue
		}
		comments[f.dir] += 0
		if f.file.Doc == nil {
			continue
		}
		comments[f.dir]++
		want := "Package " + f.file.Name.Name + " "
		if f.file.Name.Name == "main" {
			want = "Command " + path.Base(f.dir) + " "
		}
		if !strings.HasPrefix(f.file.Doc.Text(), want) {
			t.Errorf("%s: the comment of a package begins with %q, as go doc shows it", f.path, want)
		}
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments: there is exactly one, which says what the package is for, which invariant it keeps and who may call it", dir, n)
		}
	}
}

func TestNoSleepInTests(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest && slices.Contains(f.selectors("time"), "Sleep") {
			t.Errorf("%s uses time.Sleep: it makes a test slow on a fast machine and wrong on a slow one; wait for the event, or use testing/synctest", f.path)
		}
	}
}

// A script's head is its signature: the Go method beside it is written from it.
func TestScriptsOpenWithTheirSignature(t *testing.T) {
	for _, name := range filesBelow(t, "lua", ".lua") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var head strings.Builder
		for i, line := range strings.Split(string(text), "\n") {
			if !strings.HasPrefix(line, "--") && (i > 0 || !strings.HasPrefix(line, "#!")) {
				break
			}
			head.WriteString(line + "\n")
		}
		wanted := []string{"-- KEYS ", "-- ARGV ", "-- Reply "}
		if below("lua/lib", path.Dir(name)) {
			wanted = []string{"-- " + strings.TrimSuffix(path.Base(name), ".lua") + ": "} // a fragment has no call of its own
		}
		for _, want := range wanted {
			if !strings.Contains(head.String(), want) {
				t.Errorf("%s: the comment at its head must have a line %q, with units", name, want)
			}
		}
	}
}

// goFile is one parsed source file; paths use slashes and are relative to the module's root.
type goFile struct {
	path, dir string
	isTest    bool
	imports   []string
	file      *ast.File
	fset      *token.FileSet
}

// selectors are the names that the file takes from a package, under whatever name it imports it.
func (f goFile) selectors(pkg string) []string {
	local := ""
	for _, spec := range f.file.Imports {
		if strings.Trim(spec.Path.Value, `"`) != pkg {
			continue
		}
		local = path.Base(pkg)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	var names []string
	ast.Inspect(f.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == local {
				names = append(names, sel.Sel.Name)
			}
		}
		return true
	})
	return names
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	for _, name := range filesBelow(t, ".", ".go") {
		f := goFile{path: name, dir: path.Dir(name), isTest: strings.HasSuffix(name, "_test.go"), fset: token.NewFileSet()}
		if f.dir == "." {
			continue
		}
		var err error
		if f.file, err = parser.ParseFile(f.fset, name, nil, parser.ParseComments); err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			f.imports = append(f.imports, imported)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatal("found no source files")
	}
	return files
}

// filesBelow lists files by their ending, without folders that the go command ignores.
func filesBelow(t *testing.T, root, ending string) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS("."), root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && name != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return fs.SkipDir
		}
		if !e.IsDir() && strings.HasSuffix(name, ending) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// below says whether a path is, or lies under, root; everything is below "".
func below(root, name string) bool {
	return root == "" || name == root || strings.HasPrefix(name, root+"/")
}
