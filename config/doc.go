// Package config keeps the limits of a [shaper.Group] in a file: for each key or group
// of keys a rule, special cases below general ones, changed while traffic flows.
//
//	default: 20/s depth 50                    # keys that match nothing else
//	limits:
//	  api: 50/s depth 100                     # api, api/premium/42, but not api2
//	  api/192.0.2.3: "500, 100/sec"           # a special case below a general rule
//	  login: {rate: 5/min, burst: 5}          # the same as a mapping
//	  api/premium:
//	    rate: 200/s
//	    depth: 400
//	    wait: 2s
//	    candidate: 100/s depth 200            # a number to try in a dry run
//
// A program opens the file, and makes a Group that asks it:
//
//	limits, err := config.Open("shaper.yaml")
//	…
//	group, err := shaper.NewGroup(limits.Limits)
//	…
//	limits.OnChange(func(*config.Rules) { group.Reload() })
//
// # Rules
//
// A key is matched by the rule whose own key is its longest prefix that ends at a "/" or
// at its end: api/premium/42 by api/premium, else by api, else by the default. If there
// is none, the call fails with [ErrNoRule]; it is not let through.
//
// Keys are written as [shaper.Join] makes them: "%2F" for a "/" within a part, "%25" for
// a "%", "-" for an empty part and "%2D" for a part that is just "-". A key that Join
// never makes is an error that says how to write it.
//
// Limits are written as the text that [shaper.ParseLimits] reads, or as a mapping with
// the fields rate, burst, depth, wait, slack and inflight, which is each process's own (that of all
// is shared.Options.InFlight). Only the rate must be there. It may be
// a window ([shaper.Window]), as in {rate: 100 in 1min, burst: 20}, which takes the burst and the slack
// beside it into account.
// As a mapping they may have a candidate, which is limits in either form
// without a further candidate. [File.Candidate] returns it for a second Group with
// [shaper.WithDryRun], which holds no request up and tells the verdict of the candidate.
//
// Several files are layers. A rule of a later one replaces the rule of an earlier one
// whole, with its candidate; ~ takes it away. The same holds for the default.
//
// # One line for all keys
//
// With fair all keys share one rate, and take turns by their weights ([shaper.WithFairQueue]):
//
//	default: 50/s depth 1000                  # the limits of the line
//	fair:
//	  by: header X-Team                       # or client_ip, host, route, or several of them
//	  weights: {gold: 4}                      # the share of a key where others have 1
//
// [OpenFair] opens such a file, and [File.NewShaper] makes the line:
//
//	limits, err := config.OpenFair("shaper.yaml")
//	…
//	line, err := limits.NewShaper()
//
// Beside fair there are no rules but the default, which must be there and have no candidate; that
// is judged when all layers have been read. Weights are those of whole keys. by is for the program, which makes
// the keys. Beside fair the rate may adapt (package adapt), within bounds of which each may be left out:
//
//	adapt: {min: 5/s, max: 200/s, start: 20/s, slow: 300ms}
//
// [Rules.Adapt] says them; the program makes the Controller. The fair or adapt of a later layer replaces that of an earlier one whole, and ~ takes it away.
//
// # What is refused
//
// A file is read strictly, because whoever changes it seldom sees the effect at once.
// Unknown fields, keys that stand twice, keys without a value, several documents,
// anchors, aliases, tags and characters at which only some programs end a line are
// mistakes, and so is a file that is empty, larger than 1 MiB or has more than 100,000
// rules. Nothing is replaced by values of the environment. [Errors] has all mistakes at
// once, each with file, line and column, and with the rule and the field.
package config
