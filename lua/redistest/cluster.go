package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// Cluster is three masters without replicas that share the slots evenly.
type Cluster struct {
	Nodes []*Server
}

// StartCluster runs a cluster of three masters until the end of the test, and returns when each of them takes writes
// (about 2 s: a fresh master waits that long before it calls the cluster complete).
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	const masters = 3
	c := &Cluster{}
	buses := make([]int, masters)
	for i := range masters {
		bus, err := freePort()
		if err != nil {
			tb.Fatal(err)
		}
		buses[i] = bus
		c.Nodes = append(c.Nodes, Start(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus)))
	}
	do := func(s *Server, args ...string) {
		tb.Helper()
		if _, err := s.Do(args...); err != nil {
			tb.Fatalf("redistest: %s: %v", strings.Join(args, " "), err)
		}
	}
	for i, s := range c.Nodes {
		do(s, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		do(s, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
	}
	for i, s := range c.Nodes[1:] {
		do(c.Nodes[0], "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(s.port), strconv.Itoa(buses[i+1]))
	}
	for i, s := range c.Nodes {
		waitUntil(tb, fmt.Sprintf("node %d of the cluster is ready", i), func() bool {
			info, err := s.Do("CLUSTER", "INFO")
			text, _ := info.(string)
			return err == nil && strings.Contains(text, "cluster_state:ok") &&
				strings.Contains(text, "cluster_slots_ok:"+strconv.Itoa(slots)) &&
				strings.Contains(text, "cluster_known_nodes:"+strconv.Itoa(masters))
		})
	}
	return c
}

// URL is the cluster as a store URL of the configuration, redis+cluster://host:port,host:port,host:port.
func (c *Cluster) URL() string {
	addrs := make([]string, len(c.Nodes))
	for i, s := range c.Nodes {
		addrs[i] = s.Addr()
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// Do sends one command to the node that owns its key, as [Server.Do] does.
func (c *Cluster) Do(args ...string) (any, error) {
	reply, err := c.Nodes[0].Do(args...)
	moved, ok := err.(Error)
	if !ok || !strings.HasPrefix(string(moved), "MOVED ") {
		return reply, err
	}
	for _, s := range c.Nodes {
		if strings.HasSuffix(string(moved), " "+s.Addr()) {
			return s.Do(args...)
		}
	}
	return nil, err
}
