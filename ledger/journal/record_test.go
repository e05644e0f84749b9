package journal

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/lua"
	"tollgate/quota"
)

func encoded(t require.TestingT, r Record) []byte {
	b := make([]byte, recordBytesMax)
	n, err := encode(b, r)
	require.NoError(t, err)
	return b[:n]
}

// fillAny sets every field of a record, whatever its type, so that a field
// which the codec forgets shows.
func fillAny(t *rapid.T, v reflect.Value) {
	switch v.Interface().(type) {
	case quota.Chain:
		v.Set(reflect.ValueOf(drawChain(t)))
		return
	case []lua.BucketArg:
		v.Set(reflect.ValueOf(drawBuckets(t)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fillAny(t, field)
		}
	case reflect.String:
		v.SetString(rapid.StringN(0, -1, 40).Draw(t, "text"))
	case reflect.Int64:
		v.SetInt(rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, -1, 1, quota.CreditsMax, math.MinInt64, math.MaxInt64})).Draw(t, "int"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	default:
		t.Fatalf("no way to fill %v", v.Type())
	}
}

func drawChain(t *rapid.T) (chain quota.Chain) {
	for range rapid.IntRange(0, quota.ChainMax).Draw(t, "chain") {
		a := quota.Account{
			Scope: rapid.SampledFrom(quota.Scopes[:]).Draw(t, "scope"), ID: rapid.SampledFrom([]string{"t_x", "other", ""}).Draw(t, "id"),
			Period: rapid.SampledFrom([]quota.Period{quota.Ever, quota.Month, quota.Day}).Draw(t, "period"),
		}
		if a.Period != quota.Ever {
			a.Window = quota.Window{Name: "d20261130", Start: rapid.Int64().Draw(t, "start"), End: rapid.Int64().Draw(t, "end")}
		}
		chain = append(chain, a)
	}
	return chain
}

func drawBuckets(t *rapid.T) (list []lua.BucketArg) {
	for range rapid.IntRange(0, bucketsMax).Draw(t, "buckets") {
		list = append(list, lua.BucketArg{
			Scope: rapid.SampledFrom(quota.Scopes[:]).Draw(t, "scope"), ID: "k_1", Unit: quota.UnitTPM,
			Limit: quota.Bucket{Rate: rapid.Int64().Draw(t, "rate"), Burst: rapid.Int64().Draw(t, "burst")}, Need: rapid.Int64().Draw(t, "need"),
		})
	}
	return list
}

func allKinds() []Record {
	return []Record{&Reserved{}, &Progress{}, &Committed{}, &Released{}, &Unknown{}, &Checkpoint{}, &Head{}}
}

func TestRecordsKeepEveryField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom(allKinds()).Draw(t, "kind")
		r = reflect.New(reflect.TypeOf(r).Elem()).Interface().(Record)
		v := reflect.ValueOf(r).Elem()
		fillAny(t, v)
		// An account's id that is the principal's is left out.
		if key := v.FieldByName("Tenant"); key.IsValid() && rapid.Bool().Draw(t, "own ids") {
			key.SetString("t_x")
		}
		got, err := decode(encoded(t, r))
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.Equal(t, kindOf(r), r.kind())
	})
}

func TestRecordBounds(t *testing.T) {
	b := make([]byte, recordBytesMax)
	_, err := encode(b, &Reserved{Call{Model: strings.Repeat("m", textBytesMax)}})
	require.NoError(t, err)
	for _, r := range []Record{
		&Reserved{Call{Model: strings.Repeat("m", textBytesMax+1)}},
		&Reserved{Call{Chain: make(quota.Chain, quota.ChainMax+1)}},
		&Reserved{Call{Buckets: make([]lua.BucketArg, bucketsMax+1)}},
	} {
		_, err := encode(b, r)
		require.ErrorIs(t, err, ErrTooLarge)
	}
	j, _ := openTest(t, small(t.TempDir()))
	_, err = j.Append(&Reserved{Call{Model: strings.Repeat("m", textBytesMax+1)}})
	require.ErrorIs(t, err, ErrTooLarge)

	// The text of an error never keeps a charge out of the books.
	text := "x" + strings.Repeat("ü", errorBytesMax)
	got, err := decode(encoded(t, &Committed{Outcome: Outcome{Error: text}}))
	require.NoError(t, err)
	cut := got.(*Committed).Error
	require.True(t, strings.HasPrefix(text, cut))
	require.True(t, utf8.ValidString(cut))
	require.Greater(t, len(cut), errorBytesMax-utf8.UTFMax)
}

