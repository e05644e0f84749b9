package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Bounds of a call.
const (
	callTimeout    = 15 * time.Second
	dialTimeout    = 3 * time.Second
	answerBytesMax = 64 << 20 // of one answer; more is an error
)

// client calls one node's admin API.
type client struct {
	base  string
	token string
	who   string
	http  *http.Client
}

func newClient(env func(string) string) *client {
	c := &client{base: env("TOLLGATE_ADMIN"), token: env("TOLLGATE_ADMIN_TOKEN"), who: env("TOLLGATE_ADMIN_WHO")}
	if c.base == "" {
		c.base = "http://127.0.0.1:9090"
	}
	if !strings.Contains(c.base, "://") {
		c.base = "http://" + c.base
	}
	c.base = strings.TrimRight(c.base, "/")
	if c.who == "" {
		c.who = "tollctl"
	}
	c.http = &http.Client{
		Timeout: callTimeout,
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		},
		// A redirect would carry the token somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// check refuses what the environment cannot mean.
func (c *client) check() error {
	u, err := url.Parse(c.base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return wrongUse("TOLLGATE_ADMIN must be the address of a node's admin API, as in http://127.0.0.1:9090")
	}
	return nil
}

// path builds a path of the API from segments.
func path(segments ...string) string {
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return "/admin/v1/" + strings.Join(segments, "/")
}

// get reads, and decodes the answer into target; the raw answer is given too.
func (c *client) get(ctx context.Context, path string, query url.Values, target any) (json.RawMessage, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.call(ctx, http.MethodGet, path, nil, "", target)
}

// change sends a change under an op_id, made here unless the user gave one.
func (c *client) change(ctx context.Context, method, path, opID string, body map[string]any, target any) (json.RawMessage, error) {
	if opID == "" {
		opID = uuid.NewString()
	}
	if body == nil {
		body = map[string]any{}
	}
	body["op_id"] = opID
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.call(ctx, method, path, text, opID, target)
}

func (c *client) call(ctx context.Context, method, path string, body []byte, opID string, target any) (json.RawMessage, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, wrongUse("TOLLGATE_ADMIN must be the address of a node's admin API, as in http://127.0.0.1:9090")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	r.Header.Set("X-Tollgate-Who", c.who)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(err, opID)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, answerBytesMax+1))
	if err != nil || len(text) > answerBytesMax {
		return nil, c.unreachable(errors.New("its answer broke off"), opID)
	}
	if w.StatusCode >= 300 {
		return nil, c.refused(w.StatusCode, text, opID)
	}
	if err := json.Unmarshal(text, target); err != nil {
		return nil, c.stranger(w.StatusCode)
	}
	return text, nil
}

// unreachable words a call without an answer. Of a change whose request may have
// arrived nobody knows whether it was done.
func (c *client) unreachable(err error, opID string) error {
	var timeout net.Error
	var op *net.OpError
	var reason string
	switch {
	case errors.Is(err, context.Canceled):
		reason = "interrupted"
	case errors.As(err, &op) && op.Op == "dial":
		return &exitError{exitUnreachable, fmt.Sprintf("no node answers at %s (%v). Is it running? TOLLGATE_ADMIN says where its admin API is.", c.base, op.Err)}
	case errors.As(err, &timeout) && timeout.Timeout():
		reason = "it took too long"
	case errors.Is(err, io.EOF):
		reason = "it closed the connection"
	default:
		reason = err.Error()
		if u := (*url.Error)(nil); errors.As(err, &u) {
			reason = u.Err.Error()
		}
	}
	text := fmt.Sprintf("the node at %s did not answer: %s.", c.base, reason)
	if opID != "" {
		text += fmt.Sprintf(" Whether the change was made is not known; repeat the command with --op-id %s, which makes it once.", opID)
	}
	return &exitError{exitUnreachable, text}
}

// refused words what the node said.
func (c *client) refused(status int, text []byte, opID string) error {
	var body struct {
		Error struct{ Code, Message, Param string }
	}
	if json.Unmarshal(text, &body) != nil || body.Error.Message == "" {
		return c.stranger(status)
	}
	e := &exitError{exitRefused, body.Error.Message}
	switch {
	case status == http.StatusUnauthorized && c.token == "":
		e.text = "the node wants its admin token; set TOLLGATE_ADMIN_TOKEN."
	case status == http.StatusUnauthorized:
		e.text = "the node does not accept this admin token; check TOLLGATE_ADMIN_TOKEN."
	case status == http.StatusBadRequest:
		e.code = exitUse
	case status >= 500:
		e.code = exitUnreachable
		if opID != "" {
			e.text += fmt.Sprintf(" (--op-id %s)", opID)
		}
	}
	return e
}

func (c *client) stranger(status int) error {
	return &exitError{exitUnreachable, fmt.Sprintf("what answers at %s is no tollgate admin API (status %d); check TOLLGATE_ADMIN.", c.base, status)}
}
