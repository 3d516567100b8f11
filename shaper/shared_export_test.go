package shaper

// For the tests of what an engine does.
var BucketRateOf = bucketRateOf
