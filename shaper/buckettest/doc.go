// Package buckettest is for tests of and with shared buckets.
//
// [Run] holds the tests that every [shared.Bucket] must pass. Whoever writes one for
// another server calls it:
//
//	func TestConformance(t *testing.T) {
//		buckettest.Run(t, func(t *testing.T) shared.Bucket { return mybucket.New(server(t)) })
//	}
//
// [Memory] is a Bucket in memory, on the clock of [time.Now]. So it works in the bubbles of
// testing/synctest, where several Shapers that share a Memory stand for several processes.
// Its answers can be made slow, its clock can step and drift, and calls, answers and its
// whole state can be lost.
package buckettest
