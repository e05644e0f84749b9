// Command summary reads the output of go test -json and says what a person needs: a line per package, everything that a
// failed test printed, why tests were skipped, and as the last line how many passed, failed and were skipped. Subtests
// count like tests; a package that fails without a failed test counts as one. It exits with 1 if anything failed or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is what go test -json writes, one per line.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64
}

// lineMax bounds one line of input in bytes; a longer one ends the run with an error.
const lineMax = 16 << 20

type summary struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[string]*strings.Builder // by package and test, until it ends
	running                 map[string]map[string]bool  // tests by package
	failedIn                map[string]int              // failed tests by package
}

func main() {
	s := &summary{
		out: os.Stdout, output: map[string]*strings.Builder{}, running: map[string]map[string]bool{}, failedIn: map[string]int{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 64<<10), lineMax)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(s.out, lines.Text())
			continue
		}
		s.take(e)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(s.out, "summary:", err)
		s.failed++
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	if s.failed > 0 || s.passed == 0 {
		os.Exit(1)
	}
}

func (s *summary) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "run":
		if s.running[e.Package] == nil {
			s.running[e.Package] = map[string]bool{}
		}
		s.running[e.Package][e.Test] = true
	case "output":
		if s.output[key] == nil {
			s.output[key] = &strings.Builder{}
		}
		s.output[key].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			s.end(e, key)
		} else {
			s.endPackage(e, key)
		}
	}
}

func (s *summary) end(e event, key string) {
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped++
		fmt.Fprintf(s.out, "skipped %s %s\n%s", e.Package, e.Test, s.text(key))
	case "fail":
		s.failed++
		s.failedIn[e.Package]++
		fmt.Fprintf(s.out, "FAILED %s %s\n%s", e.Package, e.Test, s.text(key))
	}
	delete(s.running[e.Package], e.Test)
	delete(s.output, key)
}

func (s *summary) endPackage(e event, key string) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(s.out, "ok %s %.1fs\n", e.Package, e.Elapsed)
	case "fail":
		for test := range s.running[e.Package] { // a crash leaves them without an end
			s.failed++
			s.failedIn[e.Package]++
			fmt.Fprintf(s.out, "FAILED %s %s (did not end)\n%s", e.Package, test, s.text(e.Package+" "+test))
		}
		if s.failedIn[e.Package] == 0 {
			s.failed++
		}
		fmt.Fprintf(s.out, "FAILED %s %.1fs\n%s", e.Package, e.Elapsed, s.text(key))
	}
	delete(s.running, e.Package)
	delete(s.output, key)
}

func (s *summary) text(key string) string {
	if b := s.output[key]; b != nil {
		return b.String()
	}
	return ""
}
