package inspect

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"example.com/leakybucket/shaper"
)

// The bounds of "for": a shorter change nobody would see, and a longer one belongs into
// what the program itself sets.
const (
	shortestChange = time.Second
	longestChange  = 24 * time.Hour
)

// maxWho is how long a caller's name for itself may be, in bytes.
const maxWho = 100

// serveLimits puts limits in force for a time.
func (i *Inspector) serveLimits(w http.ResponseWriter, r *http.Request, _ query) error {
	want, err := i.readCommand(w, r, "limits", "for")
	if err != nil {
		return err
	}
	l, err := shaper.ParseLimits(want.fields["limits"])
	if err != nil {
		return &failure{http.StatusBadRequest, "limits", want.fields["limits"], err.Error()}
	}
	span, err := want.span()
	if err != nil {
		return err
	}
	done, err := i.controller.setLimits(want, l, span)
	return answerChange(w, done, err)
}

// serveHold holds a line for a time.
func (i *Inspector) serveHold(w http.ResponseWriter, r *http.Request, _ query) error {
	want, err := i.readCommand(w, r, "for")
	if err != nil {
		return err
	}
	span, err := want.span()
	if err != nil {
		return err
	}
	done, err := i.controller.hold(want, span)
	return answerChange(w, done, err)
}

// serveRelease ends all holds of a line.
func (i *Inspector) serveRelease(w http.ResponseWriter, r *http.Request, _ query) error {
	want, err := i.readCommand(w, r)
	if err != nil {
		return err
	}
	done, err := i.controller.release(want)
	return answerChange(w, done, err)
}

// serveReset ends a change of limits now.
func (i *Inspector) serveReset(w http.ResponseWriter, r *http.Request, _ query) error {
	want, err := i.readCommand(w, r)
	if err != nil {
		return err
	}
	done, err := i.controller.reset(want)
	return answerChange(w, done, err)
}

func answerChange(w http.ResponseWriter, c change, err error) error {
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

// A command is what somebody wants changed: a bucket, and the fields of the request.
type command struct {
	of     target
	ref    bucketRef
	who    string
	fields map[string]string
}

// readCommand returns what a request that may change something wants. Its fields, beside
// those that say of which bucket and who wants it, are those named.
func (i *Inspector) readCommand(w http.ResponseWriter, r *http.Request, named ...string) (command, error) {
	if err := i.authorize(w, r); err != nil {
		return command{}, err
	}
	fields, err := readFields(w, r, append(named, "source", "key", "id", "who"))
	if err != nil {
		return command{}, err
	}
	for _, name := range append([]string{"source"}, named...) {
		if fields[name] == "" {
			return command{}, &failure{http.StatusBadRequest, name, "", name + " is missing"}
		}
	}
	if who := fields["who"]; len(who) > maxWho {
		return command{}, wrong("who", who, "must be at most %d bytes", maxWho)
	}
	want := command{who: whoIs(r, fields["who"]), fields: fields}
	want.of, want.ref, err = i.bucketOf(r.Context(), fields)
	return want, err
}

// bucketOf returns the bucket that fields name: by its source and, in a group, by its key
// or its id.
func (i *Inspector) bucketOf(ctx context.Context, fields map[string]string) (of target, ref bucketRef, err error) {
	source, err := i.sourceNamed(fields["source"])
	if err != nil {
		return target{}, nil, err
	}
	key, ofKey := fields["key"]
	id, ofID := fields["id"]
	switch {
	case ofKey && ofID:
		return target{}, nil, &failure{http.StatusBadRequest, "id", id, "id is given beside key; one of them is enough"}
	case ofID:
		if key, err = keyOf(id); err != nil {
			return target{}, nil, &failure{http.StatusBadRequest, "id", id, err.Error()}
		}
	case !ofKey && source.source.kind() == "group":
		return target{}, nil, &failure{http.StatusBadRequest, "key", "", "key, or id, is missing: the source is a group, and one of its buckets is meant"}
	}
	of = target{source: source, key: key}
	if ref = i.controller.refOf(of); ref != nil { // Its key may have no bucket now, and be unknown.
		return of, ref, nil
	}
	ref, err = source.bucket(ctx, key)
	return of, ref, err
}

// span returns for how long the change is to last.
func (want command) span() (time.Duration, error) {
	text := want.fields["for"]
	span, err := time.ParseDuration(text)
	if err != nil || span < shortestChange || span > longestChange {
		return 0, wrong("for", text, `must be a duration from 1s to 24h, such as "10m"`)
	}
	return span, nil
}

// whoIs says who has sent a request: the address, and the name that the caller has given
// itself. The token proves that the caller may change things, and nothing proves the name.
func whoIs(r *http.Request, name string) string {
	if name == "" {
		return r.RemoteAddr
	}
	return strconv.Quote(name) + " at " + r.RemoteAddr
}
