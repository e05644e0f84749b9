package redistest

import (
	"strings"
	"syscall"
	"testing"
)

func must(t *testing.T, s interface {
	Do(args ...string) (any, error)
}, args ...string,
) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

func TestServerLifecycle(t *testing.T) {
	s := Start(t, "--appendonly", "yes")
	must(t, s, "SET", "k", "v")
	pid := s.Pid()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := must(t, s, "GET", "k"); got != "v" {
		t.Fatalf("after a restart with an append-only file k is %v", got)
	}
	if s.Pid() == pid {
		t.Fatal("the restarted server has the old pid")
	}
	s.Stop()
	s.Stop()
	if _, err := s.Do("PING"); err == nil {
		t.Fatal("a stopped server answers")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Fatal("the first process is still there")
	}
}

func TestStoppedServerHangs(t *testing.T) {
	s := Start(t)
	if err := s.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Do("PING")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("answered while stopped: %v", err)
	default:
	}
	if err := s.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReplies(t *testing.T) {
	s := Shared(t)
	if s != Shared(t) {
		t.Fatal("two shared servers")
	}
	got := must(t, s, "EVAL", "return {1, 'a', {}, false, redis.status_reply('OK')}", "0").([]any)
	if got[0] != int64(1) || got[1] != "a" || len(got[2].([]any)) != 0 || got[3] != nil || got[4] != "OK" {
		t.Fatalf("reply %v", got)
	}
	_, err := s.Do("EVALSHA", strings.Repeat("0", 40), "0")
	if e, ok := err.(Error); !ok || !strings.HasPrefix(string(e), "NOSCRIPT ") {
		t.Fatalf("error %v", err)
	}
}

func TestReplica(t *testing.T) {
	master := Start(t)
	must(t, master, "SET", "k", "v")
	replica := StartReplica(t, master)
	if got := must(t, replica, "GET", "k"); got != "v" {
		t.Fatalf("replica holds %v", got)
	}
	must(t, replica, "REPLICAOF", "NO", "ONE")
	must(t, replica, "SET", "k", "w")
}

func TestCluster(t *testing.T) {
	c := StartCluster(t)
	for _, key := range []string{"a", "b", "c", "d"} {
		must(t, c, "SET", key, key)
		if got := must(t, c, "GET", key); got != key {
			t.Fatalf("%s holds %v", key, got)
		}
	}
}
