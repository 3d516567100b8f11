// Package board makes the board for Grafana that is in deploy/grafana. It is a program
// because a board is mostly repetition: here each panel is what differs.
package board

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Datasource is the uid under which Grafana finds Prometheus. deploy/grafana/provisioning
// gives it.
const Datasource = "prometheus"

// A query is an expression of PromQL, and how its series are called.
type query struct{ legend, expr string }

// A panel is a graph over time.
type panel struct {
	title, help, unit string
	queries           []query
	stacked           bool
}

// A row is a heading with panels below it.
type row struct {
	title  string
	panels []panel
}

// Expressions returns all expressions of the board, with the variables of Grafana.
func Expressions() (all []string) {
	for _, r := range rows {
		for _, p := range r.panels {
			for _, q := range p.queries {
				all = append(all, q.expr)
			}
		}
	}
	return append(all, variable)
}

// JSON returns the board as Grafana imports it.
func JSON() ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // The expressions have comparisons in them, and people read them.
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"uid":           "shaper",
		"title":         "Shaper",
		"tags":          []string{"shaper"},
		"editable":      true,
		"graphTooltip":  1, // one crosshair in all panels
		"schemaVersion": 39,
		"refresh":       "10s",
		"time":          object{"from": "now-1h", "to": "now"},
		"templating":    object{"list": []object{ruleVariable()}},
		"panels":        panels(),
	})
	return text.Bytes(), err
}

type object map[string]any

func source() object { return object{"type": "prometheus", "uid": Datasource} }

// variable asks for the names of all rules.
const variable = `label_values(shaper_requests_total, rule)`

func ruleVariable() object {
	return object{
		"name": "rule", "label": "Rule", "type": "query", "datasource": source(),
		"query":   object{"query": variable, "refId": "rule"},
		"refresh": 2, // whenever the time changes
		"multi":   true, "includeAll": true, "allValue": ".*",
		"current": object{"text": "All", "value": "$__all"},
	}
}

// panels places rows and panels on Grafana's grid of 24 columns, three panels in a line.
func panels() (placed []object) {
	const width, height = 8, 8
	y := 0
	for _, r := range rows {
		placed = append(placed, object{
			"id": len(placed) + 1, "type": "row", "title": r.title, "collapsed": false,
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}, "panels": []object{},
		})
		y++
		for i, p := range r.panels {
			placed = append(placed, p.object(len(placed)+1, object{
				"x": i % 3 * width, "y": y + i/3*height, "w": width, "h": height,
			}))
		}
		y += (len(r.panels) + 2) / 3 * height
	}
	return placed
}

// object returns a panel as Grafana has it.
func (p panel) object(id int, place object) object {
	stacking := "none"
	if p.stacked {
		stacking = "normal"
	}
	targets := []object{}
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source(), "expr": q.expr, "legendFormat": q.legend,
			"range": true, "editorMode": "code",
		})
	}
	return object{
		"id": id, "type": "timeseries", "title": p.title, "description": p.help,
		"gridPos": place, "datasource": source(), "targets": targets,
		"fieldConfig": object{
			"defaults": object{
				"unit": p.unit, "min": 0,
				"custom": object{"fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "stacking": object{"mode": stacking, "group": "A"}},
			},
			"overrides": limitOverrides(),
		},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom"},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}

// limitSuffix ends the names of series that are limits.
const limitSuffix = " limit"

// limitOverrides draw limits as dashed red lines, that are not stacked or filled.
func limitOverrides() []object {
	return []object{{
		"matcher": object{"id": "byRegexp", "options": "/" + strings.TrimSpace(limitSuffix) + "$/"},
		"properties": []object{
			{"id": "color", "value": object{"mode": "fixed", "fixedColor": "red"}},
			{"id": "custom.lineStyle", "value": object{"fill": "dash", "dash": []int{8, 6}}},
			{"id": "custom.fillOpacity", "value": 0},
			{"id": "custom.stacking", "value": object{"mode": "none", "group": "limit"}},
		},
	}}
}
