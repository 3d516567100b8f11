package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
)

// sampled is how many lines at most tell the format of a file.
const sampled = 50

// choose sets the parser of a source to the parser of its format, and finds the heads of
// its lines. If the format is Auto, it is the most special one in which at least half as
// many of the first lines have requests as in any other: a line of Traefik that was cut is
// still one of the combined format.
func (s *source) choose(o Options, t *texts) error {
	var parsers []parser
	for _, f := range formats {
		if o.Format != Auto && o.Format != f.format {
			continue
		}
		p, err := f.newParser(o, t)
		if err != nil {
			return err
		}
		parsers = append(parsers, p)
	}
	sample, err := s.sample()
	if err != nil {
		return err
	}
	fits, requests := fitting(parsers, sample)
	if chain := headsOf(sample); len(chain) > 0 {
		// A line of syslog can be taken for one of a client called Nov. So the lines that have
		// heads count as such, if there are requests behind them.
		with, without := chain.cutAll(sample)
		behind, requestsBehind := fitting(parsers, with)
		if _, others := fitting(parsers, without); requestsBehind > others {
			s.heads, s.headNames, fits, requests = chain, chain.String(), behind, requestsBehind
		}
	}
	if requests == 0 && len(sample) > 0 {
		is := unreadFormat(sample)
		if is != "" || o.Format == Auto {
			return &FormatError{s.name, is, excerpt(sample[0])}
		}
	}
	most := slices.Max(fits)
	s.parser = parsers[slices.IndexFunc(fits, func(n int) bool { return 2*n >= most })]
	return nil
}

// fitting returns in how many of the lines each of the parsers finds a request, and in how
// many any of them does.
func fitting(parsers []parser, lines [][]byte) (fits []int, requests int) {
	fits = make([]int, len(parsers))
	for _, line := range lines {
		found := false
		for i, p := range parsers {
			if len(line) > 0 && p.parse(bytes.Clone(line), &entry{}) == "" {
				fits[i]++
				found = true
			}
		}
		if found {
			requests++
		}
	}
	return fits, requests
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
