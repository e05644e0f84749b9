package journal

import (
	"errors"
	"testing"
	"time"
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
