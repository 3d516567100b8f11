package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"time"

	"example.com/leakybucket/shaper"
)

// What one process hands on to another that has the lines of the same Models next: package replicas asks for it.

const (
	savedVersion = 1

	// mostSaved bounds the bytes of all estimates that are handed on.
	mostSaved = 512 << 10
)

// savedModels are Models as they are handed on.
type savedModels struct {
	Version int          `json:"version"`
	Models  []savedModel `json:"models"`
}

type savedModel struct {
	Pattern string          `json:"pattern"`
	Unit    string          `json:"unit"` // of the levels
	Line    json.RawMessage `json:"line"` // its [shaper.Shaper.Snapshot]
	Learned json.RawMessage `json:"learned,omitempty"`
}

// savedLine is a Snapshot of a line.
type savedLine struct {
	Version int       `json:"version"`
	Of      string    `json:"of"`
	Taken   time.Time `json:"taken"`
	savedLevel
	Meters []savedMeter `json:"meters,omitempty"`
}

type savedLevel struct {
	Level     string  `json:"level,omitempty"`
	Rate      float64 `json:"rate,omitempty"`
	HeldNS    int64   `json:"held_ns,omitempty"`
	BlockedNS int64   `json:"blocked_ns,omitempty"`
}

type savedMeter struct {
	Name string `json:"name"`
	savedLevel
}

// levels returns the levels of the line: the first, and those of its meters.
func (s *savedLine) levels() (all []*savedLevel) {
	all = append(all, &s.savedLevel)
	for i := range s.Meters {
		all = append(all, &s.Meters[i].savedLevel)
	}
	return all
}

// Save returns the levels, holds and estimates of all lines as JSON, for [Models.Begin] in another process: less than 600 kB for
// ten models.
func (m Models) Save() ([]byte, error) {
	return m.saved(func(g *Gateway, line json.RawMessage, s *savedModel) error {
		s.Line, s.Learned = line, g.config.Ledger.learned.Save(mostSaved/len(m))
		return nil
	})
}

// Holds returns the rests of the holds of all lines, likewise. As Begin makes levels full, only those above their burst are in it.
func (m Models) Holds() ([]byte, error) {
	return m.saved(func(g *Gateway, line json.RawMessage, s *savedModel) error {
		full, err := fullLine(g.config.Line())
		if err != nil {
			return err
		}
		s.Line, err = above(line, full)
		return err
	})
}

// saved returns the models with what a function makes of the Snapshot of each line.
func (m Models) saved(of func(g *Gateway, line json.RawMessage, s *savedModel) error) ([]byte, error) {
	saved := savedModels{Version: savedVersion}
	for _, model := range m {
		g := model.Gateway
		line, err := g.config.Line().Snapshot()
		s := savedModel{Pattern: model.Pattern, Unit: g.unit()}
		if err = errors.Join(err, of(g, line, &s)); err != nil {
			return nil, err
		}
		saved.Models = append(saved.Models, s)
	}
	return json.Marshal(saved)
}

// unit names the unit of the levels of the line.
func (g *Gateway) unit() string {
	if q := g.config.Quota; len(g.config.Line().Meters()) == 0 {
		return fmt.Sprintf("millionths of %+v by %v", q, g.config.Scale)
	}
	return fmt.Sprint(g.config.Quota.Kinds())
}

// Begin puts back what [Models.Save] or [Models.Holds] has returned an age ago in another process; nil: nothing. If full is true, all
// levels are full besides, as if their bursts had just been used, and so are those whose unit has changed. The greater levels and
// the later ends of holds count. If handed is damaged, Begin returns an error.
func (m Models) Begin(handed []byte, age time.Duration, full bool) error {
	saved, by := savedModels{Version: savedVersion}, map[string]savedModel{}
	if handed != nil {
		saved.Version = 0
		if err := json.Unmarshal(handed, &saved); err != nil {
			return fmt.Errorf("gateway: what was handed on is damaged: %w", err)
		}
	}
	if saved.Version != savedVersion {
		return fmt.Errorf("gateway: what was handed on has version %d, must have %d", saved.Version, savedVersion)
	}
	for _, s := range saved.Models {
		by[s.Pattern] = s
	}
	for _, model := range m {
		s, ok := by[model.Pattern]
		if err := model.Gateway.begin(s, age, full || handed != nil && !ok); err != nil {
			return err
		}
	}
	return nil
}

