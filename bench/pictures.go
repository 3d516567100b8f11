package main

// pictures draws what the parts of a run have found, as far as they were
// measured.
func (r results) pictures() []plot {
	var spacings []spacingResult
	var goodputs []goodputResult
	var keys []keysResult
	for _, p := range r.Parts {
		switch data := p.Data.(type) {
		case []spacingResult: // of spacing, and of busy
			spacings = append(spacings, data...)
		case []goodputResult:
			goodputs = append(goodputs, data...)
		case keysResults:
			keys = append(keys, data.Calls...)
		}
	}
	const ours = "shaper"
	caption := r.Machine.String() + "."
	var all []plot
	for _, rate := range []float64{1_000, 10_000} {
		if _, measured := spacingOf(spacings, ours, rate, goalWaiters, idle); measured {
			all = append(all, spacingPlot(spacings, rate, goalWaiters, ours, caption))
		}
	}
	if len(spacings) > 0 {
		all = append(all, ratePlot(spacings, goalWaiters, ours, caption))
	}
	if len(goodputs) > 0 {
		all = append(all, goodputPlot(goodputs, ours, caption))
	}
	if len(keys) > 0 {
		all = append(all, keysPlot(keys, ours, caption))
	}
	return all
}
