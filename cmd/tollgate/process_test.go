package main_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait for something that must come about; a machine may be slow, so it says nothing about speed.
const patience = 60 * time.Second

// process is a real binary, started by a thread of its own: the kernel kills the child when that thread ends, so none
// outlives the tests.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	out    *output
	exited chan struct{}
}

// start runs a binary of this module until the end of the test.
func start(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(binary(name), args...), out: newOutput(), exited: make(chan struct{})}
	p.cmd.Env = append(cleanEnv(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // the code is read from ProcessState
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s", name, p.out)
		}
	})
	return p
}

// cleanEnv is the environment without what this project's programs read.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TOLLGATE_") {
			env = append(env, v)
		}
	}
	return env
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(sig))
}

// kill ends the process as a crash would, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone already
	<-p.exited
}

// code waits for the process to end and gives its exit code.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("%s did not end; it printed:\n%s", p.name, p.out)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// printed waits for the pattern in what the process prints, and gives its groups.
func (p *process) printed(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		more := p.out.more()
		if m := re.FindStringSubmatch(p.out.String()); m != nil {
			return m
		}
		select {
		case <-more:
		case <-p.exited:
			if m := re.FindStringSubmatch(p.out.String()); m != nil {
				return m
			}
			p.t.Fatalf("%s ended (%v) without printing %q; it printed:\n%s", p.name, p.cmd.ProcessState, pattern, p.out)
		case <-timeout:
			p.t.Fatalf("%s did not print %q; it printed:\n%s", p.name, pattern, p.out)
		}
	}
}

// result is how a short command ended.
type result struct {
	code     int
	out, err string
}

// run runs a binary of this module to its end.
func run(t testing.TB, env []string, name string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(name), args...)
	cmd.Env = append(cleanEnv(), env...)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// output keeps what a process prints, and tells who waits for more.
type output struct {
	mu struct {
		sync.Mutex
		text    []byte
		changed chan struct{}
	}
}

var _ io.Writer = (*output)(nil)

func newOutput() *output {
	o := &output{}
	o.mu.changed = make(chan struct{})
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.text = append(o.mu.text, p...)
	close(o.mu.changed)
	o.mu.changed = make(chan struct{})
	return len(p), nil
}

// more is closed at the next write.
func (o *output) more() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.changed
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.mu.text)
}
