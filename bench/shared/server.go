package shared

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"example.com/leakybucket/bench/internal/run"
)

// redisServer is the program of the server.
const redisServer = "redis-server"

// A server is a Redis server without persistence, on a free port.
type server struct {
	address string
	command *exec.Cmd
	ended   chan struct{} // closed when it has
	folder  string
}

// startRedis returns a server that accepts connections. It must be stopped. As another program
// may take the port before the server does, it tries three.
func startRedis(ctx context.Context) (s *server, err error) {
	for range 3 {
		if s, err = startRedisOnce(ctx); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startRedisOnce(ctx context.Context) (*server, error) {
	address, err := run.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	s := &server{address: address, ended: make(chan struct{}), folder: folder}
	s.command = exec.CommandContext(ctx, redisServer, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder)
	if err := s.command.Start(); err != nil {
		_ = os.RemoveAll(folder)
		return nil, fmt.Errorf("%s: %w", redisServer, err)
	}
	go func() {
		_ = s.command.Wait() // How it ends does not matter: nothing of it is kept.
		close(s.ended)
	}()
	if err := s.accepts(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// accepts waits until the server accepts connections.
func (s *server) accepts() error {
	for began := time.Now(); ; {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			return conn.Close()
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s does not accept connections: %w", redisServer, err)
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s has ended at once", redisServer)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the server.
func (s *server) stop() {
	_ = s.command.Process.Kill()
	<-s.ended
	_ = os.RemoveAll(s.folder)
}
