package upstream

import (
	"sync"
	"time"
)

// pool holds the connections of one upstream: at most connsMax open, the idle ones as a stack, so
// that the youngest is used again and the others grow old and go.
type pool struct {
	connsMax int
	mu       struct {
		sync.Mutex
		idle   []*conn // by idleAt, the oldest first
		open   int     // idle, in use, and being dialled
		closed bool
	}
}

// get returns an idle connection that is alive, or nil and the right to dial one: the caller then
// ends with put, discard or giveUp.
func (p *pool) get(now time.Time) (*conn, error) {
	for {
		p.mu.Lock()
		switch n := len(p.mu.idle); {
		case p.mu.closed:
			p.mu.Unlock()
			return nil, ErrClosed
		case n > 0:
			cn := p.mu.idle[n-1]
			p.mu.idle[n-1] = nil
			p.mu.idle = p.mu.idle[:n-1]
			p.mu.Unlock()
			if now.Sub(cn.idleAt) < cn.idleMax && cn.peeker.quiet() {
				cn.reused = true
				return cn, nil
			}
			p.discard(cn)
		case p.mu.open >= p.connsMax:
			p.mu.Unlock()
			return nil, ErrBusy
		default:
			p.mu.open++
			p.mu.Unlock()
			return nil, nil
		}
	}
}

// put takes back a connection whose last answer was read to its end.
func (p *pool) put(cn *conn, now time.Time) {
	cn.dropBuf()
	if cn.idleMax <= 0 || cn.net.SetDeadline(time.Time{}) != nil {
		p.discard(cn)
		return
	}
	cn.idleAt = now
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		p.discard(cn)
		return
	}
	p.mu.idle = append(p.mu.idle, cn)
	p.mu.Unlock()
}

func (p *pool) discard(cn *conn) {
	cn.close()
	p.giveUp()
}

func (p *pool) giveUp() {
	p.mu.Lock()
	p.mu.open--
	p.mu.Unlock()
}

// sweep closes the connections that have been idle for too long at now.
func (p *pool) sweep(now time.Time) {
	p.mu.Lock()
	var old []*conn
	kept := p.mu.idle[:0]
	for _, cn := range p.mu.idle {
		if now.Sub(cn.idleAt) >= cn.idleMax {
			old = append(old, cn)
		} else {
			kept = append(kept, cn)
		}
	}
	clear(p.mu.idle[len(kept):])
	p.mu.idle = kept
	p.mu.Unlock()
	for _, cn := range old {
		p.discard(cn)
	}
}

// close closes what is idle; what is in use is closed when it is given back.
func (p *pool) close() {
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle, p.mu.closed = nil, true
	p.mu.Unlock()
	for _, cn := range idle {
		p.discard(cn)
	}
}

func (p *pool) counts() (open, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.open, len(p.mu.idle)
}
