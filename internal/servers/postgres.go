package servers

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const getPostgres = "apt-get install postgresql"

// A Postgres is one server of PostgreSQL. Its methods are for one goroutine at a time.
type Postgres struct {
	URL  string // of the database postgres, for its superuser; there is no password
	Addr string // "127.0.0.1:port"

	t       testing.TB
	dir     string // has the folder data
	options []string
	process *Process
}

// StartPostgres makes a new cluster of databases in a temporary folder, starts its server on
// a free port, and stops it when the test ends. Nothing is written to the disk for certain
// (fsync is off). The options are for the server's command line: "-c",
// "max_connections=200". As PostgreSQL refuses to run as root, for root it runs as the user
// postgres, or nobody.
func StartPostgres(t testing.TB, options ...string) *Postgres {
	t.Helper()
	p := &Postgres{t: t, dir: tempDir(t), options: options}
	p.run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D", p.data())
	onFreePort(t, p.start)
	return p
}

// StartStandby starts a server that follows p, as it is now, and answers nothing but
// queries that only read.
func (p *Postgres) StartStandby() *Postgres {
	p.t.Helper()
	s := &Postgres{t: p.t, dir: tempDir(p.t), options: p.options}
	s.run("pg_basebackup", "--dbname", p.URL, "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-D", s.data())
	onFreePort(p.t, s.start)
	return s
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// run runs a program that makes the folder data.
func (p *Postgres) run(program string, args ...string) {
	p.t.Helper()
	program = Need(p.t, getPostgres, program)
	err := os.Mkdir(p.data(), 0o700)
	if err == nil {
		err = giveToServer(p.data())
	}
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.Command(program, args...)
	command.Dir = p.data()
	notAsRoot(command)
	if out, err := command.CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// start starts the server on a port and waits until it takes connections.
func (p *Postgres) start(port int) error {
	p.t.Helper()
	p.Addr = address(port)
	p.URL = "postgres://postgres@" + p.Addr + "/postgres?sslmode=disable"
	command := exec.Command(Need(p.t, getPostgres, "postgres"), append([]string{
		"-D", p.data(), "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off",
	}, p.options...)...)
	command.Dir = p.data()
	notAsRoot(command)
	p.process = Start(p.t, command)
	p.t.Cleanup(p.Kill)
	return p.process.until(p.isReady)
}

// isReady looks into the file in which the server tells how it is. The file of a server that
// was killed stays behind.
func (p *Postgres) isReady() error {
	text, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(p.process.Command.Process.Pid) || strings.TrimSpace(lines[7]) != "ready" {
		return fmt.Errorf("it says %q", text)
	}
	return nil
}

// Kill ends the server as in a crash: it has to recover when it is started again. It returns
// when all processes of the server have ended; if only the first were killed, the others would
// end some time later.
func (p *Postgres) Kill() {
	p.t.Helper()
	if p.process.running() {
		p.process.Stop(syscall.SIGQUIT)
	}
}

// Restart starts a server again that was killed, at the same address.
func (p *Postgres) Restart() {
	p.t.Helper()
	_, port := hostPort(p.Addr)
	n, err := strconv.Atoi(port)
	if err == nil {
		err = p.start(n)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// StartPgBouncer starts PgBouncer in front of p, with few connections to it; each serves
// another client after every transaction. It returns the URL at which clients find it.
func StartPgBouncer(t testing.TB, p *Postgres) (url string) {
	t.Helper()
	program := Need(t, "apt-get install pgbouncer", "pgbouncer")
	dir := tempDir(t)
	file := filepath.Join(dir, "pgbouncer.ini")
	host, port := hostPort(p.Addr)
	onFreePort(t, func(own int) error {
		config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
`, host, port, own)
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			return err
		}
		command := exec.Command(program, file)
		command.Dir = dir
		notAsRoot(command)
		url = "postgres://postgres@" + address(own) + "/postgres?sslmode=disable"
		return Start(t, command).until(func() error { return canConnect(address(own)) })
	})
	return url
}

// canConnect returns nil if somebody listens at an address.
func canConnect(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}
