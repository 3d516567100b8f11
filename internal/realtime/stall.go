package realtime

import (
	"sync"
	"time"
)

// tick is how long LongestStall sleeps at a time.
const tick = 10 * time.Millisecond

// LongestStall calls f, and returns for how long at a time, at most, a goroutine that only
// sleeps was kept from running meanwhile. It is no sum, so it does not grow with the time that
// f takes. The goroutine ends also if f ends the test.
func LongestStall(f func()) (longest time.Duration) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for isOver := false; !isOver; {
			began := time.Now()
			select {
			case <-time.After(tick):
			case <-over:
				isOver = true
			}
			longest = max(longest, time.Since(began)-tick)
		}
	}()
	end := sync.OnceFunc(func() {
		close(over)
		<-ended
	})
	defer end()
	f()
	end()
	return longest
}
