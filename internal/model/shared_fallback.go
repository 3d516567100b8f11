package model

import "time"

// fall begins the fallback, after the last slot that is leased, and D.
func (p *sharedProcess) fall(local time.Duration) {
	p.fallen, p.localMin = true, local
	if p.run.mistake != FallbackAtOnce {
		last := p.latest
		for _, s := range p.leases {
			last = max(last, s.end)
		}
		p.localMin = max(local, nanosUp(last)-p.theta.at(local).low) + p.run.Lateness
	}
	p.local = tick(p.localMin)*perNano + tick(p.localBurst()-1)*p.localUnit()
	p.wakeAt(p.localMin)
}

func (p *sharedProcess) localUnit() tick { return unit(p.rate) * tick(p.run.Instances) }

func (p *sharedProcess) localBurst() int64 { return max(1, p.rate.Burst/p.run.Instances) }

// serveLocally lets the head leave in the fallback.
func (p *sharedProcess) serveLocally(local time.Duration, n int64) (wait time.Duration, left bool) {
	due := max(p.localMin, nanosUp(p.local-tick(max(0, p.localBurst()-n))*p.localUnit()))
	if local < due {
		return due, false
	}
	p.local = max(p.local, tick(local)*perNano) + tick(n)*p.localUnit()
	p.leave(&p.run.Local)
	return 0, true
}

// recover ends the fallback: no slot of the engine is used before the level of the fallback
// reaches 0.
func (p *sharedProcess) recover(local time.Duration) {
	p.fallen = false
	if p.local > tick(local)*perNano {
		p.floor = max(p.floor, p.local+tick(p.theta.at(local).high)*perNano)
		p.run.mayWaste(p.run.most(), "the fallback ended")
	}
}
