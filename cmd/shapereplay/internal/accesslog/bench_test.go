package accesslog_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// The lines are as long as in the log of a shop with browsers for clients: 10,000 clients, 2,000
// paths, and 50 requests a second.
func BenchmarkReader(b *testing.B) {
	const lines = 20_000
	for _, format := range []struct {
		name string
		line func(i int, at time.Time) string
		o    accesslog.Options
	}{
		{"combined", combinedLine, accesslog.Options{}},
		{"combined, with a header field", combinedLine, accesslog.Options{Header: []string{"User-Agent"}}},
		{"combined, spread", combinedLine, accesslog.Options{Spread: true}},
		{"combined, behind syslog", func(i int, at time.Time) string { return "Nov 22 12:00:00 web1 nginx[815]: " + combinedLine(i, at) }, accesslog.Options{}},
		{"json of nginx", nginxLine, accesslog.Options{}},
		{"caddy", caddyLine, accesslog.Options{}},
		{"traefik", traefikLine, accesslog.Options{}},
		{"haproxy", haproxyLine, accesslog.Options{}},
		{"envoy", envoyLine, accesslog.Options{}},
		{"alb", albLine, accesslog.Options{}},
		{"cloudfront", cloudFrontLine, accesslog.Options{}},
		{"iis", iisLine, accesslog.Options{}},
		{"log_format of nginx", combinedLine, accesslog.Options{Format: `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`}},
	} {
		b.Run(format.name, func(b *testing.B) {
			var text strings.Builder
			for i := range lines {
				text.WriteString(format.line(i, noon.Add(time.Duration(i)*20*time.Millisecond)))
			}
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			read := 0
			for b.Loop() {
				o := format.o
				o.Stdin = strings.NewReader(text.String())
				r, err := accesslog.Open(o, "-")
				require.NoError(b, err)
				n := 0
				for ; err == nil; n++ {
					_, err = r.Next()
				}
				if !errors.Is(err, io.EOF) || n != lines+1 {
					b.Fatal(n, err)
				}
				read += lines
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(read), "ns/line")
			b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

const browser = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

func visitor(i int) string { i = i * 7919 % 10_000; return fmt.Sprintf("198.51.%d.%d", i/250, i%250) }
func product(i int) string { return fmt.Sprintf("/products/%d?ref=home", i*31%2000) }

func combinedLine(i int, at time.Time) string {
	return fmt.Sprintf("%s - - [%s] \"GET %s HTTP/1.1\" 200 %d \"https://shop.example/\" \"%s\"\n",
		visitor(i), at.Format("02/Jan/2006:15:04:05 -0700"), product(i), i, browser)
}

func nginxLine(i int, at time.Time) string {
	return fmt.Sprintf(`{"time_iso8601":"%s","remote_addr":"%s","request_method":"GET","request_uri":"%s","host":"shop.example",`+
		`"status":200,"body_bytes_sent":%d,"request_time":0.012,"http_referer":"https://shop.example/","http_user_agent":"%s"}`+"\n",
		at.Format(time.RFC3339), visitor(i), product(i), i, browser)
}

func caddyLine(i int, at time.Time) string {
	return fmt.Sprintf(`{"level":"info","ts":%d.%06d,"logger":"http.log.access.log0","msg":"handled request","request":`+
		`{"remote_ip":"%[3]s","remote_port":"41342","client_ip":"%[3]s","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"%[4]s",`+
		`"headers":{"User-Agent":["%[5]s"],"Accept":["text/html,application/xhtml+xml,*/*;q=0.8"],"Accept-Encoding":["gzip, deflate, br, zstd"],`+
		`"Accept-Language":["en-US,en;q=0.5"],"Cookie":["REDACTED"],"Sec-Fetch-Mode":["navigate"]},`+
		`"tls":{"resumed":false,"version":772,"cipher_suite":4867,"proto":"h2","server_name":"shop.example"}},`+
		`"bytes_read":0,"user_id":"","duration":0.012929675,"size":10900,"status":200,`+
		`"resp_headers":{"Server":["Caddy"],"Content-Encoding":["gzip"],"Content-Type":["text/html; charset=utf-8"],"Vary":["Accept-Encoding"]}}`+"\n",
		at.Unix(), at.Nanosecond()/1000, visitor(i), product(i), browser)
}

func traefikLine(i int, at time.Time) string {
	return fmt.Sprintf("%s - - [%s] \"GET %s HTTP/2.0\" 200 %d \"https://shop.example/\" \"%s\" %d \"shop@docker\" \"http://172.18.0.3:80\" 12ms\n",
		visitor(i), at.Format("02/Jan/2006:15:04:05 -0700"), product(i), i, browser, i)
}

func haproxyLine(i int, at time.Time) string {
	return fmt.Sprintf("%s:%d [%s] http-in static/srv1 10/0/30/69/109 200 %d - - ---- 1/1/1/1/0 0/0 {shop.example|%s} {} \"GET %s HTTP/1.1\"\n",
		visitor(i), 1024+i, at.Format("02/Jan/2006:15:04:05.000"), i, browser, product(i))
}

func envoyLine(i int, at time.Time) string {
	return fmt.Sprintf("[%s] \"GET %s HTTP/2\" 200 - 0 %d 226 100 \"%s\" \"%s\" \"cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2\" \"shop.example\" \"10.0.2.1:80\"\n",
		at.Format("2006-01-02T15:04:05.000Z"), product(i), i, visitor(i), browser)
}

func albLine(i int, at time.Time) string {
	return fmt.Sprintf("https %s app/shop/50dc6c495c0c9188 %s:%d 10.0.0.1:80 0.001 0.048 0.000 200 200 34 %d \"GET https://shop.example:443%s HTTP/2.0\" \"%s\" "+
		"ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/shop/73e2d6bc24d8a067 "+
		"\"Root=1-58337281-1d84f3d73c47ec4e58577259\" \"shop.example\" \"arn:aws:acm:us-east-2:123456789012:certificate/12345678\" 1 %s \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\"\n",
		at.Format("2006-01-02T15:04:05.000000Z"), visitor(i), 1024+i, i, product(i), browser, at.Add(-49*time.Millisecond).Format("2006-01-02T15:04:05.000000Z"))
}

func cloudFrontLine(i int, at time.Time) string {
	stem, query, _ := strings.Cut(product(i), "?")
	return strings.Join([]string{
		at.Format("2006-01-02\t15:04:05"), "LAX1", "392", visitor(i), "GET", "d111111abcdef8.cloudfront.net", stem, "200", "https://shop.example/", "Mozilla/5.0%20(X11)", query, "-",
		"Hit", "SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==", "shop.example", "https", "23", "0.001", "-",
	}, "\t") + "\n"
}

func iisLine(i int, at time.Time) string {
	stem, query, _ := strings.Cut(product(i), "?")
	line := fmt.Sprintf("%s 172.30.255.255 GET %s %s 443 - %s Mozilla/5.0+(X11) https://shop.example/ 200 0 0 15\n", at.Format(time.DateTime), stem, query, visitor(i))
	if i == 0 {
		line = "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\n" + line
	}
	return line
}
