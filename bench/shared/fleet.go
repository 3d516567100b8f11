package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

var child = run.NewMeasurement("shared", measureFleet)

// starting is within what time all processes have started, on a machine that is not busy.
const starting = 500 * time.Millisecond

// errStartedLate is for a machine so busy that a process had not begun when the window did.
var errStartedLate = errors.New("a process was not there when the window began")

// measureFleet measures again, up to ten times in all, and gives the processes more time to
// start, if that was too short for one of them.
func measureFleet(in input) (found result, err error) {
	within := starting
	for range 10 {
		if found, err = measureOnce(in, within); !errors.Is(err, errStartedLate) {
			return found, err
		}
		within = min(2*within, 8*starting)
	}
	return found, err
}

// measureOnce starts a server and the processes, and measures their common departures.
func measureOnce(in input, within time.Duration) (found result, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, direct, err := startRedis(ctx, os.TempDir())
	if err != nil {
		return found, err
	}
	defer server.Stop()
	address := direct
	if in.RTT > 0 {
		n, err := openNetwork(direct, in.RTT, in.Jitter)
		if err != nil {
			return found, err
		}
		defer n.close()
		address = n.address
	}
	admin := redis.NewClient(&redis.Options{Addr: direct, ReadTimeout: patience})
	defer admin.Close()
	before, err := cpuOf(ctx, admin)
	if err != nil {
		return found, err
	}
	begin := time.Now().Add(within)
	outputs, err := runWorkers(ctx, workerInput{Input: in, Address: address, Begin: begin})
	if err != nil {
		return found, err
	}
	for _, o := range outputs {
		if o.Late {
			return found, fmt.Errorf("%w, %v after it was started", errStartedLate, within+in.Warm)
		}
	}
	after, err := cpuOf(ctx, admin)
	if err != nil {
		return found, err
	}
	return resultOf(in, begin, outputs, after-before), nil
}

// runWorkers runs the processes to their end.
func runWorkers(ctx context.Context, todo workerInput) ([]workerOutput, error) {
	outputs, errs := make([]workerOutput, processes), make([]error, processes)
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() { outputs[i], errs[i] = worker.Take(ctx, todo) })
	}
	all.Wait()
	return outputs, errors.Join(errs...)
}

// resultOf merges the departures of the processes. redisCPU is the processor time of the server
// meanwhile, in nanoseconds.
func resultOf(in input, begin time.Time, outputs []workerOutput, redisCPU float64) result {
	from, to := in.Warm, in.Warm+in.Window
	interval := measure.Interval(in.Rate)
	var merged []measure.Departure
	var counts []float64
	var overtaken, trips, cpu, total float64
	for _, o := range outputs {
		var own []measure.Departure
		for i, at := range o.At {
			own = append(own, measure.Departure{Entered: o.Entered[i], At: time.Duration(at - begin.UnixNano())})
		}
		merged = append(merged, own...)
		within := measure.DeparturesWithin(from, to, interval, own)
		counts = append(counts, float64(within.Count()))
		overtaken += within.Spacing().Overtaken * float64(within.Count())
		trips, cpu, total = trips+float64(o.RoundTrips), cpu+o.CPU, total+float64(len(o.At))
	}
	all := measure.DeparturesWithin(from, to, interval, merged)
	sum, off := 0.0, 0.0
	for _, n := range counts {
		sum += n
	}
	for _, n := range counts {
		off = max(off, 100*math.Abs(n*processes/max(sum, 1)-1))
	}
	total = max(total, 1)
	found := result{
		Spread: all.Spread(), ShareOff: off, RoundTrips: trips / total, CPU: cpu / total, RedisCPU: redisCPU / total,
	}
	found.Overtaken = overtaken / max(sum, 1)
	return found
}

// cpuOf returns the CPU time that a server has used, in nanoseconds.
func cpuOf(ctx context.Context, admin *redis.Client) (used float64, err error) {
	info, err := admin.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO cpu: %w", err)
			}
			used += 1e9 * seconds
		}
	}
	return used, nil
}

// A network forwards connections to a server, and takes its time for it.
type network struct {
	address     string
	listener    net.Listener
	target      string
	rtt, jitter time.Duration
}

// openNetwork returns a network on which a round trip takes rtt ± jitter. It must be closed.
func openNetwork(target string, rtt, jitter time.Duration) (*network, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &network{address: listener.Addr().String(), listener: listener, target: target, rtt: rtt, jitter: jitter}
	go n.accept()
	return n, nil
}

func (n *network) close() { _ = n.listener.Close() } // Its connections end with the process.

func (n *network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", n.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go n.forward(server, client)
		go n.forward(client, server)
	}
}

// A packet has the bytes read at once, and when they are to arrive.
type packet struct {
	data []byte
	at   time.Time
}

// forward takes what one side has sent to the other, half a round trip later, in order.
func (n *network) forward(to, from net.Conn) {
	packets := make(chan packet, 1024)
	go func() {
		defer to.Close()
		for p := range packets {
			time.Sleep(time.Until(p.at))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(packets)
	for {
		data := make([]byte, 4096)
		read, err := from.Read(data)
		if read > 0 {
			delay := n.rtt / 2
			if n.jitter > 0 {
				delay += time.Duration(rand.Int64N(int64(n.jitter))) - n.jitter/2
			}
			packets <- packet{data[:read], time.Now().Add(delay)}
		}
		if err != nil {
			if err != io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

// redisServer is the program of the server.
const redisServer = "redis-server"

// startRedis returns a server without persistence that accepts connections, and its address.
// It must be stopped. It writes nothing into the folder.
func startRedis(ctx context.Context, folder string) (server *run.Process, address string, err error) {
	server, err = run.AtFreeAddress(func(at string) (*run.Process, error) {
		address = at
		_, port, _ := strings.Cut(at, ":")
		return run.StartProcess(ctx, at, nil, func(ctx context.Context) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, redisServer, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder), nil
		})
	})
	return server, address, err
}
