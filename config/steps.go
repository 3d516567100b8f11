package config

import (
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links are followed for a path, as Linux has it.
const maxLinks = 40

// steps returns the paths whose replacement makes path, which is absolute, lead to
// another file: those of the symbolic links on the way, and last that of the file
// itself. The folders of these paths hold no links. If something is missing on the way,
// the last path is that: its folder is there, and something may appear in it.
//
// A mounted ConfigMap, for one, has three steps: the file, a link into the folder
// ..data; that, a link to the folder of the version; and the file there.
func steps(path string) (found []string) {
	volume := filepath.VolumeName(path)
	top := volume + string(filepath.Separator)
	split := func(path string) []string {
		return strings.Split(filepath.ToSlash(strings.TrimPrefix(path, volume)), "/")
	}
	folder, rest, links := top, split(path), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			folder = filepath.Dir(folder)
			continue
		}
		at := filepath.Join(folder, name)
		info, err := os.Lstat(at)
		switch {
		case err != nil:
			return append(found, at)
		case info.Mode()&os.ModeSymlink != 0:
			found = append(found, at)
			target, err := os.Readlink(at)
			if links++; err != nil || links > maxLinks {
				return found
			}
			if filepath.IsAbs(target) {
				folder = top
			}
			rest = append(split(target), rest...)
		case len(rest) == 0:
			return append(found, at)
		default:
			folder = at
		}
	}
	return found
}
