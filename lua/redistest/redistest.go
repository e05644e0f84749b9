// Package redistest starts real Redis servers for tests: a single one, a replica, a cluster of three masters.
//
// The invariant: no server outlives the test process. Each one is killed by the test's cleanup, and by the kernel
// when the process dies first; each has its own free port on loopback and its own directory, so tests of several
// packages run side by side. Only tests may import this package, and it uses the standard library alone.
package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startBudget bounds how long a server may take to answer its first PING; then the test fails with its log.
	startBudget = 15 * time.Second
	// startTries bounds how often a start is repeated when another process took the port in between; then the test fails.
	startTries = 5
	// pollEvery is the pause between two looks at something that is about to become true.
	pollEvery = 5 * time.Millisecond
)

// LeakIgnore names the function that waits for a server to exit. The server of [Shared] lives as long as the test
// process, so leak checks of packages that use it pass goleak.IgnoreAnyFunction(redistest.LeakIgnore).
const LeakIgnore = "tollgate/lua/redistest.(*process).run"

// Server is one redis-server on loopback.
type Server struct {
	port int
	dir  string
	args []string

	// Two locks: Signal and Stop work while a Do waits for a server that hangs. run is taken before client.
	run struct {
		sync.Mutex
		proc *process // nil while stopped
	}
	client struct {
		sync.Mutex
		conn *conn // nil until the first Do, and after an error
	}
}

// Start runs a private server until the end of the test. args are added to its command line, for example
// "--appendonly", "yes" or "--maxmemory", "2mb"; they win over the defaults (nothing saved, noeviction, DEBUG allowed
// from loopback). It returns when the server answers PING.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := start(tb.TempDir(), args)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// StartReplica runs a replica of `of` until the end of the test, and returns when its first synchronisation is complete.
// Promote it with Do("REPLICAOF", "NO", "ONE").
func StartReplica(tb testing.TB, of *Server, args ...string) *Server {
	tb.Helper()
	s := Start(tb, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(of.port)}, args...)...)
	waitUntil(tb, "the replica has caught up", func() bool {
		info, err := s.Do("INFO", "replication")
		text, _ := info.(string)
		return err == nil && strings.Contains(text, "master_link_status:up") &&
			strings.Contains(text, "master_sync_in_progress:0")
	})
	return s
}

var shared struct {
	sync.Mutex
	server *Server
}

// Shared returns the one server of this test process, started at the first call and killed with the process.
// Every test of the process sees the same data: name your keys after a tenant of your own, and neither flush nor stop it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		return shared.server
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		tb.Fatal(err)
	}
	// Nothing is saved, so the server does not need its directory after the start, and nobody would remove it later.
	defer os.RemoveAll(dir)
	s, err := start(dir, nil)
	if err != nil {
		tb.Fatal(err)
	}
	shared.server = s
	return s
}

// Addr is host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is the server as a store URL of the configuration, redis://host:port/0.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Pid is the process id of the running server, 0 while it is stopped.
func (s *Server) Pid() int {
	s.run.Lock()
	defer s.run.Unlock()
	if s.run.proc == nil {
		return 0
	}
	return s.run.proc.pid
}

// Signal sends sig to the server; SIGSTOP makes it hang without closing a connection, SIGCONT lets it go on.
// It does nothing while the server is stopped.
func (s *Server) Signal(sig syscall.Signal) error {
	s.run.Lock()
	defer s.run.Unlock()
	if s.run.proc == nil {
		return nil
	}
	return syscall.Kill(s.run.proc.pid, sig)
}

// Stop kills the server as a crash would (SIGKILL) and returns when it is gone. Stopping twice is fine.
func (s *Server) Stop() {
	s.run.Lock()
	defer s.run.Unlock()
	if s.run.proc == nil {
		return
	}
	_ = syscall.Kill(s.run.proc.pid, syscall.SIGKILL) // fails only when it is gone already
	<-s.run.proc.exited
	s.run.proc = nil
	s.dropConn()
}

// Restart kills the server and starts it again on the same port and directory: empty, unless it was started with
// "--appendonly", "yes" or a save rule. It returns an error rather than failing a test, so that goroutines may call it.
func (s *Server) Restart() error {
	s.Stop()
	s.run.Lock()
	defer s.run.Unlock()
	return s.launchLocked()
}

func start(dir string, args []string) (*Server, error) {
	var err error
	for range startTries {
		s := &Server{dir: dir, args: args}
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		s.run.Lock()
		err = s.launchLocked()
		s.run.Unlock()
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, err
}

// launchLocked starts the process and waits for its first PONG.
func (s *Server) launchLocked() error {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redistest: redis-server is not on PATH; install it with: apt-get install redis-server (7.0 or later)")
	}
	args := []string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--daemonize", "no",
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
		"--enable-debug-command", "local", "--repl-diskless-sync-delay", "0",
	}
	logPath := filepath.Join(s.dir, "redis-"+strconv.Itoa(s.port)+".log")
	proc, err := startProcess(bin, append(args, s.args...), logPath)
	if err != nil {
		return fmt.Errorf("redistest: start %s: %w", bin, err)
	}
	s.run.proc = proc
	deadline := time.Now().Add(startBudget)
	for {
		reply, err := s.Do("PING")
		if err == nil && reply == "PONG" {
			return nil
		}
		select {
		case <-proc.exited:
			s.run.proc = nil
			return startError(logPath)
		case <-time.After(pollEvery):
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(proc.pid, syscall.SIGKILL)
			<-proc.exited
			s.run.proc = nil
			return fmt.Errorf("redistest: no PONG within %v: %w", startBudget, startError(logPath))
		}
	}
}

var errPortTaken = errors.New("redistest: the port was taken by another process")

func startError(logPath string) error {
	log, err := os.ReadFile(logPath)
	if err != nil {
		return fmt.Errorf("redistest: the server ended and left no log: %w", err)
	}
	if strings.Contains(string(log), "Address already in use") {
		return errPortTaken
	}
	return fmt.Errorf("redistest: the server ended; its log:\n%s", log)
}

// process is a child that was started by a thread of its own. The kernel sends the death signal when the *thread* that
// made the child ends, so that thread stays locked in run until the child is gone.
type process struct {
	pid    int
	exited chan struct{}
}

func startProcess(bin string, args []string, logPath string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	p := &process{exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(cmd, log, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) run(cmd *exec.Cmd, log *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.exited)
	defer log.Close()
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	started <- err
	if err == nil {
		_ = cmd.Wait() // the exit status says only that it was killed
	}
}

// freePort asks the kernel for a port that nobody listens on now. Somebody may take it before the server does: start tries again.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func waitUntil(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(startBudget)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: waited %v until %s", startBudget, what)
		}
		<-time.After(pollEvery)
	}
}
