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

	"example.com/leakybucket/internal/exact"
)

// A File is an [Alarm] that uses a timerfd (timerfd_create(2)). Wait waits for it in
// the runtime's network poller, with a read deadline at the same instant.
//
// The poller wakes an idle process within tens of microseconds of the instant; the
// runtime's own timers are rounded up to a millisecond. But in a process whose
// threads are all busy, the runtime looks at the poller only every 10 ms, while it
// looks at its own timers whenever a goroutine parks. The read deadline is such a
// timer. So the timerfd is late in a busy process and the deadline in an idle one, and
// the first of the two is in time in both (go run ./bench -only spacing,busy).
type File struct {
	*os.File
	conn   syscall.RawConn
	fd     uintptr
	epoch  time.Time
	offset int64 // the kernel's clock at the epoch, in nanoseconds
	read   func(fd uintptr) bool
	count  uint64        // the number that read has read: how often the timer has gone off
	errno  syscall.Errno // the error of read, or 0
}

// MaxFiles is the largest number of files that a process has open at once. More
// would use up the descriptors that its connections need.
const MaxFiles = 64

var files atomic.Int32

// Files returns the number of files that this process has open.
func Files() int { return int(files.Load()) }

var errTooManyFiles = fmt.Errorf("%d shapers of this process have a timerfd already", MaxFiles)

// From linux/time.h and linux/timerfd.h. TFD_CLOEXEC and TFD_NONBLOCK are the
// system's O_CLOEXEC and O_NONBLOCK.
const (
	clockMonotonic = 1
	timerAbsolute  = 1
	fileFlags      = syscall.O_CLOEXEC | syscall.O_NONBLOCK
	latest         = (1<<31 - 1) * int64(time.Second) // some systems count seconds in 32 bits
)

type timerSpec struct{ interval, value syscall.Timespec }

// OpenFile returns a [File] whose instants count from epoch. It returns an error in a
// testing/synctest bubble ([ErrOtherClock]), if [MaxFiles] are open, and if the kernel
// refuses.
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

// open makes the timerfd.
func (a *File) open() error {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, fileFlags, 0)
	if errno != 0 {
		return os.NewSyscallError("timerfd_create", errno)
	}
	a.fd, a.File = fd, os.NewFile(fd, "timerfd")
	conn, err := a.File.SyscallConn()
	if err == nil {
		// This fails if the poller did not accept the descriptor.
		err = a.File.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = a.File.Close()
		return err
	}
	a.conn = conn
	if errno := a.setTimer(1); errno != 0 { // A sandbox may allow timerfd_create alone.
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

// Set implements [Alarm].
func (a *File) Set(at int64) {
	// The instant 0 would switch the timer off, so 1 is the earliest. After an error
	// here, for example because the descriptor has been closed, Wait returns one too.
	_ = a.setTimer(min(max(exact.Sum(a.offset, at), 1), latest))
	_ = a.File.SetReadDeadline(a.epoch.Add(time.Duration(at)))
}

// setTimer sets the timer to an instant of the kernel's clock.
func (a *File) setTimer(at int64) syscall.Errno {
	spec := timerSpec{value: syscall.NsecToTimespec(at)}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, a.fd, timerAbsolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	return errno
}

// Wait implements [Alarm].
func (a *File) Wait() error {
	// os.File.Read would allocate an error whenever the deadline comes first.
	err := a.conn.Read(a.read)
	if a.errno != 0 && a.errno != syscall.EINTR {
		return os.NewSyscallError("read", a.errno) // For example, other code has closed the descriptor.
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// Stop implements [Alarm]. It closes the file.
func (a *File) Stop() {
	_ = a.File.Close()
	files.Add(-1)
}

// kernelClockAt returns the reading of the kernel's clock at epoch, or [ErrOtherClock]
// if Go's clock is another one.
//
// It reads Go's clock, then the kernel's until the kernel's has moved, then Go's again.
// If both are the same clock, Go's has moved by at least as much. The clock of a
// testing/synctest bubble has not moved at all.
func kernelClockAt(epoch time.Time) (int64, error) {
	best, offset := int64(exact.Forever), int64(0)
	for range 3 { // The quickest try counts, because in a slower one the goroutine may have been preempted.
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
