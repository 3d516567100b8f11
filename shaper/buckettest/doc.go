// Package buckettest is for tests of and with shared buckets.
//
// [Memory] is a [shaper.Bucket] in memory, whose time is that of [time.Now]. So it works in
// the bubbles of testing/synctest, where several Shapers that share a Memory stand for
// several processes. Its answers can be made slow, its clock can step and drift, and calls,
// answers and its whole state can be lost.
package buckettest
