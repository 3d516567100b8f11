package sharedfaults_test

import (
	"fmt"

	"example.com/leakybucket/shaper"
)

// openBucket returns the shared bucket of a plan.
func openBucket(p plan) (shaper.Bucket, error) {
	switch p.Engine {
	case remoteEngine:
		return &remoteBucket{addr: p.Addrs[0]}, nil
	}
	return nil, fmt.Errorf("no such engine: %q", p.Engine)
}
