package buckettest_test

import (
	"testing"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

func TestMemoryIsABucket(t *testing.T) {
	buckettest.Run(t, func(*testing.T) shaper.Bucket { return buckettest.NewMemory() })
}
