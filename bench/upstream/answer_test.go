package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestStreamTellsUsageOnlyWhenAsked(t *testing.T) {
	s := start(t, Options{})
	for _, options := range []string{``, `"stream_options":null,`, `"stream_options":{},`, `"stream_options":{"include_usage":false},`} {
		a := do(t, s, http.MethodPost, chatPath, `{"model":"m","stream":true,`+options+`"messages":[{"content":"x"}]}`, nil)
		require.NoError(t, a.err)
		require.NotContains(t, string(a.body), "usage")
	}
	a := do(t, s, http.MethodPost, chatPath, streamBody, nil)
	require.NoError(t, a.err)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	list := events(a.body)
	require.Equal(t, "[DONE]", list[len(list)-1])
	cs := chunks(t, list)
	var text strings.Builder
	for _, c := range cs[:len(cs)-1] {
		require.Equal(t, "null", string(c.Usage))
		require.Len(t, c.Choices, 1)
		text.WriteString(c.Choices[0].Delta.Content)
	}
	require.Len(t, text.String(), 5*bytesPer)
	require.Equal(t, "assistant", cs[0].Choices[0].Delta.Role)
	require.Equal(t, "stop", *cs[len(cs)-2].Choices[0].FinishReason)
	require.Contains(t, list[len(list)-2], `"choices":[]`)
	var u Usage
	require.NoError(t, json.Unmarshal(cs[len(cs)-1].Usage, &u))
	require.Equal(t, Usage{7, 5, 12}, u)
}

func TestUsagePlaces(t *testing.T) {
	real := &Usage{7, 5, 12}
	for _, row := range []struct {
		mode   string
		want   *Usage // reported in the stream and in the JSON alike
		told   int    // usage objects in the stream
		within string // what the last usage object's event contains
	}{
		{"asked", real, 1, `"choices":[]`},
		{"always", real, 1, `"choices":[]`},
		{"absent", nil, 0, ""},
		{"null", nil, 0, ""},
		{"zero", &Usage{}, 1, `"choices":[]`},
		{"finish", real, 1, `"finish_reason":"stop"`},
		{"twice", real, 2, `"choices":[]`},
		{"cumulative", real, 1 + 5 + 1 + 1, `"choices":[]`},
		{"after-done", real, 1, `"choices":[]`},
		{"null-choices", real, 1, `"choices":null`},
		{"no-choices", real, 1, `"usage":{`},
	} {
		t.Run(row.mode, func(t *testing.T) {
			s := start(t, Options{})
			a := do(t, s, http.MethodPost, chatPath, streamBody, Settings{"usage": row.mode})
			require.NoError(t, a.err)
			require.Equal(t, row.want, ended(t, s, 1).Reported)
			told, last := 0, ""
			list := events(a.body)
			for _, e := range list {
				if strings.Contains(e, `"usage":{`) {
					told, last = told+1, e
				}
			}
			require.Equal(t, row.told, told)
			require.Contains(t, last, row.within)
			require.Equal(t, row.mode == "absent", !strings.Contains(string(a.body), "usage"))
			require.Equal(t, row.mode == "after-done", list[len(list)-1] != "[DONE]")

			a = do(t, s, http.MethodPost, chatPath, chatBody, Settings{"usage": row.mode})
			require.NoError(t, a.err)
			require.Equal(t, row.want, ended(t, s, 2).Reported)
			require.Equal(t, row.want != nil, strings.Contains(string(a.body), `"usage":{`))

			got := s.Totals()
			require.Equal(t, Usage{14, 10, 24}, got.Usage, "the truth does not depend on what is told")
		})
	}
}

func TestUsageForms(t *testing.T) {
	s := start(t, Options{})
	for form, want := range map[string]string{
		"int": `"prompt_tokens":7,`, "float": `"prompt_tokens":7.0,`, "negative": `"prompt_tokens":-7,`,
		"huge": `"prompt_tokens":8e30,`, "text": `"prompt_tokens":"7",`,
	} {
		a := do(t, s, http.MethodPost, chatPath, chatBody, Settings{"usage-form": form})
		require.Contains(t, string(a.body), want)
	}
}

