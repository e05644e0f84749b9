package dialect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	tiktoken "github.com/tiktoken-go/tokenizer"

	"tollgate/edge/tokens"
)

// TestPromptOfTheCorpus: in ten languages and code, as one message and as many,
// the estimate is never below what the model's own rule counts, and at most
// 1.3 times that.
func TestPromptOfTheCorpus(t *testing.T) {
	files, err := filepath.Glob("../tokens/testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 11)
	for name, encoding := range map[string]tiktoken.Encoding{"o200k": tiktoken.O200kBase, "cl100k": tiktoken.Cl100kBase} {
		vocabulary, err := tokens.Named(name)
		require.NoError(t, err)
		codec, err := tiktoken.Get(encoding)
		require.NoError(t, err)
		truth := func(s string) int64 {
			n, err := codec.Count(s)
			require.NoError(t, err)
			return int64(n)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			type message struct {
				Role    string `json:"role"`
				Content string `json:"content"`
			}
			whole := []message{{"user", string(text)}}
			var many []message
			for part := range chunks(string(text), 300) {
				many = append(many, message{"user", part}, message{"assistant", part})
			}
			for _, messages := range [][]message{whole, many} {
				body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
				require.NoError(t, err)
				r, err := ParseChat(body, func(string) *tokens.Vocabulary { return vocabulary })
				require.NoError(t, err)
				want := int64(3) // the reply's begin
				for _, m := range messages {
					want += 3 + truth(m.Role) + truth(m.Content)
				}
				got := PromptTokensMax(r)
				where := fmt.Sprintf("%s, %s, %d messages: %d of %d", name, filepath.Base(file), len(messages), got, want)
				require.GreaterOrEqual(t, got, want, where)
				require.LessOrEqual(t, float64(got), 1.3*float64(want), where)
				require.True(t, r.Prompt.Counted)
			}
		}
	}
}

// chunks cuts a text at whole characters, about every n bytes.
func chunks(s string, n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		begin := 0
		for i := range s {
			if i-begin >= n {
				if !yield(s[begin:i]) {
					return
				}
				begin = i
			}
		}
		yield(s[begin:])
	}
}