// Empty sets all levels to 0, and leaves limits and holds as they are. It is for lines in which no call is, before they get a part
// of their quota: a full level keeps its units, and would be above the burst of the part for long.
func (m Models) Empty() error {
	for _, model := range m {
		line := model.Gateway.config.Line()
		limits, meters := line.Limits(), []shaper.Meter{}
		for _, l := range line.Meters() {
			meters = append(meters, l.Meter)
		}
		endless, all := limits, slices.Clone(meters) // At an endless rate the level is 0.
		endless.Rate = math.MaxFloat64               // That is rate.Inf of x/time.
		for i := range all {
			all[i].Rate = endless.Rate
		}
		if err := errors.Join(line.SetLimits(endless), line.SetMeters(all...), line.SetMeters(meters...), line.SetLimits(limits)); err != nil {
			return err
		}
	}
	return nil
}

// begin is Begin for one of them. A Line that is nil was not handed on.
func (g *Gateway) begin(s savedModel, age time.Duration, full bool) (err error) {
	line := g.config.Line()
	if s.Line != nil {
		if s.Unit != g.unit() {
			full = true
			if s.Line, err = above(s.Line, nil); err != nil {
				return err
			}
		}
		if s.Line, err = takenAt(s.Line, time.Now().Add(-age)); err != nil {
			return err
		}
		if err = line.Restore(s.Line); err != nil {
			return err
		}
	}
	if s.Learned != nil {
		if err = g.config.Ledger.learned.Restore(s.Learned); err != nil {
			return err
		}
	}
	if !full {
		return nil
	}
	all, err := fullLine(line)
	if err != nil {
		return err
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return line.Restore(text)
}

// takenAt returns a Snapshot with another time: the clocks of two processes differ.
func takenAt(line json.RawMessage, at time.Time) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, fmt.Errorf("gateway: what was handed on is damaged: %w", err)
	}
	text, err := json.Marshal(at.Round(0).UTC())
	if err != nil {
		return nil, err
	}
	fields["taken"] = text
	return json.Marshal(fields)
}

// above returns a Snapshot without its levels, but for those above the levels of another; nil: without any.
func above(line json.RawMessage, full *savedLine) (json.RawMessage, error) {
	var s savedLine
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("gateway: what was handed on is damaged: %w", err)
	}
	for i, l := range s.levels() {
		if full != nil {
			level, some := new(big.Rat).SetString(l.Level)
			most, bounded := new(big.Rat).SetString(full.levels()[i].Level)
			if some && bounded && level.Cmp(most) > 0 {
				continue
			}
		}
		l.Level, l.Rate = "", 0
	}
	return json.Marshal(s)
}

// fullLine returns the Snapshot of a line whose levels have reached their bursts just now.
func fullLine(line *shaper.Shaper) (*savedLine, error) {
	text, err := line.Snapshot()
	if err != nil {
		return nil, err
	}
	s := savedLine{}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	limits := line.Limits()
	bursts, rates := []int{limits.Burst}, []float64{float64(limits.Rate)}
	s.Meters = nil
	for _, m := range line.Meters() {
		bursts, rates = append(bursts, m.Burst), append(rates, float64(m.Rate))
		s.Meters = append(s.Meters, savedMeter{Name: m.Name})
	}
	for i, l := range s.levels() {
		if *l = (savedLevel{}); rates[i] < math.MaxFloat64 { // rate.Inf of x/time lets all pass.
			l.Level, l.Rate = strconv.Itoa(max(bursts[i], 1)), rates[i]
		}
	}
	return &s, nil
}
