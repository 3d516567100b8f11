package llm

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// mostUnpacked bounds what the body of a request may hold that is compressed: more than any provider takes. The decompression of a
// body that holds gigabytes would take minutes.
const mostUnpacked = 64 << 20

// mostWindow bounds the memory that a zstd body may ask for (RFC 8878, section 3.1.1.1.2, recommends to support 8 MiB).
const mostWindow = 8 << 20

// ErrBomb says that the body of a request holds more than 64 MiB when it is decompressed. Its call is not sent, and costs nothing.
var ErrBomb = errors.New("llm: the body of the request holds more than 64 MiB when it is decompressed")

// codingOf returns the coding of a body, "" if it has none.
func codingOf(h http.Header) string {
	coding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	if coding == "identity" {
		return ""
	}
	return coding
}

// codings are the codings that can be read.
var codings = []string{"gzip", "x-gzip", "deflate", "br", "zstd"}

// unpacked returns what a body holds, by its Content-Encoding. An error says that the coding is unknown, or that the body has another
// one. Closing it frees memory, and leaves the body open.
func unpacked(body io.Reader, coding string) (io.ReadCloser, error) {
	switch coding {
	case "":
		return io.NopCloser(body), nil
	case "gzip", "x-gzip":
		return gzip.NewReader(body)
	case "deflate":
		// It is the format of zlib. Some clients leave out its head, which is no beginning of anything else.
		b := bufio.NewReader(body)
		if head, _ := b.Peek(2); len(head) == 2 && head[0]&0x0f == 8 && (int(head[0])<<8+int(head[1]))%31 == 0 {
			return zlib.NewReader(b)
		}
		return flate.NewReader(b), nil
	case "br":
		return io.NopCloser(brotli.NewReader(body)), nil
	case "zstd":
		// None is kept for another body: it has a channel, which belongs to the synctest bubble in which it was made.
		z, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(mostWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("llm: the Content-Encoding %q is unknown", coding)
}

// unpack scans what a body holds. whole says that it is no beginning of one. If it can't be decompressed its length counts. The error
// is ErrBomb, or one of a body that is not compressed.
func unpack(s *scan, body io.Reader, coding string, whole bool) error {
	if coding == "" {
		_, err := io.Copy(s, onlyRead{body})
		return err
	}
	source := &counting{r: body}
	plain, err := unpacked(source, coding)
	if err == nil {
		defer plain.Close() // It can't fail.
		_, err = io.Copy(s, io.LimitReader(plain, mostUnpacked+1))
	}
	if s.length > mostUnpacked {
		return ErrBomb
	}
	if err != nil && (whole || s.length == 0) {
		_, _ = io.Copy(io.Discard, source) // An error is told where the body is sent.
		*s = scan{length: source.n}
	}
	return nil
}

// onlyRead hides a WriterTo: that of a strings.Reader copies all of it.
type onlyRead struct{ io.Reader }

// counting counts the bytes that are read.
type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (n int, err error) {
	n, err = c.r.Read(p)
	c.n += int64(n)
	return n, err
}
