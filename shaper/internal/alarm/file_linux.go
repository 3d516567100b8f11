//go:build linux && (amd64 || arm64 || 386 || arm)

package alarm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"example.com/leakybucket/shaper/internal/exact"
)

// File is the precise alarm: a timerfd, for which the goroutine waits in
// the runtime's network poller, and a read deadline at the same instant.
//
// The poller wakes an idle process within tens of microseconds of the instant,
// where the runtime's own timers are rounded up to a millisecond. But in a
// process whose threads are all busy it is looked at every 10 ms only, while
// the runtime's timers are looked at whenever a goroutine parks: that is what
// the deadline is for. Either alone is late in one of the two; together they
// are not (go run ./bench -only spacing,busy).
type File struct {
	*os.File
	conn   syscall.RawConn
	fd     uintptr
	epoch  time.Time
	offset int64 // the kernel's clock at the epoch, in nanoseconds
	read   func(fd uintptr) bool
	count  uint64        // what read reads: how often the timer has gone off
	errno  syscall.Errno // of read, if it failed
}

// MaxFiles is how many shapers of a process hold a file at once. Beyond
// that they would use up the descriptors that its connections need.
const MaxFiles = 64

var files atomic.Int32

// Files returns how many files this process holds.
func Files() int { return int(files.Load()) }

var errTooManyFiles = fmt.Errorf("%d shapers of this process have a timerfd already", MaxFiles)

// From linux/time.h and linux/timerfd.h. The flags of a file are those of the
// system, as O_NONBLOCK is the same on all of the four.
const (
	clockMonotonic = 1
	timerAbsolute  = 1
	fileFlags      = syscall.O_CLOEXEC | syscall.O_NONBLOCK
	latest         = (1<<31 - 1) * int64(time.Second) // as seconds have 32 bits on some
)

type timerSpec struct{ interval, value syscall.Timespec }

// OpenFile makes a precise alarm for a clock that counts from epoch.
func OpenFile(epoch time.Time) (Alarm, error) {
	offset, err := kernelClockAt(epoch)
	if err != nil {
		return nil, err
	}
	if files.Add(1) > MaxFiles {
		files.Add(-1)
		return nil, errTooManyFiles
	}
	a := &File{epoch: epoch, offset: offset}
	if err := a.open(); err != nil {
		files.Add(-1)
		return nil, err
	}
	return a, nil
}

func (a *File) open() error {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, fileFlags, 0)
	if errno != 0 {
		return os.NewSyscallError("timerfd_create", errno)
	}
	a.fd, a.File = fd, os.NewFile(fd, "timerfd")
	conn, err := a.File.SyscallConn()
	if err == nil {
		// It has no deadlines if the poller did not take it.
		err = a.File.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = a.File.Close()
		return err
	}
	a.conn = conn
	if errno := a.setTimer(1); errno != 0 { // Whoever lets us make one may still not let us set it.
		_ = a.File.Close()
		return os.NewSyscallError("timerfd_settime", errno)
	}
	a.read = func(fd uintptr) bool {
		_, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&a.count)), unsafe.Sizeof(a.count))
		if errno != syscall.EAGAIN {
			a.errno = errno
			return true
		}
		return false
	}
	return nil
}

func (a *File) Set(at int64) {
	// An instant of 0 would switch the timer off. If it fails, as on a descriptor
	// that is closed, reading fails too.
	_ = a.setTimer(min(max(exact.Sum(a.offset, at), 1), latest))
	_ = a.File.SetReadDeadline(a.epoch.Add(time.Duration(at)))
}

// setTimer sets the timer to an instant of the kernel's clock.
func (a *File) setTimer(at int64) syscall.Errno {
	spec := timerSpec{value: syscall.NsecToTimespec(at)}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, a.fd, timerAbsolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	return errno
}

func (a *File) Wait() error {
	// File.Read would allocate an error each time that the deadline is first.
	err := a.conn.Read(a.read)
	if a.errno != 0 && a.errno != syscall.EINTR {
		return os.NewSyscallError("read", a.errno) // As when somebody has closed it under us.
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (a *File) Stop() {
	_ = a.File.Close()
	files.Add(-1)
}

// kernelClockAt returns what the kernel's clock was at a time that has a
// reading of Go's monotonic clock, or ErrOtherClock.
//
// The two are one clock if it takes at least as long by Go's, read outside, as
// by the kernel's, read inside. By the clock of a testing/synctest bubble it
// takes no time at all.
func kernelClockAt(epoch time.Time) (int64, error) {
	best, offset := int64(exact.Forever), int64(0)
	for range 3 { // So that one in which the goroutine was preempted does not count.
		before := int64(time.Since(epoch))
		first, err := kernelClock()
		if err != nil {
			return 0, err
		}
		last := first
		for reads := 0; last == first; reads++ {
			if last, err = kernelClock(); err != nil {
				return 0, err
			}
			if reads == 1000 {
				return 0, errors.New("the kernel's clock stands still")
			}
		}
		after := int64(time.Since(epoch))
		if after-before < last-first {
			return 0, ErrOtherClock
		}
		if took := after - before; took < best {
			best, offset = took, first-before
		}
	}
	return offset, nil
}

// kernelClock reads CLOCK_MONOTONIC, in nanoseconds.
func kernelClock() (int64, error) {
	var now syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		return 0, os.NewSyscallError("clock_gettime", errno)
	}
	return now.Nano(), nil
}
