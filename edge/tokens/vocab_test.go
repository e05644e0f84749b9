package tokens

import (
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tiktoken-go/tokenizer"
)

var update = flag.Bool("update", false, "write the vocabulary files anew")

var references = map[string]tokenizer.Encoding{"o200k": tokenizer.O200kBase, "cl100k": tokenizer.Cl100kBase}

func reference(tb testing.TB, name string) tokenizer.Codec {
	tb.Helper()
	codec, err := tokenizer.Get(references[name])
	require.NoError(tb, err)
	codec.SetErrorMode(tokenizer.ErrorModeReplace)
	return codec
}

// The embedded files hold the published vocabularies, rank by rank, and the merge that makes each token.
func TestVocabularyFilesAreThePublishedOnes(t *testing.T) {
	for name := range references {
		codec := reference(t, name)
		codec.SetErrorMode(tokenizer.ErrorModeNone)
		var all []string
		for {
			token, err := codec.Decode([]uint{uint(len(all))})
			if err != nil {
				break
			}
			all = append(all, token)
		}
		file := vocabularyFile(t, all)
		path := filepath.Join("vocab", name+".bin")
		if *update {
			require.NoError(t, os.WriteFile(path, file, 0o644))
		}
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, string(file) == string(got), "%s differs; run this test with -update", path)
	}
}

func vocabularyFile(tb testing.TB, all []string) []byte {
	ranks := make(map[string]int, len(all))
	prefixes := map[string]bool{}
	for rank, token := range all {
		require.True(tb, len(token) > 0 && len(token) < 256)
		ranks[token] = rank
	}
	require.Len(tb, ranks, len(all))
	file := make([]byte, headBytes)
	for _, token := range all {
		parts := naive(ranks, token, 2)
		left := 0
		if len(token) > 1 && len(parts) == 2 {
			left = len(parts[0])
			for n := 3; n <= len(token); n++ {
				prefixes[token[:n]] = true
			}
		}
		file = append(append(file, byte(len(token)), byte(left)), token...)
	}
	binary.LittleEndian.PutUint32(file, uint32(len(all)))
	binary.LittleEndian.PutUint32(file[4:], uint32(len(prefixes)))
	return file
}

// naive merges the pair with the lowest rank, the leftmost among equals, as the definition says, until
// no more than stop parts are left or none merge.
func naive(ranks map[string]int, piece string, stop int) []string {
	parts := make([]string, 0, len(piece))
	for i := range len(piece) {
		parts = append(parts, piece[i:i+1])
	}
	for len(parts) > stop {
		best, at := -1, 0
		for i := range len(parts) - 1 {
			if rank, ok := ranks[parts[i]+parts[i+1]]; ok && (best < 0 || rank < best) {
				best, at = rank, i
			}
		}
		if best < 0 {
			break
		}
		parts[at] += parts[at+1]
		parts = append(parts[:at+1], parts[at+2:]...)
	}
	return parts
}
