package accesslog

const (
	internBytes   = 16 << 20 // of all strings that are remembered together
	internLongest = 512      // longer ones seldom come again
)

// An interner makes strings of bytes. The same few clients, hosts and paths stand in most
// lines of a log, so it remembers the strings and returns them again, which saves the
// allocation. When it holds 16 MiB it begins anew.
type interner struct {
	convert func([]byte) string // what becomes of bytes that are new; must not depend on anything else

	kept map[string]string // by the bytes as they stand in the log
	size int               // bytes of its keys and values
}

func newInterner(convert func([]byte) string) *interner {
	return &interner{convert: convert, kept: map[string]string{}}
}

// of returns the string that the bytes are converted to.
func (in *interner) of(b []byte) string {
	if s, ok := in.kept[string(b)]; ok {
		return s
	}
	s := in.convert(b)
	if len(b) > internLongest {
		return s
	}
	if in.size += len(b) + len(s); in.size > internBytes {
		clear(in.kept)
		in.size = len(b) + len(s)
	}
	in.kept[string(b)] = s
	return s
}
