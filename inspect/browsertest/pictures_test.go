package browsertest_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// maxPicture bounds a picture of the documents, which everybody downloads with the tree.
const maxPicture = 200_000

// TestPicturesOfThePage makes the pictures of the documents, by what they show: bursts at
// a shaper for a minute, and a group with many keys. It takes that minute, so it is only
// made on demand:
//
//	SHAPER_SCREENSHOTS=../../docs go test -run=TestPicturesOfThePage ./inspect/browsertest
func TestPicturesOfThePage(t *testing.T) {
	dir := os.Getenv("SHAPER_SCREENSHOTS")
	if dir == "" {
		t.Skip("SHAPER_SCREENSHOTS names no folder")
	}
	s := newScene(t)
	u := s.shaper("upstream", "50/s depth 100")
	g := s.group("clients", "2/s burst 4 depth 10")
	every := func(d time.Duration, f func()) {
		s.requests.Go(func() {
			for beat := time.NewTicker(d); s.ctx.Err() == nil; {
				f()
				select {
				case <-beat.C:
				case <-s.ctx.Done():
				}
			}
		})
	}
	every(50*time.Millisecond, func() { s.burst(u, 1) })
	every(9*time.Second, func() { // 150 within 600 ms: a third is refused
		for range 30 {
			s.burst(u, 6)
			time.Sleep(20 * time.Millisecond)
		}
	})
	kinds := []string{"message_send", "login", "search", "upload"}
	every(10*time.Millisecond, func() { // few keys get most
		user := int(rand.ExpFloat64() * 40)
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
	time.Sleep(62 * time.Second)
	for scheme, p := range tabs {
		picture, err := run(p, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.Less(t, len(picture), maxPicture)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "inspect-"+scheme+".png"), picture, 0o644))
	}
}
