package tokens

import (
	"encoding/base64"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// corpus is what this project wrote to measure with: ten languages and code.
func corpus(tb testing.TB) map[string]string {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(tb, err)
	require.NotEmpty(tb, files)
	texts := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(tb, err)
		texts[strings.TrimSuffix(filepath.Base(f), ".txt")] = string(b)
	}
	return texts
}

const megabyte = 1 << 20

// hardTexts are a megabyte each of what a counter may find hard.
func hardTexts() map[string]string {
	r := rand.New(rand.NewPCG(3, 4))
	noise := func(n int, letters string) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	runes := func(lo, hi rune) string {
		var b strings.Builder
		for b.Len() < megabyte-4 {
			b.WriteRune(lo + r.Int32N(hi-lo))
		}
		return b.String()
	}
	raw := make([]byte, megabyte)
	for i := range raw {
		raw[i] = byte(r.Uint32())
	}
	return map[string]string{
		"one letter":     strings.Repeat("a", megabyte),
		"one ideograph":  strings.Repeat("的", megabyte/3),
		"spaces":         strings.Repeat(" ", megabyte),
		"newlines":       strings.Repeat("\r\n \t", megabyte/4),
		"dashes":         strings.Repeat("-", megabyte),
		"base64":         base64.StdEncoding.EncodeToString(raw[:megabyte/4*3]),
		"hex":            noise(megabyte, "0123456789abcdef"),
		"digits":         noise(megabyte, "0123456789"),
		"lower letters":  noise(megabyte, "abcdefghijklmnopqrstuvwxyz"),
		"ab":             noise(megabyte, "ab"),
		"letters":        noise(megabyte, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
		"printable":      noise(megabyte, "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~ "),
		"random bytes":   string(raw),
		"emoji":          runes(0x1f600, 0x1f650),
		"flags":          runes(0x1f1e6, 0x1f200),
		"one emoji":      strings.Repeat("😀", megabyte/4),
		"han":            runes(0x4e00, 0x9fa5),
		"hangul":         runes(0xac00, 0xd7a4),
		"arabic letters": runes(0x0621, 0x064a),
		"thai letters":   runes(0x0e01, 0x0e3a),
		"any runes":      runes(0x10000, 0x2ffff),
	}
}

func megabytesOf(text string) string {
	return strings.Repeat(text, megabyte/len(text)+1)[:megabyte/4*4]
}

func BenchmarkCount(b *testing.B) {
	texts := hardTexts()
	for name, text := range corpus(b) {
		texts["text "+name] = strings.ToValidUTF8(megabytesOf(text), "")
	}
	for name := range references {
		v, err := Named(name)
		require.NoError(b, err)
		v.Load()
		for kind, text := range texts {
			b.Run(name+"/"+strings.ReplaceAll(kind, " ", "_"), func(b *testing.B) {
				body := []byte(text)
				b.ReportAllocs()
				var c Counter
				for b.Loop() {
					c = v.Counter(math.MaxInt64, math.MaxInt)
					c.Add(body)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(body)), "ns/byte")
				b.ReportMetric(float64(math.MaxInt-c.steps)/float64(len(body)), "steps/byte")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(math.MaxInt-c.steps), "ns/step")
				b.ReportMetric(float64(c.Tokens())/float64(len(body)), "tokens/byte")
			})
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for name, file := range map[string]string{"o200k": o200kFile, "cl100k": cl100kFile} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				build(file)
			}
		})
	}
	b.Run("classes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buildClasses()
		}
	})
}
