package journal

import (
	"log/slog"
	"time"
)

// spareRetry is how long after a failure to make a segment the next try is.
const spareRetry = time.Second

func (j *Journal) spareLoop() {
	ticker := time.NewTicker(spareRetry)
	defer ticker.Stop()
	for {
		select {
		case <-j.demandSpare:
		case <-ticker.C:
		case <-j.stop:
			return
		}
		j.prepare()
	}
}

// prepare makes segments until enough are ready, or the bound or the disk
// forbids another. It says so once, and once when it is over.
func (j *Journal) prepare() {
	for j.ready.Load() < sparesWanted {
		if j.bytes()+j.opt.SegmentBytes > j.opt.MaxBytes {
			j.short("journal.max_bytes is reached", nil)
			break
		}
		s, err := j.newSegment(j.last.serial + 1)
		if err != nil {
			j.short("the disk refuses", err)
			break
		}
		j.last.next.Store(s)
		j.last = s
		j.ready.Add(1)
	}
	j.judgeFull()
}

// judgeFull brings stateFull in line with what is ready. Appenders may set it at the same time.
func (j *Journal) judgeFull() {
	if j.ready.Load() >= sparesAdmit && j.state.Load()&stateFull != 0 {
		j.state.And(^uint32(stateFull))
		if j.shortage {
			slog.Info("the journal has room again: calls are admitted", "directory", j.dir)
		}
		j.shortage = false
	}
	if j.ready.Load() < sparesAdmit {
		j.state.Or(stateFull)
	}
}

// short logs the begin of a shortage that keeps calls out.
func (j *Journal) short(reason string, err error) {
	if j.shortage || j.ready.Load() >= sparesAdmit {
		return
	}
	j.shortage = true
	slog.Error("the journal cannot grow: calls are refused until a reader has caught up", "directory", j.dir,
		"reason", reason, "error", err, "bytes", j.bytes(), "max_bytes", j.opt.MaxBytes)
}

// bytes is what all segments take on disk.
func (j *Journal) bytes() (sum int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.mu.files {
		sum += f.bytes
	}
	return sum
}
