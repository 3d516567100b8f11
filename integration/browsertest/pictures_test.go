package browsertest_test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// maxPicture bounds a picture of the documents, which everybody downloads with the tree.
const maxPicture = 200_000

// TestPicturesOfThePage makes the pictures of the documents by playing their scenes: bursts at a shaper for a
// minute, and a group with many keys. It takes that minute, so it is only made on demand:
//
//	GOWORK=$PWD/all.work SHAPER_SCREENSHOTS=../../docs go test -run=TestPicturesOfThePage ./integration/browsertest
func TestPicturesOfThePage(t *testing.T) {
	dir := os.Getenv("SHAPER_SCREENSHOTS")
	if dir == "" {
		t.Skip("SHAPER_SCREENSHOTS names no folder")
	}
	s := newScene(t)
	u := s.shaper("upstream", "50/s depth 100")
	g := s.group("clients", "1 per 5s burst 4 depth 10")
	s.every(50*time.Millisecond, func() { s.burst(u, 1) })
	s.every(9*time.Second, func() { // 150 within 600 ms: a third is refused
		for range 30 {
			s.burst(u, 6)
			time.Sleep(20 * time.Millisecond)
		}
	})
	kinds := []string{"message_send", "login", "search", "upload"}
	s.every(10*time.Millisecond, func() { // few keys get most
		user := int(rand.ExpFloat64() * 300)
		s.burst(g.Limiter(fmt.Sprintf("%s:user-%04d", kinds[user%len(kinds)], 1000+user*7)), 1)
	})

	tabs := map[string]*tab{}
	for _, scheme := range []string{"light", "dark"} {
		p := newTab(t, s.address(""))
		p.prefers("prefers-color-scheme", scheme)
		p.do(chromedp.EmulateViewport(1200, 1280))
		p.open(s.address(linkTo("source", "upstream")))
		p.live()
		tabs[scheme] = p
	}
	time.Sleep(time.Minute)
	for scheme, p := range tabs {
		// It is also the first row of the table, which says the same as the tile.
		const first = `document.querySelector("#buckets tbody tr:has([aria-current]):first-child .waiting")?.textContent`
		const calm = `document.querySelector("#reports").childElementCount === 0` // A busy machine may keep the list.
		await(p, "a line that drains", `(tile => `+calm+` && `+first+` === String(tile) ? tile : -1)(`+figure("waiting")+`)`, func(n float64) bool { return n > 40 && n < 90 })
		picture := p.picture()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "inspect-"+scheme+".png"), picture, 0o644))
		require.Less(t, len(picture), maxPicture)
	}
}

// picture returns the top of the page and the beginning of its table. What stands between is hidden.
func (p *tab) picture() []byte {
	height := eval[int64](p, `(list => {
		for (let e = document.querySelector("#now").nextElementSibling; e !== list; e = e.nextElementSibling) e.style.display = "none";
		return Math.floor(list.getBoundingClientRect().top + scrollY) + 460;
	})(document.querySelector("#list"))`)
	p.do(chromedp.EmulateViewport(1200, height))
	shot, err := run(p, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	page, err := png.Decode(bytes.NewReader(shot))
	require.NoError(p.t, err)
	whole := image.NewRGBA(page.Bounds())
	draw.Draw(whole, whole.Rect, page, image.Point{}, draw.Src)
	var encoded bytes.Buffer
	require.NoError(p.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&encoded, inFewColors(whole)))
	return encoded.Bytes()
}

// inFewColors returns the picture in the 256 colors that are most frequent in it, which
// takes a third of the bytes: the others are shades at the edges of letters and lines.
func inFewColors(whole *image.RGBA) *image.Paletted {
	frequency := map[color.RGBA]int{}
	for i := 0; i < len(whole.Pix); i += 4 {
		frequency[color.RGBA{whole.Pix[i], whole.Pix[i+1], whole.Pix[i+2], whole.Pix[i+3]}]++
	}
	colors := slices.SortedFunc(maps.Keys(frequency), func(a, b color.RGBA) int { return frequency[b] - frequency[a] })
	palette := color.Palette{}
	for _, c := range colors[:min(256, len(colors))] {
		palette = append(palette, c)
	}
	few, nearest := image.NewPaletted(whole.Rect, palette), map[color.RGBA]uint8{}
	for i := range few.Pix {
		c := color.RGBA{whole.Pix[4*i], whole.Pix[4*i+1], whole.Pix[4*i+2], whole.Pix[4*i+3]}
		index, known := nearest[c]
		if !known {
			index = uint8(palette.Index(c))
			nearest[c] = index
		}
		few.Pix[i] = index
	}
	return few
}
