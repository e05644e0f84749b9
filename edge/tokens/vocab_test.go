package tokens

import (
	"encoding/binary"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
func TestVocabularyFilesArePublished(t *testing.T) {
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

// vocabularyFile is the file that build reads.
func vocabularyFile(tb testing.TB, all []string) []byte {
	ranks := make(map[string]int, len(all))
	for rank, token := range all {
		require.True(tb, len(token) > 0 && len(token) < 256)
		ranks[token] = rank
	}
	require.Len(tb, ranks, len(all))
	nodes := 1
	before := ""
	file := make([]byte, headBytes)
	for _, token := range slices.Sorted(maps.Keys(ranks)) {
		shared := 0
		for shared < len(before) && before[shared] == token[shared] {
			shared++
		}
		left := 0
		if len(token) > 1 {
			parts := naive(ranks, token, 2)
			require.Len(tb, parts, 2, "no merges make %q", token) // build relies on it
			left = len(parts[0])
		}
		rank := ranks[token]
		file = append(file, byte(shared), byte(len(token)-shared), byte(left), byte(rank), byte(rank>>8), byte(rank>>16))
		file = append(file, token[shared:]...)
		nodes += len(token) - shared
		before = token
	}
	binary.LittleEndian.PutUint32(file, uint32(len(all)))
	binary.LittleEndian.PutUint32(file[4:], uint32(nodes))
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
