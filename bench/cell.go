package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

const cellVariable = "LEAKYBUCKET_BENCH_CELL"

// A cell is one measurement of one contestant, in a process of its own: what
// one leaves behind, in the heap, the timers or the scheduler, is not the next
// one's, and CPU time and memory are its own.
//
// measureCell runs the cell of a kind in a child process, with in as its input,
// and decodes what it found into out. The kinds stand in cells.
func measureCell(ctx context.Context, kind string, in, out any) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	input, err := json.Marshal(in)
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), cellVariable+"="+kind)
	child.Stdin = bytes.NewReader(input)
	var found, complaint bytes.Buffer
	child.Stdout, child.Stderr = &found, &complaint
	if err := child.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", kind, input, errors.Join(err, ctx.Err()), bytes.TrimSpace(complaint.Bytes()))
	}
	return json.Unmarshal(found.Bytes(), out)
}
