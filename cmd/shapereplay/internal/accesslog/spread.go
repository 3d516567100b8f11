package accesslog

import "time"

// A spread counts the requests of every second that a source tells in whole seconds, to
// spread them over it. All of a second have been counted when the first leaves, as they
// are held for a window.
type spread map[second]*spreadCount

type second struct {
	rank uint64 // of the source
	at   int64
}

type spreadCount struct{ counted, gone int }

func (s spread) count(of second) {
	c := s[of]
	if c == nil {
		c = &spreadCount{}
		s[of] = c
	}
	c.counted++
}

// next returns how far into its second the next request arrives.
func (s spread) next(of second) time.Duration {
	c := s[of]
	offset := time.Duration(float64(time.Second) * float64(c.gone) / float64(c.counted))
	if c.gone++; c.gone == c.counted {
		delete(s, of)
	}
	return offset
}
