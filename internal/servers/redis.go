package servers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const getRedis = "apt-get install redis-server"

// A Redis is one server of Redis or Valkey. Its methods are for one goroutine at a time.
type Redis struct {
	Addr string // "127.0.0.1:port"

	t       testing.TB
	program string
	dir     string
	options []string // with which it is started again
	process *Process
}

// StartRedis starts redis-server (or valkey-server, where only that is installed) on a
// free port in a temporary folder, without persistence, and stops it when the test ends.
// The options are for its command line: "--maxmemory", "10mb".
func StartRedis(t testing.TB, options ...string) *Redis {
	t.Helper()
	return startRedis(t, Need(t, getRedis, "redis-server", "valkey-server"), options...)
}

// StartValkey does the same with valkey-server. The test is skipped where that is not
// installed, even if SHAPER_REQUIRE_ALL is set, as Debian 12 does not have it.
func StartValkey(t testing.TB, options ...string) *Redis {
	t.Helper()
	program := find([]string{"valkey-server"})
	if program == "" {
		t.Skip("valkey-server is not installed: apt-get install valkey-server (from Debian 13 on)")
	}
	return startRedis(t, program, options...)
}

func startRedis(t testing.TB, program string, options ...string) *Redis {
	t.Helper()
	r := &Redis{t: t, program: program, dir: tempDir(t)}
	onFreePort(t, func(port int) error {
		r.Addr = address(port)
		r.options = append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", r.dir,
			"--save", "", "--appendonly", "no",
		}, options...)
		return r.start()
	})
	return r
}

// start starts the server and waits until it answers. "NOAUTH" and the like are answers;
// while it loads its saved data it is not ready.
func (r *Redis) start() error {
	r.t.Helper()
	r.process = Start(r.t, exec.Command(r.program, r.options...))
	return r.process.until(func() error {
		_, err := r.Do("PING")
		if err != nil && strings.HasPrefix(err.Error(), "NO") {
			return nil
		}
		return err
	})
}

// Do sends one command over a connection of its own and returns the answer: a string for
// each simple or bulk string and each integer, nil for null, a []any for an array.
func (r *Redis) Do(args ...string) (any, error) { return redisDo(r.Addr, args...) }

// MustDo is Do, and fails the test if the answer is an error.
func (r *Redis) MustDo(args ...string) any {
	r.t.Helper()
	answer, err := r.Do(args...)
	if err != nil {
		r.t.Fatalf("%s of the server at %s: %v", args[0], r.Addr, err)
	}
	return answer
}

// Kill ends the server at once.
func (r *Redis) Kill() { r.process.Kill() }

// Pause stops the server in the middle of whatever it does (SIGSTOP): the system goes on
// accepting connections for it, and nothing answers them.
func (r *Redis) Pause() { r.t.Helper(); r.process.Signal(pause) }

// Resume lets a server go on that has been paused.
func (r *Redis) Resume() { r.t.Helper(); r.process.Signal(resume) }

// Restart starts the server again at the same address, after killing it if it still runs,
// and returns when it answers.
func (r *Redis) Restart() {
	r.t.Helper()
	r.process.Kill()
	if err := r.start(); err != nil {
		r.t.Fatal(err)
	}
}

// A RedisCluster is three servers of Redis Cluster, each a master of a third of the slots.
type RedisCluster struct {
	Addrs []string
	Nodes []*Redis // in the order of Addrs; the first has the lowest slots
}

// clusterSlots is how many slots a cluster has.
const clusterSlots = 16384

// nodeTimeout is after how many milliseconds without an answer the servers of a cluster take
// one of them for dead, and one that hears of no other stops serving. It is longer than a
// busy machine stops any of them: no test is about that.
const nodeTimeout = "60000"

// StartRedisCluster starts three masters which together serve all slots, and stops them
// when the test ends. While one of them is down the others go on serving their own.
func StartRedisCluster(t testing.TB, options ...string) *RedisCluster {
	t.Helper()
	program := Need(t, getRedis, "redis-server", "valkey-server")
	c := &RedisCluster{}
	for i := range 3 {
		node := startRedis(t, program, append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", nodeTimeout, "--cluster-require-full-coverage", "no",
		}, options...)...)
		c.Addrs, c.Nodes = append(c.Addrs, node.Addr), append(c.Nodes, node)
		slots := []string{"CLUSTER", "ADDSLOTS"}
		for slot := i * clusterSlots / 3; slot < (i+1)*clusterSlots/3; slot++ {
			slots = append(slots, strconv.Itoa(slot))
		}
		node.MustDo(slots...)
		// Each node must have an epoch of its own, or they settle that first.
		node.MustDo("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i > 0 {
			host, port := hostPort(c.Addrs[0])
			node.MustDo("CLUSTER", "MEET", host, port)
		}
	}
	for _, node := range c.Nodes {
		node.process.eventually(func() error {
			info, err := node.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"} {
				if !strings.Contains(info.(string), want+"\r\n") {
					return fmt.Errorf("the node at %s does not say %s: %s", node.Addr, want, info)
				}
			}
			return nil
		})
	}
	return c
}

