// Package plot draws small multiples as SVG: bars and columns with their figures
// beside them, and histograms. The same data make the same bytes, text is
// escaped, and each picture has a description for those who cannot see it.
package plot

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"

	"example.com/leakybucket/bench/internal/report"
)

// Colours that carry a meaning are from the set that Okabe and Ito chose for
// people who see colours differently. The pictures bring their own light ground,
// so that they read the same on light and dark pages.
const (
	groundColour = "#fcfcfa"
	inkColour    = "#1b1f24" // text
	softColour   = "#57606a" // text of less weight
	lineColour   = "#d5dae0" // axes and tracks
	trackColour  = "#eceff2" // what a column would fill
	oursColour   = "#0072b2"
	rivalColour  = "#7d8590"
	badColour    = "#d55e00" // what should not be: bunches, and a rate not reached
	badInk       = "#ad4a00" // the same, dark enough for text
)

const (
	pictureWidth  = 840.0
	pictureMargin = 20.0
	captionLetter = 6.3 // the assumed width of a letter of 11.5 px
)

// An svg is a picture in the making. Whatever text it is given is escaped, and
// its numbers have at most one decimal: the same data make the same bytes.
type svg struct {
	body   strings.Builder
	height float64
}

// A textStyle is how text is set. Zero fields are 12 px in ink, from the left.
type textStyle struct {
	size   float64
	colour string
	anchor string // start, middle or end
	bold   bool
}

// coordinate writes a coordinate. Pictures leave out what is not finite before
// they compute with it; a stray one must still not spoil the file.
func coordinate(v float64) string {
	if !isFinite(v) {
		return "0"
	}
	return strconv.FormatFloat(math.Round(v*10)/10+0, 'f', -1, 64) // + 0 makes -0 a 0.
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func escapeXML(text string) string {
	var b strings.Builder
	// A strings.Builder returns no error.
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

func (s *svg) text(x, y float64, text string, how textStyle) {
	fmt.Fprintf(&s.body, `<text x="%s" y="%s"`, coordinate(x), coordinate(y))
	if how.size != 0 {
		fmt.Fprintf(&s.body, ` font-size="%s"`, coordinate(how.size))
	}
	if how.colour != "" {
		fmt.Fprintf(&s.body, ` fill="%s"`, how.colour)
	}
	if how.anchor != "" {
		fmt.Fprintf(&s.body, ` text-anchor="%s"`, how.anchor)
	}
	if how.bold {
		s.body.WriteString(` font-weight="600"`)
	}
	fmt.Fprintf(&s.body, ">%s</text>\n", escapeXML(text))
}

func (s *svg) rect(x, y, width, height float64, colour string) {
	fmt.Fprintf(&s.body, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`+"\n",
		coordinate(x), coordinate(y), coordinate(width), coordinate(height), colour)
}

// line draws a straight one. Its dash may be empty.
func (s *svg) line(x1, y1, x2, y2 float64, colour, dash string) {
	if dash != "" {
		dash = fmt.Sprintf(` stroke-dasharray="%s"`, dash)
	}
	fmt.Fprintf(&s.body, `<path d="M%s %sL%s %s" stroke="%s"%s/>`+"\n",
		coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), colour, dash)
}

// fill fills the shape of a path.
func (s *svg) fill(path, colour string) {
	if path != "" {
		fmt.Fprintf(&s.body, `<path d="%s" fill="%s"/>`+"\n", path, colour)
	}
}

// heading writes a title, and below it what the picture shows, in lines of its
// width. It returns where the rest may begin.
func (s *svg) heading(title, what string) (y float64) {
	s.text(pictureMargin, 32, title, textStyle{size: 17, bold: true})
	y = 53
	for _, line := range report.Wrap(what, (pictureWidth-2*pictureMargin)/6.3) {
		s.text(pictureMargin, y, line, textStyle{size: 12.5, colour: softColour})
		y += 17
	}
	return y
}

// caption writes the last lines, and makes the picture as high as it needs.
func (s *svg) caption(y float64, text string) {
	for _, line := range report.Wrap(text, (pictureWidth-2*pictureMargin)/captionLetter) {
		s.text(pictureMargin, y, line, textStyle{size: 11.5, colour: softColour})
		y += 16
	}
	s.height = y
}

// picture returns the finished picture. The description is for those who cannot
// see it.
func (s *svg) picture(name, description string) report.Picture {
	var b strings.Builder
	w, h := coordinate(pictureWidth), coordinate(s.height)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" aria-label="%s" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12" fill="%s">`+"\n",
		w, h, w, h, escapeXML(description), inkColour)
	fmt.Fprintf(&b, `<rect x="0.5" y="0.5" width="%s" height="%s" rx="8" fill="%s" stroke="%s"/>`+"\n",
		coordinate(pictureWidth-1), coordinate(s.height-1), groundColour, lineColour)
	b.WriteString(s.body.String())
	b.WriteString("</svg>\n")
	return report.Picture{Name: name, SVG: []byte(b.String())}
}

// nameColumnWidth returns the width of a column that has room for all names.
func nameColumnWidth(names []string) float64 {
	longest := 0
	for _, name := range names {
		longest = max(longest, len([]rune(name)))
	}
	return min(max(110, float64(longest)*7.6+16), 260)
}
