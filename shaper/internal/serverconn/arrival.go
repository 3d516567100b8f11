package serverconn

import (
	"bufio"
	"io"
	"reflect"
)

// hasCome reports whether all that is left of a body is in net/http's buffer, so that no read
// of it waits. To find that out from the body alone would take a read, which could block. So
// hasCome looks at unexported fields; if a Go release renames them, no body has come.
//
// A small body mostly comes together with the header. To set a deadline for reading it would
// make its refusal take half as long again. No other goroutine may read the body meanwhile.
func hasCome(body io.Reader) bool {
	if !buffered.known || kindOf(body) != plainBody {
		return false
	}
	source := reflect.ValueOf(body).Elem().Field(buffered.source).Elem()
	if source.Type() != limitedReaderType {
		return false // It is chunked.
	}
	from := source.Elem().Field(buffered.from).Elem()
	if from.Type() != bufioReaderType {
		return false
	}
	from = from.Elem()
	come := from.Field(buffered.end).Int() - from.Field(buffered.begin).Int()
	return source.Elem().Field(buffered.left).Int() <= come
}

var (
	limitedReaderType = reflect.TypeFor[*io.LimitedReader]()
	bufioReaderType   = reflect.TypeFor[*bufio.Reader]()
	buffered          = findFields(plainType)
)

// fields are the indexes of the fields by which hasCome finds how much is in the buffer.
type fields struct {
	source     int // of a body
	from, left int // of an io.LimitedReader: what it reads from, and how many bytes
	begin, end int // of a bufio.Reader: where in its buffer what is to be read is
	known      bool
}

// findFields returns the fields of a body of that type, and those beneath it.
func findFields(body reflect.Type) (f fields) {
	f.known = body != nil
	find := func(of reflect.Type, name string, kind reflect.Kind) int {
		if !f.known || of.Kind() != reflect.Pointer || of.Elem().Kind() != reflect.Struct {
			f.known = false
			return 0
		}
		field, ok := of.Elem().FieldByName(name)
		if !ok || field.Type.Kind() != kind || len(field.Index) != 1 {
			f.known = false
			return 0
		}
		return field.Index[0]
	}
	f.source = find(body, "src", reflect.Interface)
	f.from, f.left = find(limitedReaderType, "R", reflect.Interface), find(limitedReaderType, "N", reflect.Int64)
	f.begin, f.end = find(bufioReaderType, "r", reflect.Int), find(bufioReaderType, "w", reflect.Int)
	return f
}
