package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// cells are the measurements that run in a child process, by their kind.
var cells = map[string]func(input []byte) (any, error){
	"spacing":   decoded(measureSpacing),
	"admission": admissionCell,
	"cancel":    cancelCell,
	"ceiling":   ceilingCell,
	"close":     closeCell,
	"goodput":   goodputCell,
	"hole":      holeCell,
	"memory":    memoryCell,

	"keys":         decoded(keysCell),
	"keys-active":  decoded(keysActiveCell),
	"keys-left":    decoded(keysLeftCell),
	"keys-touched": decoded(keysTouchedCell),
}

// decoded is a cell whose input is read from JSON.
func decoded[In, Out any](measure func(In) (Out, error)) func(input []byte) (any, error) {
	return func(input []byte) (any, error) {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, err
		}
		return measure(in)
	}
}

// runCell is the whole of a child process: it measures what measureCell in the
// parent asked for, and answers it. It returns the exit status.
func runCell(kind string, in io.Reader, out, complaints io.Writer) int {
	if err := answerCell(kind, in, out); err != nil {
		fmt.Fprintln(complaints, err)
		return exitFailed
	}
	return exitOK
}

func answerCell(kind string, in io.Reader, out io.Writer) error {
	measure, known := cells[kind]
	if !known {
		return fmt.Errorf("no cell is of the kind %q that %s asks for", kind, cellVariable)
	}
	input, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	found, err := measure(input)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(found)
}
