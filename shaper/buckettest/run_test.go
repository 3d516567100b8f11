package buckettest_test

import (
	"testing"

	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func TestMemoryIsABucket(t *testing.T) {
	buckettest.Run(t, func(*testing.T) shared.Bucket { return buckettest.NewMemory() })
}
