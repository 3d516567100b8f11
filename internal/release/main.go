// Command release publishes a copy of this tree to a folder, so that
// .ci/release-check can use it as others will: through the go command, from
// outside the tree.
//
//	release TREE VERSION OUT
//
// TREE is the copy, and nothing but the files of a release. Each library module in
// it gets the go.mod and go.sum that a release needs: without the replace lines that
// lead to other modules of the tree, and with VERSION of those. OUT/proxy then serves
// it to the go command. Standard output has one line for each such module: its path, and
// its folder in TREE.
//
// It is a module of its own because of golang.org/x/mod, which knows what belongs
// into the zip file of a module; users of the library need not know that module.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: release TREE VERSION OUT")
		os.Exit(2)
	}
	lines, err := publish(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
	for _, line := range lines {
		fmt.Println(line)
	}
}

// publish is the command. It returns the lines that are printed.
func publish(dir, version, out string) (lines []string, err error) {
	tree, err := findModules(dir, version)
	if err != nil {
		return nil, err
	}
	if err := tree.initRepository(); err != nil {
		return nil, err
	}
	for _, m := range tree.modules {
		if !m.library {
			continue
		}
		if err := tree.pin(m); err != nil {
			return nil, err
		}
		if err := tree.serve(m, out); err != nil {
			return nil, err
		}
		lines = append(lines, m.path+" "+m.dir)
	}
	return lines, nil
}
