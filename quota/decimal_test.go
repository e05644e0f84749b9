package quota

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseDecimal(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Decimal
		back string // what String gives, if not text
		err  error
	}{
		{text: "0"},
		{text: "1", want: DecimalOne},
		{text: "0.5", want: 500_000_000},
		{text: "0.000000001", want: 1},
		{text: "1.200", want: 1_200_000_000, back: "1.2"},
		{text: "0.0", back: "0"},
		{text: "10.01", want: 10_010_000_000},
		{text: "9223372036.854775807", want: 1<<63 - 1},
		{text: "9223372036.854775808", err: ErrTooLarge},
		{text: "9223372037", err: ErrTooLarge},
		{text: strings.Repeat("9", 10_000), err: ErrTooLarge},
		{text: "0.0000000001", err: ErrDecimal},
		{text: "1.0000000000", err: ErrDecimal},
		{text: "", err: ErrDecimal},
		{text: ".", err: ErrDecimal},
		{text: ".5", err: ErrDecimal},
		{text: "5.", err: ErrDecimal},
		{text: "1.2.3", err: ErrDecimal},
		{text: "1e3", err: ErrDecimal},
		{text: "1E-3", err: ErrDecimal},
		{text: "0x10", err: ErrDecimal},
		{text: "010", err: ErrDecimal},
		{text: "00", err: ErrDecimal},
		{text: "1_000", err: ErrDecimal},
		{text: "1,5", err: ErrDecimal},
		{text: "+1", err: ErrDecimal},
		{text: " 1", err: ErrDecimal},
		{text: "1 ", err: ErrDecimal},
		{text: "٣", err: ErrDecimal},
		{text: "NaN", err: ErrDecimal},
		{text: ".inf", err: ErrDecimal},
		{text: "-1", err: ErrNegative},
		{text: "-0", err: ErrNegative},
		{text: "-9223372037", err: ErrNegative},
		{text: "-", err: ErrDecimal},
		{text: "-x", err: ErrDecimal},
		{text: "--1", err: ErrNegative},
	} {
		got, err := ParseDecimal(tc.text)
		if tc.err != nil {
			require.ErrorIs(t, err, tc.err, "%q", tc.text)
			require.Less(t, len(err.Error()), 200)
			continue
		}
		require.NoError(t, err, "%q", tc.text)
		require.Equal(t, tc.want, got, "%q", tc.text)
		if tc.back == "" {
			tc.back = tc.text
		}
		require.Equal(t, tc.back, got.String())
	}
}

func TestDecimalForms(t *testing.T) {
	var j struct{ D Decimal }
	require.NoError(t, json.Unmarshal([]byte(`{"D":12.500}`), &j))
	require.Equal(t, Decimal(12_500_000_000), j.D)
	text, err := json.Marshal(j)
	require.NoError(t, err)
	require.Equal(t, `{"D":12.5}`, string(text))
	for _, bad := range []string{`"1"`, `null`, `true`, `1e2`, `-1`, `[]`, `{}`} {
		require.Error(t, json.Unmarshal([]byte(`{"D":`+bad+`}`), &j), bad)
	}

	var p Price
	require.NoError(t, json.Unmarshal([]byte(`{"input":1.000000001,"cached_input":0.10,"output":9007199254.740993}`), &p))
	require.Equal(t, Price{Input: 1_000_000_001, CachedInput: 100_000_000, Output: 9_007_199_254_740_993_000}, p)
	text, err = json.Marshal(p)
	require.NoError(t, err)
	require.Equal(t, `{"call":0,"input":1.000000001,"cached_input":0.1,"cache_write":0,"output":9007199254.740993}`, string(text))
	require.Equal(t, "-0.5", Decimal(-500_000_000).String())
}

// Against big.Rat, which reads the same text by other code.
func TestDecimalIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(0|[1-9][0-9]{0,9})(\.[0-9]{1,9})?`).Draw(t, "text")
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		want.Mul(want, big.NewRat(int64(DecimalOne), 1))
		require.True(t, want.IsInt())
		got, err := ParseDecimal(text)
		if !want.Num().IsInt64() {
			require.ErrorIs(t, err, ErrTooLarge)
			return
		}
		require.NoError(t, err)
		require.Equal(t, want.Num().Int64(), int64(got))
	})
}

func FuzzDecimal(f *testing.F) {
	for _, seed := range []string{"0", "1.5", "9223372036.854775807", "-1", "1e9", ".5", "00.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDecimal(text)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.GreaterOrEqual(t, d, Decimal(0))
		again, err := ParseDecimal(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		require.Zero(t, want.Cmp(big.NewRat(int64(d), int64(DecimalOne))))
		var j Decimal
		require.NoError(t, json.Unmarshal([]byte(text), &j))
		require.Equal(t, d, j)
	})
}