func TestWhatACallCosts(t *testing.T) {
	const chat, text, embed = chatPath, "/v1/completions", "/v1/embeddings"
	for _, row := range []struct {
		name, path, body string
		knobs            Settings
		want             Usage
	}{
		{"counted", chat, `{"model":"m","messages":[{"content":"12345"},{"content":[{"type":"text","text":"6789"},{"type":"image_url"}]}]}`, nil, Usage{3, 16, 19}},
		{"tools count", chat, `{"model":"m","tools":[12],"messages":[{"content":"1234"}]}`, nil, Usage{2, 16, 18}},
		{"model name", chat, chatBody, nil, Usage{7, 5, 12}},
		{"knobs before the name", chat, chatBody, Settings{"prompt-tokens": "9", "completion-tokens": "2"}, Usage{9, 2, 11}},
		{"none", chat, chatBody, Settings{"prompt-tokens": "-1", "completion-tokens": "-1"}, Usage{}},
		{"capped", chat, `{"model":"x-c50","max_tokens":8,"messages":[{"content":"1"}]}`, nil, Usage{1, 8, 9}},
		{"larger cap", chat, `{"model":"x-c50","max_tokens":1,"max_completion_tokens":20,"messages":[{"content":"1"}]}`, nil, Usage{1, 20, 21}},
		{"last of a repeated name", chat, `{"model":"x-c50","max_tokens":1,"max_tokens":3,"Max_Tokens":9,"messages":[{"content":"1"}]}`, nil, Usage{1, 3, 4}},
		{"overrun", chat, `{"model":"x-c50","max_tokens":8,"messages":[{"content":"1"}]}`, Settings{"ignore-max": "true"}, Usage{1, 50, 51}},
		{"n", chat, `{"model":"x-p1-c5","n":3,"messages":[{"content":"1"}]}`, nil, Usage{1, 15, 16}},
		{"reasoning inside", chat, chatBody, Settings{"reasoning-tokens": "4", "cached-tokens": "3"}, Usage{7, 5, 12}},
		{"thinking outside", chat, chatBody, Settings{"thinking-tokens": "4"}, Usage{7, 5, 16}},
		{"best_of", text, `{"model":"x-c5","n":2,"best_of":4,"prompt":"12345678"}`, nil, Usage{2, 20, 22}},
		{"prompts", text, `{"model":"x-c5","prompt":["12345",[1,2,3]]}`, nil, Usage{5, 10, 15}},
		{"token ids", text, `{"model":"x-c5","prompt":[1,2,3]}`, nil, Usage{3, 5, 8}},
		{"embeddings", embed, `{"model":"e","input":["12345","1"]}`, nil, Usage{3, 0, 3}},
		{"embeddings, ids, base64", embed, `{"model":"e","encoding_format":"base64","dimensions":4,"input":[5,6]}`, nil, Usage{2, 0, 2}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := start(t, Options{})
			a := do(t, s, http.MethodPost, row.path, row.body, row.knobs)
			require.NoError(t, a.err)
			require.Equal(t, 200, a.status, string(a.body))
			var told struct{ Usage Usage }
			require.NoError(t, json.Unmarshal(a.body, &told))
			require.Equal(t, row.want, told.Usage)
			if row.path != embed {
				stream := strings.TrimSuffix(row.body, "}") + `,"stream":true,"stream_options":{"include_usage":true}}`
				a = do(t, s, http.MethodPost, row.path, stream, row.knobs)
				require.NoError(t, a.err)
				require.Equal(t, &row.want, ended(t, s, 2).Reported)
				require.Equal(t, 2*row.want.Completion, s.Totals().WrittenTokens)
			}
		})
	}
}

func TestRefusesWhatOpenAIRefuses(t *testing.T) {
	s := start(t, Options{})
	for _, body := range []string{
		``, `[]`, `{`, `{"model":"m"}`, `{"model":"m","messages":[]}`, `{"model":5,"messages":[{"content":"x"}]}`,
		`{"n":0,"messages":[{}]}`, `{"n":-1,"messages":[{}]}`, `{"n":18446744073686646784,"messages":[{}]}`,
		`{"max_tokens":"5","messages":[{}]}`, `{"max_tokens":-1,"messages":[{}]}`, `{"max_tokens":1e30,"messages":[{}]}`,
		`{"stream_options":5,"messages":[{}]}`,
	} {
		a := do(t, s, http.MethodPost, chatPath, body, nil)
		require.NoError(t, a.err)
		require.Equal(t, 400, a.status, body)
		require.Contains(t, string(a.body), `"type":"invalid_request_error"`)
	}
	require.Equal(t, 404, do(t, s, http.MethodPost, "/v1/unknown", `{}`, nil).status)
	require.Equal(t, 404, do(t, s, http.MethodGet, chatPath, ``, nil).status)
	require.Zero(t, s.Totals().Calls)
	require.Equal(t, Usage{}, s.Totals().Usage)
}

