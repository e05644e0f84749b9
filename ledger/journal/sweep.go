package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// sweepEvery is how often gauges are brought up to date, and a deletion that failed is tried again.
const sweepEvery = time.Second

var (
	bytesGauge  = metrics.NewGauge(`tollgate_journal_bytes`, nil)
	secondsLeft = metrics.NewGauge(`tollgate_journal_seconds_left`, nil)
	lagGauges   = map[string]*metrics.Gauge{
		"settlement": metrics.NewGauge(`tollgate_journal_lag_records{reader="settlement"}`, nil),
		"events":     metrics.NewGauge(`tollgate_journal_lag_records{reader="events"}`, nil),
	}
	syncSeconds = metrics.GetOrCreatePrometheusHistogramExt(`tollgate_journal_sync_seconds`,
		[]float64{100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1, 5})
)

func (j *Journal) sweepLoop() {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := false
	for {
		select {
		case <-j.demandSweep:
		case <-ticker.C:
			j.gauge(time.Now())
		case <-j.stop:
			return
		}
		err := j.sweep(ctx)
		if err != nil && !failed && !errors.Is(err, ErrClosed) {
			slog.Warn("segments of the journal that both readers have passed cannot be deleted yet", "directory", j.dir, "error", err)
		}
		failed = err != nil
	}
}

// sweep deletes segments that both readers have passed, by both slots of their
// cursors, after what must outlive them was carried into a later segment and synced.
func (j *Journal) sweep(ctx context.Context) error {
	passed := j.readers[0].passed()
	for _, r := range j.readers {
		passed = min(passed, r.passed())
	}
	j.mu.Lock()
	carried, idle, oldest := j.mu.carried, j.mu.idle, j.mu.files[0].serial
	j.mu.Unlock()
	if passed <= oldest { // passed is the serial of the segment that is still read
		return nil
	}
	if carried < min(passed-1, idle) {
		if err := j.carry(ctx); err != nil {
			return err
		}
		j.mu.Lock()
		j.mu.carried, carried = idle, idle
		j.mu.Unlock()
	}
	return j.delete(min(passed-1, carried))
}

// carry has the records repeated that must outlive all segments that are idle
// now. No append into one of those is under way any more, so whatever ended in
// one of them was marked as ended before.
func (j *Journal) carry(ctx context.Context) error {
	if j.opt.Carry == nil {
		return nil
	}
	var last Position
	err := j.opt.Carry(func(r Record) (err error) {
		last, err = j.append(r, carries)
		return err
	})
	if err != nil || last == 0 {
		return err
	}
	return j.WaitSynced(ctx, last)
}

// delete removes the segments up to a serial, oldest first.
func (j *Journal) delete(through uint64) error {
	j.mu.Lock()
	files := j.mu.files
	j.mu.Unlock()
	n := 0
	var err error
	for n < len(files) && files[n].serial <= through {
		if err = os.Remove(filepath.Join(j.dir, segmentName(files[n].serial))); err != nil && !errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("journal: %w", err)
			break
		}
		err = nil
		n++
	}
	if n == 0 {
		return err
	}
	j.mu.Lock()
	j.mu.files = j.mu.files[n:]
	j.mu.Unlock()
	wake(j.demandSpare)
	return errors.Join(err, j.disk.syncDir(j.dir))
}

// gauge brings the metrics up to date.
func (j *Journal) gauge(now time.Time) {
	bytes := j.bytes()
	bytesGauge.Set(float64(bytes))
	synced := Position(j.synced.Load())
	var backlog int64
	for _, r := range j.readers {
		lagGauges[r.name].Set(float64(r.Lag()))
		backlog = max(backlog, j.between(Position(r.committed.Load()), synced))
	}
	left := j.opt.SegmentBytes*int64(j.ready.Load()) + max(0, min(j.opt.MaxBytes-bytes, freeBytes(j.dir)))
	if s := j.current.Load(); s != nil {
		left += int64(s.bytes - s.tail.Load())
	}
	secondsLeft.Set(j.fill.next(now, backlog, left))
}

// between is about how many bytes of segments lie between two positions.
func (j *Journal) between(from, to Position) int64 {
	return int64(to.Segment()-from.Segment())*j.opt.SegmentBytes + int64(to.Offset()) - int64(from.Offset())
}
