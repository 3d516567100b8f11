package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// sampled is how many lines at most tell the format of a file.
const sampled = 50

// newParser returns a parser of a format.
func newParser(f Format, o Options, t *texts) (parser, error) {
	switch f {
	case Combined:
		return newCombined(o, t)
	case Caddy:
		return newJSONLines(o, caddyNames(), t), nil
	case Traefik:
		return newTraefik(o, t)
	default:
		return newJSONLines(o, jsonNames(o.Fields), t), nil
	}
}

// choose sets the parser of a source to that of its format. If the format is Auto, it is
// the most special one in which at least half as many of the first lines have requests as
// in any other: a line of Traefik that was cut is still one of the combined format.
func (s *source) choose(o Options, t *texts) error {
	if o.Format != Auto {
		p, err := newParser(o.Format, o, t)
		s.parser = p
		return err
	}
	candidates := []Format{Caddy, Traefik, JSON, Combined}
	sample, err := s.sample()
	if err != nil {
		return err
	}
	parsers, fits, most := make([]parser, len(candidates)), make([]int, len(candidates)), 0
	for i, f := range candidates {
		if parsers[i], err = newParser(f, o, t); err != nil {
			return err
		}
		for _, line := range sample {
			if parsers[i].parse(bytes.Clone(line), &entry{}) == "" {
				fits[i]++
			}
		}
		most = max(most, fits[i])
	}
	if most == 0 && len(sample) > 0 {
		return fmt.Errorf("accesslog: %s: the format is none of combined, json, caddy and traefik; it begins with %s",
			s.name, excerpt(sample[0]))
	}
	s.parser = parsers[slices.IndexFunc(fits, func(n int) bool { return 2*n >= most })]
	return nil
}

// sample returns the first lines that are not empty, without reading them.
func (s *source) sample() (all [][]byte, err error) {
	head, err := s.lines.from.Peek(readAhead)
	atEnd := errors.Is(err, io.EOF)
	if err != nil && !atEnd && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, s.failed(err)
	}
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	for len(head) > 0 && len(all) < sampled {
		line, rest, whole := bytes.Cut(head, []byte("\n"))
		if !whole && !atEnd && len(all) > 0 {
			break // It goes on beyond what was read ahead.
		}
		if line = bytes.TrimSuffix(line, []byte("\r")); len(line) > 0 {
			all = append(all, line)
		}
		head = rest
	}
	return all, nil
}