func TestModelsAndOtherPathsCostNothing(t *testing.T) {
	s := start(t, Options{Models: []string{"a", "b"}})
	a := do(t, s, http.MethodGet, "/v1/models", ``, nil)
	require.Equal(t, 200, a.status)
	require.Contains(t, string(a.body), `"id":"b"`)
	a = do(t, s, http.MethodPut, "//img/../x%2e?q=1", `123`, nil)
	require.Equal(t, 200, a.status)
	require.JSONEq(t, `{"object":"fake.echo","method":"PUT","path":"//img/../x.","request_bytes":3}`, string(a.body))
	require.EqualValues(t, 2, s.Totals().Calls)
	require.Equal(t, Usage{}, s.Totals().Usage)
}

func TestSameSeedSameBytes(t *testing.T) {
	s := start(t, Options{})
	one := do(t, s, http.MethodPost, chatPath, streamBody, nil)
	two := do(t, s, http.MethodPost, chatPath, streamBody, nil)
	other := do(t, s, http.MethodPost, chatPath, streamBody, Settings{"seed": "2"})
	require.Equal(t, one.body, two.body)
	require.NotEqual(t, one.body, other.body)
	sum := sha256.Sum256(one.body)
	e := s.Log()[0]
	require.Equal(t, hex.EncodeToString(sum[:]), e.BodySHA256)
	require.EqualValues(t, len(one.body), e.BodyBytes)
	require.Equal(t, one.header.Get("x-request-id"), e.OwnID)
}

// Whatever the numbers, the events of a plan deliver exactly what its usage says.
func TestPlanAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &request{
			n: rapid.Int64Range(1, 5).Draw(t, "n"), bestOf: rapid.Int64Range(1, 6).Draw(t, "bestOf"),
			max: rapid.Int64Range(0, 40).Draw(t, "max"), inputCount: rapid.IntRange(1, 3).Draw(t, "inputs"),
			inputTokens: rapid.Int64Range(0, 1000).Draw(t, "inputTokens"),
		}
		b := Behaviour{
			CompletionTokens: rapid.Int64Range(-1, 60).Draw(t, "completion"),
			ReasoningTokens:  rapid.Int64Range(0, 60).Draw(t, "reasoning"),
			ThinkingTokens:   rapid.Int64Range(0, 9).Draw(t, "thinking"),
			Chunks:           rapid.IntRange(0, 70).Draw(t, "chunks"),
			Text:             rapid.SampledFrom([]string{"ascii", "utf8"}).Draw(t, "text"),
			Usage:            rapid.SampledFrom([]string{"always", "cumulative", "twice", "finish"}).Draw(t, "usage"),
		}
		p := makePlan(r, &b)
		var tokens, before int64
		var last *Usage
		textBytes := 0
		for e := range p.stream(&chatShape, false, true) {
			tokens += e.tokens
			if e.reported != nil {
				if e.reported.Completion < before {
					t.Fatalf("cumulative usage fell from %d to %d", before, e.reported.Completion)
				}
				before, last = e.reported.Completion, e.reported
			}
			var c chunk
			if json.Unmarshal(e.data, &c) == nil && len(c.Choices) == 1 {
				textBytes += len(c.Choices[0].Delta.Content)
			}
		}
		if tokens != p.usage.Completion || last == nil || *last != p.usage {
			t.Fatalf("events deliver %d tokens and tell %v, usage is %v", tokens, last, p.usage)
		}
		if want := int64(p.choices) * p.perText * bytesPer; int64(textBytes) != want {
			t.Fatalf("text has %d bytes, want %d", textBytes, want)
		}
		if r.max > 0 && p.perAll > r.max {
			t.Fatalf("%d tokens pass the cap %d", p.perAll, r.max)
		}
	})
}

func TestModelName(t *testing.T) {
	for name, want := range map[string][2]int64{
		"fake": {-1, -1}, "fake-c20": {-1, 20}, "fake-p3": {3, -1}, "fake-p100-c20": {100, 20},
		"fake-c0-x": {-1, 0}, "gpt-4o-chat": {-1, -1}, "x-c20b": {-1, -1}, "": {-1, -1},
	} {
		p, c := modelTokens(name)
		require.Equal(t, want, [2]int64{p, c}, fmt.Sprintf("%q", name))
	}
}
