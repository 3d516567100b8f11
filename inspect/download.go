package inspect

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// exportParameters are the parameters of a list that is not cut into pages.
var exportParameters = slices.DeleteFunc(slices.Clone(listParameters), func(name string) bool { return name == "limit" || name == "cursor" })

// A steadyWriter drops a reader that takes nothing for the writeLimit of a stream, as an export keeps
// a scan in memory. A writer without deadlines, such as one in memory, never blocks.
type steadyWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w steadyWriter) Write(text []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(writeLimit))
	return w.ResponseWriter.Write(text)
}

// exportAs returns the handler of a route for an export, as a file of a kind.
func exportAs(kind string, write func(io.Writer, *choice, func(placed) bucket) error) func(*Inspector, http.ResponseWriter, *http.Request, query) error {
	return func(i *Inspector, w http.ResponseWriter, r *http.Request, q query) error {
		return i.export(w, r, q, kind, write)
	}
}

// export answers with all buckets that are wanted, as a file of a kind. They are written one by one,
// so that the memory that it takes does not depend on the size of the file.
func (c *core) export(w http.ResponseWriter, r *http.Request, q query, kind string, write func(io.Writer, *choice, func(placed) bucket) error) error {
	l, err := readListing(q)
	if err != nil {
		return err
	}
	l.limit = math.MaxInt
	select {
	case c.exporting <- struct{}{}:
		defer func() { <-c.exporting }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	chosen, err := c.choose(r.Context(), l)
	if err != nil {
		return err
	}
	defer chosen.release()
	control := http.NewResponseController(w)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	w.Header().Set("Content-Type", contentTypes["."+kind])
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="buckets-%s.%s"`, chosen.At.Format("20060102T150405Z"), kind))
	out := bufio.NewWriterSize(steadyWriter{w, control}, 64<<10)
	err = write(out, chosen, func(p placed) bucket { return c.withOverride(p.row.view(p.of, chosen.At)) })
	if err == nil {
		err = out.Flush()
	}
	if err != nil { // The reader has gone, and must not take a part for the whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// writeWholeList writes a [list] that has all its buckets on one page.
func writeWholeList(w io.Writer, chosen *choice, view func(placed) bucket) error {
	text, err := json.Marshal(chosen.list)
	if err != nil {
		return err
	}
	const end = `],"next":null}`
	if _, err := io.WriteString(w, strings.TrimSuffix(string(text), end)); err != nil {
		return err
	}
	comma := ""
	for _, p := range chosen.rows {
		if text, err = json.Marshal(view(p)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s%s", comma, text); err != nil {
			return err
		}
		comma = ","
	}
	_, err = io.WriteString(w, end+"\n")
	return err
}

// writeCSV writes a line for each bucket. Its columns are the fields of the API.
func writeCSV(w io.Writer, chosen *choice, view func(placed) bucket) error {
	out := csv.NewWriter(w)
	var fields []int
	var cells []string
	of := reflect.TypeFor[bucket]()
	for k := range of.NumField() {
		if of.Field(k).IsExported() {
			fields, cells = append(fields, k), append(cells, of.Field(k).Tag.Get("json"))
		}
	}
	if err := out.Write(cells); err != nil {
		return err
	}
	for _, p := range chosen.rows {
		b := reflect.ValueOf(view(p))
		for k, field := range fields {
			cells[k] = cell(b.Field(field).Interface())
		}
		if err := out.Write(cells); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// cell returns a field of a bucket as the cell of a table; a missing one is empty.
func cell(value any) string {
	switch v := value.(type) {
	case string:
		return harmless(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case *float64:
		if v != nil {
			return cell(*v)
		}
	case *time.Time:
		if v != nil {
			return v.Format(time.RFC3339Nano)
		}
	case *sharedView:
		if v != nil {
			return v.State
		}
	case *override:
		if v != nil {
			return "until " + v.Until.Format(time.RFC3339Nano)
		}
	default:
		return fmt.Sprint(v)
	}
	return ""
}

// harmless returns a text that no program takes for a formula. Keys come from clients, and a
// spreadsheet would run a cell that begins with one of these signs: it takes the apostrophe as
// the sign of a text, and does not show it.
func harmless(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r\n", rune(text[0])) {
		return "'" + text
	}
	return text
}
