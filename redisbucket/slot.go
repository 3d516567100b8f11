package redisbucket

import (
	"strconv"
	"strings"
)

// Shard says which keys fail together: in a cluster the keys of one hash slot, elsewhere
// all of them. Slots move from server to server, so a server would not do: a key could
// count as unavailable because of the server that once had it.
func (b *Bucket) Shard(key string) string {
	if b.cluster == nil {
		return ""
	}
	return "slot " + strconv.Itoa(slot(b.prefix+key))
}

// slot returns the hash slot of a key as the specification of Redis Cluster has it: if the
// key has a text in braces, only the first such text counts.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC-16/XMODEM
	for _, c := range []byte(key) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}
