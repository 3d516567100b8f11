package llm

import (
	"net/http"
	"strings"
	"unsafe"
)

// What tests of this package may reach.
var (
	UntilReset = untilReset
	RetryAfter = retryAfter
)

// Kept is how much of a body, and of one event, is looked at.
const Kept = kept

// ReadAlong replaces the body of a response by one that is read along, and returns the function that returns the usage
// when the body has ended. Of a compressed body so many bytes are looked at; 0: as many as of any.
func ReadAlong(r *http.Response, usage func([]byte) (Usage, bool), room int) (result func() (u Usage, ok bool)) {
	body := &metered{ReadCloser: r.Body, meter: NewMeter(Provider{Usage: usage}, r.StatusCode, r.Header)}
	if room > 0 {
		body.meter.inflate.room = room
	}
	r.Body = body
	return func() (Usage, bool) {
		body.mu.Lock()
		defer body.mu.Unlock()
		return body.meter.Usage()
	}
}

// UsagePlaces returns the servers that report usage somewhere, and the source of each place.
func UsagePlaces() (places [][2]string) {
	for _, of := range [][]place{openAIPlaces, anthropicPlaces, geminiPlaces, bedrockPlaces} {
		for _, p := range of {
			places = append(places, [2]string{p.of, p.source})
		}
	}
	return places
}

// StreamedPlaces returns the servers that stream text somewhere, and the source of each place.
func StreamedPlaces() (places [][2]string) {
	for _, s := range streamed {
		places = append(places, [2]string{s.of, s.source})
	}
	return places
}

// AskPlaces returns who has the places of what a request asks for, each place, and its source.
func AskPlaces() (places [][3]string) {
	for _, a := range asks {
		places = append(places, [3]string{a.of, a.path, a.source})
	}
	return places
}

// HolderNames returns the names of what may hold a picture or the like.
func HolderNames() (names []string) {
	for _, h := range holders {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(h.path, "**."), ".*"))
	}
	return names
}

// Scanned scans a body.
func Scanned(body string) int {
	s := newScan()
	for i := 0; i < len(body); i += 32 << 10 {
		_, _ = s.Write(unsafe.Slice(unsafe.StringData(body[i:]), min(len(body)-i, 32<<10)))
	}
	return s.input(openAITariff, 0)
}
