package identity

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	const good = "tg-0123456789abcdefghijKLMN2ud7j5"
	for _, tc := range []struct {
		what   string
		secret string
		want   bool
	}{
		{"a good one", good, true},
		{"empty", "", false},
		{"prefix only", "tg-", false},
		{"short", good[:SecretLen-1], false},
		{"long", good + "0", false},
		{"with a space", good + " ", false},
		{"another prefix", "tG-" + good[3:], false},
		{"no dash", "tg_" + good[3:], false},
		{"another vendor's key", "sk-" + good[3:], false},
		{"a right checksum over a foreign byte", withChecksum("tg-0123456789abcdefghij-LMN"), false},
		{"a right checksum over a NUL", withChecksum("tg-0123456789abcdefghij\x00LMN"), false},
	} {
		t.Run(tc.what, func(t *testing.T) { require.Equal(t, tc.want, Check([]byte(tc.secret))) })
	}
}

func withChecksum(body string) string {
	sum := checksum([]byte(body))
	return body + string(sum[:])
}

// Every typing error of one character, and every swap of two neighbours.
func TestCheckFindsTypingErrors(t *testing.T) {
	for range 20 {
		good := []byte(NewSecret())
		require.True(t, Check(good))
		for i := range good {
			bad := []byte(string(good))
			for c := range 256 {
				if bad[i] = byte(c); bad[i] != good[i] {
					require.False(t, Check(bad), "%q", bad)
				}
			}
			bad[i] = good[i]
			if i > 0 && bad[i] != bad[i-1] {
				bad[i], bad[i-1] = bad[i-1], bad[i]
				require.False(t, Check(bad), "%q", bad)
			}
		}
	}
}

func TestNewSecret(t *testing.T) {
	const n = 20_000
	seen := make(map[string]bool, n)
	var count [256]int
	for range n {
		s := NewSecret()
		require.True(t, Check([]byte(s)))
		require.False(t, seen[s])
		seen[s] = true
		for _, c := range []byte(s[len(secretPrefix):checksumAt]) {
			count[c]++
		}
	}
	// Each character is as likely as the others: within 6 standard deviations.
	mean := float64(n*randomLen) / float64(len(alphabet))
	for _, c := range []byte(alphabet) {
		require.InDelta(t, mean, count[c], 6*math.Sqrt(mean), "%c", c)
	}
}

func TestHexHash(t *testing.T) {
	secret := NewSecret()
	require.Equal(t, hexOf(Hash([]byte(secret))), HexHash(secret))
	require.Len(t, HexHash(secret), 64)
	require.Equal(t, strings.ToLower(HexHash(secret)), HexHash(secret))
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(NewSecret()))
	f.Add([]byte("tg-"))
	f.Fuzz(func(t *testing.T, secret []byte) {
		if Check(secret) {
			require.Equal(t, withChecksum(string(secret[:checksumAt])), string(secret))
		}
	})
}
