//go:build linux && (amd64 || arm64 || 386 || arm)

package shaper

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

// timerFile is the precise alarm: a timerfd, for which the goroutine waits in
// the runtime's network poller, and a read deadline at the same instant.
//
// The poller wakes an idle process within tens of microseconds of the instant,
// where the runtime's own timers are rounded up to a millisecond. But in a
// process whose threads are all busy it is looked at every 10 ms only, while
// the runtime's timers are looked at whenever a goroutine parks: that is what
// the deadline is for. Either alone is late in one of the two; together they
// are not (go run ./bench -only spacing,busy).
type timerFile struct {
	file   *os.File
	conn   syscall.RawConn
	fd     uintptr
	epoch  time.Time
	offset int64 // the kernel's clock at the epoch, in nanoseconds
	read   func(fd uintptr) bool
	count  uint64        // what read reads: how often the timer has gone off
	errno  syscall.Errno // of read, if it failed
}

// maxTimerFiles is how many shapers of a process hold a file at once. Beyond
// that they would use up the descriptors that its connections need.
const maxTimerFiles = 64

var timerFiles atomic.Int32

var errTooManyTimerFiles = fmt.Errorf("%d shapers of this process have a timerfd already", maxTimerFiles)

// From linux/time.h and linux/timerfd.h. The flags of a file are those of the
// system, as O_NONBLOCK is the same on all of the four.
const (
	clockMonotonic  = 1
	timerAbsolute   = 1
	timerFileFlags  = syscall.O_CLOEXEC | syscall.O_NONBLOCK
	latestTimerFile = (1<<31 - 1) * int64(time.Second) // as seconds have 32 bits on some
)

type timerSpec struct{ interval, value syscall.Timespec }

// openTimerFile makes a precise alarm for a clock that counts from epoch.
func openTimerFile(epoch time.Time) (alarm, error) {
	offset, err := kernelClockAt(epoch)
	if err != nil {
		return nil, err
	}
	if timerFiles.Add(1) > maxTimerFiles {
		timerFiles.Add(-1)
		return nil, errTooManyTimerFiles
	}
	a := &timerFile{epoch: epoch, offset: offset}
	if err := a.open(); err != nil {
		timerFiles.Add(-1)
		return nil, err
	}
	return a, nil
}

func (a *timerFile) open() error {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, timerFileFlags, 0)
	if errno != 0 {
		return os.NewSyscallError("timerfd_create", errno)
	}
	a.fd, a.file = fd, os.NewFile(fd, "timerfd")
	conn, err := a.file.SyscallConn()
	if err == nil {
		// It has no deadlines if the poller did not take it.
		err = a.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = a.file.Close()
		return err
	}
	a.conn = conn
	if errno := a.setTimer(1); errno != 0 { // Whoever lets us make one may still not let us set it.
		_ = a.file.Close()
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

func (a *timerFile) set(at int64) {
	// An instant of 0 would switch the timer off. If it fails, as on a descriptor
	// that is closed, reading fails too.
	_ = a.setTimer(min(max(exact.Sum(a.offset, at), 1), latestTimerFile))
	_ = a.file.SetReadDeadline(a.epoch.Add(time.Duration(at)))
}

// setTimer sets the timer to an instant of the kernel's clock.
func (a *timerFile) setTimer(at int64) syscall.Errno {
	spec := timerSpec{value: syscall.NsecToTimespec(at)}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, a.fd, timerAbsolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	return errno
}

func (a *timerFile) wait() error {
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

func (a *timerFile) stop() {
	_ = a.file.Close()
	timerFiles.Add(-1)
}

// kernelClockAt returns what the kernel's clock was at a time that has a
// reading of Go's monotonic clock, or errOtherClock.
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
			return 0, errOtherClock
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
