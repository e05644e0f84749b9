package journal

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func benchOptions(b *testing.B) Options {
	return Options{Dir: b.TempDir(), Sync: 10 * time.Millisecond, MaxBytes: 16 << 30, SegmentBytes: 64 << 20}
}

// BenchmarkAppend measures appends from all cores while the log is synced every
// 10 ms. Appends that found no segment ready are counted and made again.
func BenchmarkAppend(b *testing.B) {
	j, _ := openTest(b, benchOptions(b))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := committed(1)
		for pb.Next() {
			for {
				_, err := j.Append(r)
				if err == nil {
					break
				}
				if !errors.Is(err, ErrFull) {
					b.Error(err)
					return
				}
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
}

func BenchmarkEncode(b *testing.B) {
	r := committed(1)
	var scratch [scratchBytes]byte
	b.ReportAllocs()
	for b.Loop() {
		n, _ := encode(scratch[:], r)
		b.SetBytes(int64(n))
	}
}

// BenchmarkAppendSync measures appends that each wait for the disk, from 256 goroutines per core.
func BenchmarkAppendSync(b *testing.B) {
	j, _ := openTest(b, benchOptions(b))
	b.ReportAllocs()
	b.SetParallelism(256)
	b.RunParallel(func(pb *testing.PB) {
		r := committed(1)
		for pb.Next() {
			if _, err := j.AppendSync(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
}

// BenchmarkRecovery measures Open on a million records after a kill.
func BenchmarkRecovery(b *testing.B) {
	const records = 1_000_000
	opt := benchOptions(b)
	j, _ := openTest(b, opt)
	appendMany(b, j, 0, records)
	from := copyNewestFirst(b, opt.Dir)
	require.NoError(b, j.Close())
	for b.Loop() {
		b.StopTimer()
		opt.Dir = b.TempDir()
		require.NoError(b, os.CopyFS(opt.Dir, os.DirFS(from)))
		n := 0
		opt.Visit = func(Entry) error { n++; return nil }
		b.StartTimer()
		j, found, err := Open(opt)
		b.StopTimer()
		require.NoError(b, err)
		require.Equal(b, records, n)
		require.True(b, found.Killed)
		require.NoError(b, j.Close())
		require.NoError(b, os.RemoveAll(opt.Dir))
		b.StartTimer()
	}
	b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkRead measures a reader on a log that is there, without commits.
func BenchmarkRead(b *testing.B) {
	j, _ := openTest(b, benchOptions(b))
	const records = 200_000
	syncAll(b, j, appendMany(b, j, 0, records))
	r := j.Reader("events")
	first := r.reading.next
	b.ReportAllocs()
	read := 0
	for b.Loop() {
		r.reading.Lock()
		r.reading.next = first
		require.NoError(b, r.leaveFile())
		r.reading.Unlock()
		for n := 0; n < records; {
			list, err := r.Next(b.Context(), 5000)
			require.NoError(b, err)
			n += len(list)
		}
		read += records
	}
	b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "records/s")
}