// A Sentinel is a master of Redis with a replica, and three sentinels that watch them.
type Sentinel struct {
	Addrs   []string // of the sentinels
	Master  string   // the name of the master
	Servers []*Redis // the first master and its replica

	t testing.TB
}

// Failover is how long a test should wait for the replica to become master. A sentinel whose
// machine was too busy to run it for two seconds lets half a minute pass before it acts.
const Failover = 2 * time.Minute

// StartSentinel starts a master, its replica and three sentinels, and stops them when the
// test ends. As a busy machine may stop a master for seconds, the sentinels take it for dead
// only when [Sentinel.KillMaster] has ended it.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	program := Need(t, getRedis, "redis-server", "valkey-server")
	master := startRedis(t, program, "--repl-diskless-sync-delay", "0")
	host, port := hostPort(master.Addr)
	replica := startRedis(t, program, "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	replica.process.eventually(func() error {
		return says(replica.Addr, "master_link_status:up", "INFO", "replication")
	})

	s := &Sentinel{Master: "leader", Servers: []*Redis{master, replica}, t: t}
	var processes []*Process
	for range 3 {
		dir, own := tempDir(t), FreePort(t)
		file := filepath.Join(dir, "sentinel.conf") // A sentinel writes to it what it learns.
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s 2\n"+
			"sentinel down-after-milliseconds %[3]s 3600000\nsentinel failover-timeout %[3]s 3000\n",
			own, dir, s.Master, host, port)
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		s.Addrs = append(s.Addrs, address(own))
		processes = append(processes, Start(t, exec.Command(program, file, "--sentinel")))
	}
	for i, addr := range s.Addrs {
		processes[i].eventually(func() error { return knowsAll(addr, s.Master) })
	}
	return s
}

// knowsAll returns an error if the sentinel at addr does not know the replica and the two
// other sentinels: only then the three can agree on a new master.
func knowsAll(addr, master string) error {
	answer, err := redisDo(addr, "SENTINEL", "MASTER", master)
	if err != nil {
		return err
	}
	fields, _ := answer.([]any)
	for _, want := range [][2]string{{"flags", "master"}, {"num-slaves", "1"}, {"num-other-sentinels", "2"}} {
		i := slices.Index(fields, any(want[0]))
		if i < 0 || i+1 == len(fields) || fields[i+1] != want[1] {
			return fmt.Errorf("the sentinel at %s does not say %s for %s: %v", addr, want[1], want[0], fields)
		}
	}
	return nil
}

// KillMaster ends the server at once that the sentinels take for the master, and returns
// it. From then on the sentinels take a server for dead that has not answered for half a
// second. KillMaster does not wait for the other to become master.
func (s *Sentinel) KillMaster() *Redis {
	s.t.Helper()
	answer, err := redisDo(s.Addrs[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, server := range s.Servers {
		host, port := hostPort(server.Addr)
		if slices.Equal(answer.([]any), []any{host, port}) {
			server.Kill()
			for _, addr := range s.Addrs {
				if _, err := redisDo(addr, "SENTINEL", "SET", s.Master, "down-after-milliseconds", "500"); err != nil {
					s.t.Fatal(err)
				}
			}
			return server
		}
	}
	s.t.Fatalf("the sentinel at %s knows another master: %v", s.Addrs[0], answer)
	return nil
}

// says returns an error if the answer of a server to a command does not contain a text.
func says(addr, text string, command ...string) error {
	answer, err := redisDo(addr, command...)
	if err != nil {
		return err
	}
	if found, ok := answer.(string); !ok || !strings.Contains(found, text) {
		return fmt.Errorf("the server at %s does not say %s: %v", addr, text, answer)
	}
	return nil
}

// hostPort returns the parts of the address of a server of this package.
func hostPort(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err) // The address is one of ours.
	}
	return host, port
}

// redisDo sends one command to a server and returns its answer: a string for each simple
// or bulk string and each integer, nil for null, and a []any for an array. A client of its
// own keeps this package free of dependencies, and does not hide the server's words.
func redisDo(addr string, args ...string) (any, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, command.String()); err != nil {
		return nil, err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	kind, rest := line[:min(1, len(line))], line[min(1, len(line)):]
	switch kind {
	case "+", ":":
		return rest, nil
	case "-":
		return nil, errors.New(rest)
	case "$", "*":
		size, err := strconv.Atoi(rest)
		if err != nil || size < 0 {
			return nil, err
		}
		if kind == "$" {
			text := make([]byte, size+len("\r\n"))
			_, err := io.ReadFull(r, text)
			return string(text[:size]), err
		}
		array := make([]any, size)
		for i := range array {
			if array[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return array, nil
	}
	return nil, fmt.Errorf("the server answers %q", line)
}
