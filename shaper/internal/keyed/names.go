package keyed

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"
)

// Names writes keys as JSON, and reads them.
type Names[K comparable] struct {
	text   bool // K is a string, and has no method by which it writes itself
	failed int  // how many keys Encode could not write
	first  error
}

// NewNames returns the Names of keys of type K.
func NewNames[K comparable]() Names[K] {
	t := reflect.TypeFor[K]()
	methods := false
	for _, m := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler](),
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()} {
		methods = methods || t.Implements(m) || reflect.PointerTo(t).Implements(m)
	}
	return Names[K]{text: t.Kind() == reflect.String && !methods}
}

// binaryKey is a string that is not valid UTF-8. JSON can't hold one, and clients may choose
// the keys.
type binaryKey struct {
	Base64 []byte `json:"base64"`
}

// Encode returns a key as JSON. If that can't be had, or would be read as another key, ok is
// false. A key that does not equal itself is one of those.
func (n *Names[K]) Encode(key K) (name json.RawMessage, ok bool) {
	name, err := n.write(key)
	if err == nil && (!n.text || name[0] == '{') {
		var back K
		if back, err = n.Decode(name); err == nil && back != key {
			err = fmt.Errorf("%.60s would be read as another key", name)
		}
	}
	if err == nil {
		return name, true
	}
	if n.failed++; n.failed == 1 {
		n.first = fmt.Errorf("key %.60q of type %T: %w", fmt.Sprint(key), key, err)
	}
	return nil, false
}

func (n *Names[K]) write(key K) (json.RawMessage, error) {
	if n.text {
		if text := reflect.ValueOf(key).String(); !utf8.ValidString(text) {
			return json.Marshal(binaryKey{[]byte(text)})
		}
	}
	return json.Marshal(key)
}

// Decode returns the key that [Names.Encode] has written.
func (n *Names[K]) Decode(name json.RawMessage) (key K, err error) {
	switch {
	case len(name) == 0:
		return key, fmt.Errorf("there is a bucket without a key")
	case n.text && name[0] != '{' && name[0] != '"':
		err = errors.New("it is no string")
	case n.text && name[0] == '"' && !bytes.ContainsRune(name, '\\') && utf8.Valid(name):
		reflect.ValueOf(&key).Elem().SetString(string(name[1 : len(name)-1])) // There is nothing to decode in it.
	case n.text && name[0] == '{':
		var binary binaryKey
		if err = json.Unmarshal(name, &binary); err == nil {
			reflect.ValueOf(&key).Elem().SetString(string(binary.Base64))
		}
	default:
		err = json.Unmarshal(name, &key)
		if err == nil && !n.text && !reflect.ValueOf(&key).Elem().Comparable() { // An interface may hold a slice.
			key, err = *new(K), errors.New("it can't be compared")
		}
	}
	if err != nil {
		return key, fmt.Errorf("a key of type %T can't be read from %.60s: %w", key, name, err)
	}
	return key, nil
}

// Failure returns the error for the keys that [Names.Encode] could not write; nil if there are none.
func (n *Names[K]) Failure() error {
	if n.failed == 0 {
		return nil
	}
	return fmt.Errorf("shaper: Snapshot: %d keys can't be written as JSON and are left out; the first: %w", n.failed, n.first)
}
