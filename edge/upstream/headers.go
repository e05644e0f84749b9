package upstream

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// nameBytesMax bounds a header name. Longer ones are refused (ErrRequest) on the way out and
// dropped on the way back.
const nameBytesMax = 256

// hopByHop are the headers that belong to one connection (RFC 9110, 7.6.1), with the
// obsolete ones that some software still sends. Lower case.
var hopByHop = names("connection", "keep-alive", "proxy-connection", "proxy-authenticate",
	"proxy-authorization", "proxy-authentication-info", "te", "trailer", "transfer-encoding",
	"upgrade", "http2-settings")

// replaced are the request headers that are written anew, or must not pass: framing, the tenant's
// credentials, and Expect, which this hop already answered.
var replaced = names("host", "content-length", "expect", "accept-encoding",
	"authorization", "x-api-key", "api-key")

func names(list ...string) map[string]struct{} {
	m := make(map[string]struct{}, len(list))
	for _, n := range list {
		m[n] = struct{}{}
	}
	return m
}

// has reports whether set holds name in whatever case. It does not allocate.
func has(set map[string]struct{}, name []byte) bool {
	var low [nameBytesMax]byte
	if len(name) > len(low) {
		return false
	}
	_, ok := set[string(appendLower(low[:0], name))]
	return ok
}

func appendLower(dst, s []byte) []byte {
	for _, b := range s {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		dst = append(dst, b)
	}
	return dst
}

// listed reports whether a comma-separated list, such as Connection's, names name.
func listed(list, name []byte) bool {
	for len(list) > 0 {
		var item []byte
		if before, after, ok := bytes.Cut(list, []byte{','}); ok {
			item, list = before, after
		} else {
			item, list = list, nil
		}
		if bytes.EqualFold(bytes.Trim(item, " \t"), name) {
			return true
		}
	}
	return false
}

func listedAny(lists [][]byte, name []byte) bool {
	for _, l := range lists {
		if listed(l, name) {
			return true
		}
	}
	return false
}

// isToken reports whether s can be a method or a header name (RFC 9110, 5.6.2).
func isToken[T string | []byte](s T) bool {
	if len(s) == 0 || len(s) > nameBytesMax {
		return false
	}
	for i := range len(s) {
		b := s[i]
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case b == '!', b == '#', b == '$', b == '%', b == '&', b == '\'', b == '*', b == '+',
			b == '-', b == '.', b == '^', b == '_', b == '`', b == '|', b == '~':
		default:
			return false
		}
	}
	return true
}

// isText reports whether s can be a header value: no control character but the tab.
func isText[T string | []byte](s T) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// isTarget reports whether s can be a request target in origin form.
func isTarget[T string | []byte](s T) bool {
	if len(s) == 0 || s[0] != '/' {
		return false
	}
	for i := range len(s) {
		if b := s[i]; b <= ' ' || b == 0x7f {
			return false
		}
	}
	return true
}

// CopyHeader adds the answer's status and headers to dst, without hop-by-hop headers and without
// Content-Length (the server writes it from the body's size); skip, which may be nil, drops more.
// The name it is given is in canonical form, as in X-Ratelimit-Limit, and lent.
func (c *Call) CopyHeader(dst *fasthttp.ResponseHeader, skip func(name []byte) bool) {
	h := &c.Header
	dst.SetStatusCode(h.StatusCode())
	dst.SetNoDefaultContentType(true)
	// PeekAll lends a slice of h's, which the next call of it overwrites.
	connection := h.PeekAll(fasthttp.HeaderConnection)
	for name, value := range h.All() {
		switch {
		case !isToken(name), has(hopByHop, name), listedAny(connection, name):
		case string(name) == fasthttp.HeaderContentLength:
		case skip != nil && skip(name):
		default:
			dst.AddBytesKV(name, value)
		}
	}
}
