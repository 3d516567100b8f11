package shared

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// redisServer is the program of the server.
const redisServer = "redis-server"

// A server is a Redis server without persistence, on a free port.
type server struct {
	address string
	command *exec.Cmd
	folder  string
}

// startRedis returns a server that accepts connections. It must be stopped.
func startRedis(ctx context.Context) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	s := &server{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), folder: folder}
	s.command = exec.CommandContext(ctx, redisServer, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder)
	if err := s.command.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", redisServer, err)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			return s, conn.Close()
		}
		if time.Since(began) > 10*time.Second {
			s.stop()
			return nil, fmt.Errorf("%s does not accept connections: %w", redisServer, err)
		}
	}
}

// stop ends the server. How it ends does not matter: nothing of it is kept.
func (s *server) stop() {
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	_ = os.RemoveAll(s.folder)
}
