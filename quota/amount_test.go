package quota

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Sums and products against big.Int: right, or refused; never wrapped.
func TestAmountsNeverWrap(t *testing.T) {
	largest := big.NewInt(CreditsMax)
	any64 := rapid.OneOf(rapid.Int64(), rapid.Int64Range(0, CreditsMax), rapid.Int64Range(-5, 1<<27),
		rapid.SampledFrom([]int64{0, 1, -1, CreditsMax, CreditsMax + 1, CreditsMax - 1, math.MaxInt64, math.MinInt64}))
	rapid.Check(t, func(t *rapid.T) {
		a, b := any64.Draw(t, "a"), any64.Draw(t, "b")
		for _, op := range []struct {
			got   func(a, b int64) (int64, error)
			naive func(x, y *big.Int) *big.Int
		}{
			{Add, new(big.Int).Add},
			{Mul, new(big.Int).Mul},
		} {
			got, err := op.got(a, b)
			want := op.naive(big.NewInt(a), big.NewInt(b))
			switch {
			case a < 0, b < 0:
				require.Error(t, err)
			case a > CreditsMax, b > CreditsMax, want.Cmp(largest) > 0:
				require.ErrorIs(t, err, ErrTooLarge)
			default:
				require.NoError(t, err)
				require.Equal(t, want.Int64(), got)
			}
			if err != nil {
				require.Zero(t, got)
			}
		}
	})
}

func TestCheckID(t *testing.T) {
	for id, ok := range map[string]bool{
		"t_a": true, "t_A9_-": true, "t_" + strings.Repeat("x", 62): true,
		"": false, "t_": false, "t": false, "a_1": false, "T_1": false, "t_a b": false, "t_{a}": false, "t_ä": false, "t_a\n": false,
		"t_" + strings.Repeat("x", 63): false,
	} {
		err := CheckID("t_", id)
		if ok {
			require.NoError(t, err, id)
		} else {
			require.ErrorIs(t, err, ErrID, "%q", id)
		}
	}
}
