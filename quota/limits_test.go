package quota

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBucketJSON(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Bucket
		bad  bool
	}{
		{text: `60`, want: Bucket{60, 60}},
		{text: `0`},
		{text: `{"rate":60}`, want: Bucket{60, 60}},
		{text: `{"rate":60,"burst":5}`, want: Bucket{60, 5}},
		{text: ` { "burst" : 0 , "rate" : 1 } `, want: Bucket{1, 0}},
		{text: `100000000`, want: Bucket{RateMax, RateMax}},
		{text: `100000001`, bad: true},
		{text: `{"rate":1,"burst":100000001}`, bad: true},
		{text: `-1`, bad: true},
		{text: `1.5`, bad: true},
		{text: `1e3`, bad: true},
		{text: `"60"`, bad: true},
		{text: `null`, bad: true},
		{text: `[60]`, bad: true},
		{text: `true`, bad: true},
		{text: `{}`, bad: true},
		{text: `{"burst":5}`, bad: true},
		{text: `{"rate":5,"bursts":5}`, bad: true},
		{text: `{"rate":18446744073709551615}`, bad: true},
	} {
		var b Bucket
		err := b.UnmarshalJSON([]byte(tc.text))
		if tc.bad {
			require.ErrorIs(t, err, ErrLimit, tc.text)
			continue
		}
		require.NoError(t, err, tc.text)
		require.Equal(t, tc.want, b, tc.text)
	}
}

func TestBudgetJSON(t *testing.T) {
	var b Budget
	require.NoError(t, json.Unmarshal([]byte(`{"day":0,"month":null,"limits":{"rpm":60,"tpm":{"rate":10,"burst":20},"rps":null}}`), &b))
	require.Zero(t, *b.Day, "0 allows nothing")
	require.Nil(t, b.Month, "null is unlimited")
	require.Nil(t, b.Limits.RPS)
	text, err := json.Marshal(b)
	require.NoError(t, err)
	require.JSONEq(t, `{"day":0,"limits":{"rpm":60,"tpm":{"rate":10,"burst":20}}}`, string(text))
}

func TestLimitsValidate(t *testing.T) {
	for n, ok := range map[int64]bool{0: true, ConcurrencyMax: true, ConcurrencyMax + 1: false, -1: false} {
		err := Limits{Concurrency: &n}.Validate()
		if ok {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrLimit)
		}
	}
	require.NoError(t, Limits{}.Validate())
}

// The bucket script's products stay exact in doubles.
func TestRateMaxIsExactInDoubles(t *testing.T) {
	require.Less(t, RateMax*1_000_000*UnitRPM.Seconds(), int64(1)<<53)
	require.Less(t, float64(CreditsMax), math.Exp2(53))
}

func FuzzBucketJSON(f *testing.F) {
	for _, seed := range []string{`60`, `{"rate":60,"burst":5}`, `null`, `-1`, `{"rate":1e99}`, `{"rate":1,"rate":-1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var l Limits
		if err := json.Unmarshal(append(append([]byte(`{"rpm":`), text...), '}'), &l); err != nil || l.RPM == nil {
			return
		}
		b := *l.RPM
		require.True(t, b.Rate >= 0 && b.Rate <= RateMax && b.Burst >= 0 && b.Burst <= RateMax, "%+v", b)
		out, err := json.Marshal(b)
		require.NoError(t, err)
		var again Bucket
		require.NoError(t, json.Unmarshal(out, &again))
		require.Equal(t, b, again)
	})
}
