package upstream

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"
)

// counters are tollgate_upstream_requests_total{upstream,status}: one count per Do. status is the
// answer's, or the word for the error that came instead.
type counters struct {
	name   string
	status [1000]atomic.Pointer[metrics.Counter]
	failed [len(failures) + 1]atomic.Pointer[metrics.Counter]
}

var failures = [...]struct {
	err    error
	status string
}{
	{ErrUnreachable, "unreachable"},
	{ErrBusy, "busy"},
	{ErrClosed, "closed"},
	{ErrRequest, "bad_request"},
	{ErrRequestBody, "bad_body"},
	{ErrNoAnswer, "no_answer"},
	{ErrProtocol, "malformed"},
	{ErrTimeoutFirstByte, "timeout"},
	{ErrTimeoutIdle, "timeout"},
	{ErrTimeoutTotal, "timeout"},
	{ErrCanceled, "canceled"},
}

func (m *counters) count(c *Call, err error) {
	if err == nil {
		status := c.Header.StatusCode() // 200…999, see readHead
		m.inc(&m.status[status], func() string { return strconv.Itoa(status) })
		return
	}
	for i := range failures {
		if errors.Is(err, failures[i].err) {
			m.inc(&m.failed[i], func() string { return failures[i].status })
			return
		}
	}
	m.inc(&m.failed[len(failures)], func() string { return "other" })
}

func (m *counters) inc(at *atomic.Pointer[metrics.Counter], status func() string) {
	counter := at.Load()
	if counter == nil {
		counter = metrics.GetOrCreateCounter(fmt.Sprintf(
			`tollgate_upstream_requests_total{upstream=%q,status=%q}`, m.name, status()))
		at.Store(counter)
	}
	counter.Inc()
}
