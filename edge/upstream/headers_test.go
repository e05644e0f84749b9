package upstream

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

func received(t *testing.T, raw string) *fasthttp.RequestHeader {
	t.Helper()
	var h fasthttp.RequestHeader
	require.NoError(t, h.Read(bufio.NewReader(strings.NewReader(raw))))
	return &h
}

func TestRequestHeadersThatPassAndThatDoNot(t *testing.T) {
	var got *http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer srv.Close()
	u := open(t, Options{
		URL:     srv.URL + "/base/",
		Auth:    Auth{Header: "Authorization", Prefix: "Bearer ", Secret: "theirs"},
		Headers: map[string]string{"Anthropic-Version": "2023-06-01"},
	})
	defer u.Close()

	c := u.NewCall([]byte("POST"), []byte("/a/../b//c%2e?x=1&y=a+b"))
	c.CopyRequestHeader(received(t, "POST /x HTTP/1.1\r\nHost: node\r\nContent-Length: 3\r\n"+
		"Authorization: Bearer tg-secret\r\nX-Api-Key: tg-secret\r\nApi-Key: tg-secret\r\napi-KEY: tg-secret\r\n"+
		"Connection: close, X-Private,x-other\r\nX-Private: 1\r\nX-Other: 1\r\nKeep-Alive: timeout=5\r\n"+
		"TE: trailers\r\nTrailer: X-T\r\nUpgrade: h2c\r\nProxy-Authorization: p\r\nProxy-Connection: keep-alive\r\n"+
		"Expect: 100-continue\r\nAccept-Encoding: gzip\r\nanthropic-version: mine\r\n"+
		"Cookie: b=2; a=1\r\nX-Twice: 1\r\nX-Twice: 2\r\nUser-Agent: curl/8\r\nContent-Type: application/json\r\n"+
		"Idempotency-Key: k\r\n\r\n"))
	c.SetBody([]byte("abc"))
	require.NoError(t, u.Do(c))
	c.Close()

	assert.Equal(t, "/base/a/../b//c%2e?x=1&y=a+b", got.RequestURI, "the target is not rewritten")
	assert.Equal(t, strings.TrimPrefix(srv.URL, "http://"), got.Host)
	assert.EqualValues(t, 3, got.ContentLength)
	assert.Equal(t, http.Header{
		"Accept-Encoding":   {"identity"},
		"Authorization":     {"Bearer theirs"},
		"Anthropic-Version": {"2023-06-01"},
		"Content-Length":    {"3"},
		"Content-Type":      {"application/json"},
		"Cookie":            {"b=2; a=1"},
		"Idempotency-Key":   {"k"},
		"User-Agent":        {"curl/8"},
		"X-Twice":           {"1", "2"},
	}, got.Header)
}

func TestTenantCredentialsNeverPassWithoutAnUpstreamCredential(t *testing.T) {
	var got http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer srv.Close()
	u := open(t, Options{URL: srv.URL})
	defer u.Close()
	c := u.NewCall([]byte("GET"), []byte("/"))
	for _, name := range []string{"authorization", "AUTHORIZATION", "X-API-Key", "api-key"} {
		c.AddHeader([]byte(name), []byte("tg-secret"))
	}
	require.NoError(t, u.Do(c))
	c.Close()
	assert.NotContains(t, fmt.Sprint(got), "tg-secret")
}

func TestAnswerHeadersThatPassAndThatDoNot(t *testing.T) {
	cookie := "big=" + strings.Repeat("x", 12<<10) + "; Path=/"
	url := rawServer(t, answers("HTTP/1.1 203 Whatever\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\n"+
		"Proxy-Authenticate: x\r\nTrailer: X-T\r\nUpgrade: h2\r\nSet-Cookie: "+cookie+"\r\nset-cookie: a=1; HttpOnly\r\n"+
		"X-Many: 1\r\nX-Many: 2\r\nX-Ratelimit-Limit: 5\r\nServer: theirs\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", false))
	u := open(t, Options{URL: url})
	defer u.Close()
	c := post(u, "{}")
	require.NoError(t, u.Do(c))
	assert.EqualValues(t, 2, c.BodySize())
	var dst fasthttp.ResponseHeader
	c.CopyHeader(&dst, func(name []byte) bool { return string(name) == "X-Ratelimit-Limit" })
	body, err := all(c)
	require.NoError(t, err)
	assert.Equal(t, "ok", body)
	c.Close()

	assert.Equal(t, 203, dst.StatusCode())
	var cookies, many []string
	others := map[string]string{}
	for name, value := range dst.All() {
		switch string(name) {
		case "Set-Cookie":
			cookies = append(cookies, string(value))
		case "X-Many":
			many = append(many, string(value))
		default:
			others[string(name)] = string(value)
		}
	}
	assert.Equal(t, []string{cookie, "a=1; HttpOnly"}, cookies)
	assert.Equal(t, []string{"1", "2"}, many)
	assert.Equal(t, map[string]string{"Server": "theirs", "Content-Encoding": "gzip"}, others)
}

func TestWhatCannotStandInARequestIsRefusedUnsent(t *testing.T) {
	url := rawServer(t, func(net.Conn, *bufio.Reader) { t.Error("connected") })
	u := open(t, Options{URL: url})
	for name, fill := range map[string]func() *Call{
		"space in the target":    func() *Call { return u.NewCall([]byte("GET"), []byte("/a b")) },
		"line end in the target": func() *Call { return u.NewCall([]byte("GET"), []byte("/a\r\nX: y")) },
		"absolute target":        func() *Call { return u.NewCall([]byte("GET"), []byte("http://other/")) },
		"no target":              func() *Call { return u.NewCall([]byte("GET"), nil) },
		"method":                 func() *Call { return u.NewCall([]byte("GE T"), []byte("/")) },
		"header value": func() *Call {
			c := u.NewCall([]byte("GET"), []byte("/"))
			c.AddHeader([]byte("X-A"), []byte("b\r\nX-C: d"))
			return c
		},
		"header name": func() *Call {
			c := u.NewCall([]byte("GET"), []byte("/"))
			c.AddHeader([]byte("X A"), []byte("b"))
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := fill()
			defer c.Close()
			requireIs(t, u.Do(c), ErrRequest)
			assert.False(t, c.Sent())
		})
	}
}

func TestOptionsThatDescribeNoUpstream(t *testing.T) {
	for _, o := range []Options{
		{URL: ""},
		{URL: "ftp://host"},
		{URL: "https://user:pa55@host"},
		{URL: "https://host?x=1"},
		{URL: "https://host#f"},
		{URL: "http://[::1"},
		{URL: "http://host", Auth: Auth{Header: "Bad Name", Secret: "x"}},
		{URL: "http://host", Auth: Auth{Header: "X-A", Secret: "x\ny"}},
		{URL: "http://host", Auth: Auth{Header: "X-A", Secret: "x"}, Headers: map[string]string{"x-a": "y"}},
		{URL: "http://host", Headers: map[string]string{"Transfer-Encoding": "chunked"}},
		{URL: "http://host", Headers: map[string]string{"Content-Length": "3"}},
	} {
		_, err := New(o)
		requireIs(t, err, ErrOptions)
		assert.NotContains(t, err.Error(), "pa55")
	}
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", Options{Auth: Auth{Header: "H", Secret: "s3cret"}},
		Options{Auth: Auth{Secret: "s3cret"}}, Options{Auth: Auth{Secret: "s3cret"}}), "s3cret")
}
