package inspect

import "unsafe"

// HistorySize is how many bytes the history of a source takes at most.
const HistorySize = (keptSteps + keptLong) * unsafe.Sizeof(sample{})

// A Served is a route in the words of the OpenAPI document.
type Served struct {
	Method, Path string
	Parameters   []string
}

// Routes returns all routes of the API.
func Routes() (served []Served) {
	for _, p := range routes {
		path := p.path
		if p.bucket {
			path += "/{source}/{id}"
		}
		served = append(served, Served{p.method, path, p.parameters})
	}
	return served
}

// The forms of the API. Tests that read answers into them trust their names, which testdata/answers.txt
// holds.
type (
	Bucket  = bucket
	List    = list
	Told    = change
	Record  = record
	View    = quotaView
	Turns   = turnsView
	Turn    = turnView
	History = history
	Point   = point
)
