package tokens

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func exact(tb testing.TB, v *Vocabulary, text string) int64 {
	tb.Helper()
	c := v.Counter(math.MaxInt64, math.MaxInt)
	c.Add([]byte(text))
	require.True(tb, c.Exact())
	return c.Tokens()
}

// alphabet is what random texts are made of: what the splitting rules tell apart, and what is near to it.
var alphabet = strings.Split("a b e s t l v d m r B S T É ß ſ K Dž ª ʰ 日 本 ก ิ ا ي َ é e\u0301 \u0301 \u20dd 1 2 9 ² Ⅷ ٣ ½ ' ' ' ’ . , / / \\ ( { = - _ 😀 👩\u200d👩 🇩🇪 \u00a0 \u2003 \u2028 \u200b \ufffd \t \r \n \v \f \x00 \x85 \x1f hello the ing 's 'LL ' ' <|endoftext|> \U0010ffff क ् ष", " ")

func randomText(r *rand.Rand, n int) string {
	var b strings.Builder
	few := 1 + r.IntN(len(alphabet))
	from := r.IntN(len(alphabet))
	for range n {
		s := alphabet[(from+r.IntN(few))%len(alphabet)]
		if r.IntN(6) == 0 {
			s = " "
		}
		b.WriteString(s)
	}
	return b.String()
}

func TestRandomTextsCountAsTheReference(t *testing.T) {
	for name := range references {
		v, err := Named(name)
		require.NoError(t, err)
		codec := reference(t, name)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 30_000 {
			text := randomText(r, 1+r.IntN(40))
			want, err := codec.Count(text)
			require.NoError(t, err)
			if got := exact(t, v, text); got != int64(want) {
				_, parts, _ := codec.Encode(text)
				t.Fatalf("%s, text %d, %q: %d, want %d: %q", name, i, text, got, want, parts)
			}
		}
	}
}