// The encoding is told in docs/journal.md and read by later versions: it stays as it is.
func TestEncodingIsFixed(t *testing.T) {
	require.Equal(t, []byte("\x02\x01\x03t_x\x02r1\x02\x04\x06\x08\x0a\xc8\x01\x01\x0e"), encoded(t, &Progress{
		Tenant: "t_x", RequestID: "r1", Usage: quota.Usage{Input: 1, CachedInput: 2, CacheWrite: 3, Output: 4, Reasoning: 5},
		TextBytes: 100, Cost: -1, At: 7,
	}))
	require.Equal(t, []byte("\x07\x01\x01s\x01t\x01a\x01k\x03tab\x03\x00\x16\x01x\x00\x00\x00\x08\x03d01\x02\x04\x02\x04\x06"), encoded(t, &Head{TabTotals{
		Store: "s", Tenant: "t", App: "a", Key: "k", Tab: "tab", Granted: 1, Freed: 2, Spent: 3,
		Chain: quota.Chain{
			{Scope: quota.Org, ID: "t"},
			{Scope: quota.Key, ID: "x", Period: quota.Month},
			{Scope: quota.Org, ID: "t", Period: quota.Day, Window: quota.Window{Name: "d01", Start: 1, End: 2}},
		},
	}}))
}

func TestSecondsLeft(t *testing.T) {
	var f fill
	now := time.UnixMilli(0)
	require.EqualValues(t, secondsLeftMost, f.next(now, 0, 1000))
	for i := range 300 { // 100 bytes/s more than the readers take
		now = now.Add(time.Second)
		f.next(now, int64(i)*100, 1000)
	}
	require.InDelta(t, 10, f.next(now, 300*100, 1000), 0.1)
	for range 300 {
		now = now.Add(time.Second)
		f.next(now, 0, 1000)
	}
	require.EqualValues(t, secondsLeftMost, f.next(now, 0, 1000))
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	for name, change := range map[string]func(*Options){
		"Dir":          func(o *Options) { o.Dir = "" },
		"Node":         func(o *Options) { o.Node = strings.Repeat("n", nameBytesMax+1) },
		"Sync":         func(o *Options) { o.Sync = time.Microsecond },
		"SegmentBytes": func(o *Options) { o.SegmentBytes = segmentBytesMin / 2 },
		"MaxBytes":     func(o *Options) { o.MaxBytes = segmentsMin*o.SegmentBytes - 1 },
	} {
		opt := small(dir)
		change(&opt)
		_, _, err := Open(opt)
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, name)
	}
	// Every max_bytes that the configuration takes has a fitting segment size.
	for most := int64(64 << 20); most <= 1<<40; most = most*3/2 + 1 {
		require.NoError(t, (&Options{Dir: dir, MaxBytes: most}).complete())
	}
	require.NoError(t, (&Options{Dir: dir}).complete())
}

func FuzzRecord(f *testing.F) {
	for _, r := range append(allKinds(), committed(3), &Reserved{committed(4).Call}, &Unknown{committed(5).Call, true}) {
		f.Add(encoded(f, r))
	}
	f.Add([]byte{3, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		// There is exactly one encoding of a record, but for an error's text that is cut when it is written.
		if len(errorText(r)) > errorBytesMax {
			return
		}
		b := make([]byte, recordBytesMax)
		n, err := encode(b, r)
		if err != nil {
			t.Fatalf("%v does not encode: %v", r, err)
		}
		if !bytes.Equal(b[:n], data) {
			t.Fatalf("%x reads as %v, which is written as %x", data, r, b[:n])
		}
	})
}

func errorText(r Record) string {
	switch r := r.(type) {
	case *Committed:
		return r.Error
	case *Released:
		return r.Error
	}
	return ""
}
