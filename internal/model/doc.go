// Package model is a second, slow and obvious implementation of what package
// shaper promises, for tests to compare an engine with. It is the oracle: where
// an engine and the model disagree, one of them is wrong, and a timeline computed by hand
// says which: the timelines of package shaper, and TestModelByHand for the rest.
//
// # The subject of the model
//
// The model is one bucket as shaper's doc.go states it: the level, the line,
// depth, longest waits, deadlines and cancelled contexts, [shaper.Limits.InFlight],
// holds, changes of the limits, Shutdown and Close, the calls of the hooks of [shaper.Trace],
// and Stats. Its instants are exact fractions of a nanosecond, and its line is a slice. It
// uses nothing of package shaper but the type Limits, so it cannot repeat a mistake of the
// code that it judges. It does not model lateness ([shaper.Limits.Slack]), because in a
// bubble of testing/synctest nothing is late.
//
// # Scripts
//
// A [Script] is the Limits of one bucket and a list of operations, each with its
// instant: calls, ends of their contexts, changes of the limits. [Script.Predict]
// returns one [Answer] for each operation: all that a caller can see of it, each
// instant to the nanosecond. [Random] and [FromBytes] compose scripts that aim at
// the instants and the calls at which engines make mistakes. Where the guarantees
// leave two outcomes open, as when two contexts end at one instant, they cut the
// script short, so every answer can be compared for equality.
//
// # How an engine is played against it
//
// An engine is whatever has the methods of a [Subject]: a [*shaper.Shaper], one
// key of a [shaper.Group], or a bucket whose state is kept elsewhere. The engine's
// test supplies a function that opens one, and this package does the rest:
//
//	open := func(l shaper.Limits, options ...shaper.Option) (model.Subject, error) {
//		return shaper.New(l, options...)
//	}
//	script, want := model.Random(chance)
//	if difference := model.Compare(t, script, want, open); difference != "" {
//		script, difference = model.Shrink(t, script, difference, open)
//		t.Fatalf("%v\n%s", script, difference)
//	}
//
// The options contain the player's hooks, so open must pass them on. An engine must
// run inside a bubble of testing/synctest: a server that it talks to must be replaced
// by one in memory. [Player] plays scripts on several buckets at once, as the tests of
// Group do.
//
// A test also shows that the comparison can fail: a model that makes one of [Mistakes]
// must differ from the engine within 100,000 operations (TestModelTellsMistakes in
// package shaper).
//
// # Processes that share a bucket
//
// A [SharedPace] is the common promise of processes that share a [shared.Bucket]. It judges a
// log of [Departure]s that they have written: every window of it, and the order within each
// process. An [Extra] is the allowance for a fault.
package model
