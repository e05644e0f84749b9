package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/edge/tokens"
	"tollgate/quota"
)

func parse(t *testing.T, body string) Request {
	t.Helper()
	r, err := ParseChat([]byte(body), nil)
	require.NoError(t, err, body)
	return r
}

func TestWhatSizesAHold(t *testing.T) {
	type want struct {
		output    int64
		hasOutput bool
		n         int64
		stream    bool
		set, ask  bool
	}
	for body, w := range map[string]want{
		`{"model":"m"}`:                                               {n: 1},
		`{"model":"m","max_tokens":5}`:                                {output: 5, hasOutput: true, n: 1},
		`{"model":"m","max_completion_tokens":5}`:                     {output: 5, hasOutput: true, n: 1},
		`{"model":"m","max_tokens":null,"n":null}`:                    {n: 1},
		`{"model":"m","stream":true,"n":128}`:                         {n: 128, stream: true},
		`{"model":"m","stream":null}`:                                 {n: 1},
		` { "mod\u0065l" : "m" , "max_tokens" : 7 } `:                 {output: 7, hasOutput: true, n: 1},
		`{"model":"m","max_tokens":1,"max_completion_tokens":10000}`:  {output: 10000, hasOutput: true, n: 1},
		`{"model":"m","max_tokens":10000,"max_completion_tokens":1}`:  {output: 10000, hasOutput: true, n: 1},
		`{"model":"m","stream_options":{"include_usage":true}}`:       {n: 1, set: true, ask: true},
		`{"model":"m","stream_options":{"include_usage":false}}`:      {n: 1, set: true},
		`{"model":"m","stream_options":{"include_usage":null}}`:       {n: 1},
		`{"model":"m","stream_options":{"x":1}}`:                      {n: 1},
		`{"model":"m","stream_options":null}`:                         {n: 1},
		fmt.Sprintf(`{"model":"m","max_tokens":%d}`, quota.TokensMax): {output: quota.TokensMax, hasOutput: true, n: 1},
		`{"model":"m","Max":9,"messages":[{"n":5,"max_tokens":9}]}`:   {n: 1}, // only the top level counts
	} {
		r := parse(t, body)
		assert.Equal(t, "m", r.Model, body)
		assert.Equal(t, w, want{r.Output, r.HasOutput, r.N, r.Stream, r.SetUsage, r.UsageAsked}, body)
	}
}

func TestRefusedRequests(t *testing.T) {
	rows := []struct{ body, param string }{
		{``, ""},
		{`null`, ""},
		{`[]`, ""},
		{`{"model":"m"`, ""},
		{`{"model":"m"} x`, ""},
		{strings.Repeat("[", 400) + strings.Repeat("]", 400), ""},
		{`{"model":"m","x":[` + strings.Repeat("0,", valuesMax) + `0]}`, ""},
		{`{}`, "model"},
		{`{"model":null}`, "model"},
		{`{"model":""}`, "model"},
		{`{"model":5}`, "model"},
		{`{"model":["m"]}`, "model"},
		{`{"model":"` + strings.Repeat("m", 257) + `"}`, "model"},
		{`{"model":"m","stream":"true"}`, "stream"},
		{`{"model":"m","stream":1}`, "stream"},
		{`{"model":"m","stream_options":true}`, "stream_options"},
		{`{"model":"m","stream_options":{"include_usage":1}}`, "stream_options.include_usage"},
		{`{"model":"m","stream_options":{"include_usage":true,"include_usage":false}}`, "stream_options.include_usage"},
		{`{"model":"m","stream_options":{"Include_Usage":true}}`, "stream_options.include_usage"},
		{`{"model":"m","best_of":2}`, "best_of"},
		{`{"model":"m","n":129}`, "n"},
		{`{"model":"m","n":0}`, "n"},
	}
	for _, field := range []string{"n", "max_tokens", "max_completion_tokens"} {
		for _, number := range []string{
			"-1", "0", "-0", "1.5", "1.0", "1e3", "1e30", `"5"`, `""`, "true", "[]", "{}", "[5]",
			"9223372036854775807", "9223372036854775808", "18446744073686646784", "1099511627777", "NaN", "Infinity",
		} {
			rows = append(rows, struct{ body, param string }{fmt.Sprintf(`{"model":"m",%q:%s}`, field, number), field})
		}
	}
	for _, name := range sizing {
		dup := func(a, b string) string { return fmt.Sprintf(`{"model":"m","a":1,"%s":null,"b":"x","%s":null}`, a, b) }
		escaped := fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
		upper := strings.ToUpper(name)
		if name != "model" {
			rows = append(rows, struct{ body, param string }{dup(name, name), name},
				struct{ body, param string }{dup(name, escaped), name})
		}
		rows = append(rows,
			struct{ body, param string }{dup("x", upper), name},
			struct{ body, param string }{dup(name, upper), name})
	}
	rows = append(rows,
		struct{ body, param string }{`{"model":"a","model":"b"}`, "model"},
		struct{ body, param string }{`{"model":"a","mod\u0065l":"b"}`, "model"},
		struct{ body, param string }{`{"model":"a","m\u006fdel":"b"}`, "model"},
		struct{ body, param string }{"{\"model\":\"a\",\"max_to\u212aens\":5}", "max_tokens"}, // the Kelvin sign folds to k
		struct{ body, param string }{"{\"model\":\"a\",\"me\u017f\u017fage\u017f\":[]}", "messages"})
	for _, row := range rows {
		_, err := ParseChat([]byte(row.body), nil)
		var fe *FieldError
		head := row.body[:min(len(row.body), 100)]
		if !assert.ErrorAs(t, err, &fe, head) {
			continue
		}
		if strings.Contains(row.body, "NaN") || strings.Contains(row.body, "Infinity") {
			continue // refused, whether as JSON or as number
		}
		assert.Equal(t, row.param, fe.Param, head)
		assert.Less(t, len(fe.Msg), 120)
		if row.param != "" {
			assert.Contains(t, fe.Msg, row.param)
		}
	}
	_, err := ParseChat([]byte(`{"model":"m","max_tokens":"sk-secret"}`), nil)
	assert.NotContains(t, err.Error(), "sk-secret")
	_, err = ParseChat([]byte(`{"secret":sk}`), nil)
	assert.NotContains(t, err.Error(), "secret")
}

func TestResultKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`{"model":"gpt-4o"}`)
	r, err := ParseChat(body, nil)
	require.NoError(t, err)
	for i := range body {
		body[i] = 'x'
	}
	_, err = ParseChat([]byte(`{"model":"other-model"}`), nil)
	require.NoError(t, err)
	assert.Equal(t, "gpt-4o", r.Model)
}

func TestPromptBound(t *testing.T) {
	size := func(members string) int64 { return PromptTokensMax(parse(t, `{"model":"m",`+members+`}`)) }
	message := func(content string) int64 {
		quoted, _ := json.Marshal(content)
		return size(`"messages":[{"role":"user","content":` + string(quoted) + `}]`)
	}
	empty := message("")

	// Counted with cl100k_base, or o200k_base where that makes more.
	for text, tokens := range map[string]int64{
		"hello": 1,
		"The quick brown fox jumps over the lazy dog.": 10,
		"def add(a, b):\n    return a + b\n":           12,
		"1 2 3 4 5 6 7 8 9":                            17,
		"x = [1,2,3,4,5,6,7,8,9,10]":                   23,
		"a b c d e f g h i j k l m n o p":              16,
		"a\nb\nc\nd\n":                                 8,
		"i am a b-c d_e f.g":                           9,
		"deadbeef0123456789abcdef":                     8,
		"你好，世界":                                        6,
		"Привет, как дела? Сегодня хорошая погода.": 21,
		"Guten Tag, ich hätte gern ein Brötchen.":   15,
		"မင်္ဂလာပါ ကမ္ဘာလောက":                       37,
		"😀😃😄 ok":         7,
		"[[[[]]]]{}{}{}": 8,
		"!!!???###$$$":   5,
	} {
		assert.GreaterOrEqual(t, message(text)-empty, tokens, text)
		assert.LessOrEqual(t, message(text)-empty, int64(len(text))+1, "about one per byte at most: %s", text)
	}
	assert.LessOrEqual(t, message("hi"), int64(10), "a greeting fits a small limit")

	long := strings.Repeat("word ", 10_000)
	assert.Greater(t, message(long), int64(20_000))
	assert.Equal(t, message(long), size(`"messages":[{"role":"user","content":[{"type":"text","text":"`+long+`"}]}]`)-2, "parts of text count alike, but for their type")

	plain := size(`"messages":[]`)
	for name, members := range map[string]string{
		"tools":           `"messages":[],"tools":[{"type":"function","function":{"name":"f","description":"` + long + `"}}]`,
		"tools' keys":     `"messages":[],"tools":[{"` + long + `":1}]`,
		"functions":       `"messages":[],"functions":[{"description":"` + long + `"}]`,
		"response_format": `"messages":[],"response_format":{"type":"json_schema","json_schema":{"x":"` + long + `"}}`,
		"prediction":      `"messages":[],"prediction":{"type":"content","content":"` + long + `"}`,
		"unknown":         `"messages":[],"documents":["` + long + `"]`,
		"tool calls":      `"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"` + long + `"}}]}]`,
		"messages as one": `"messages":"` + long + `"`,
	} {
		assert.Greater(t, size(members), plain+20_000, name)
	}
	assert.Equal(t, plain, size(`"messages":[],"user":"`+long+`","metadata":{"x":"`+long+`"}`), "what stays out of the prompt")
	oneImage := tokens.ImageTokens("m", 0, 0, tokens.DetailHigh)
	image := size(`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + long + `"}}]}]`)
	assert.Less(t, image, empty+oneImage+20, "an image is not its letters")
	assert.Greater(t, image, empty+oneImage)
	assert.Equal(t, message("\u4f60"), size(`"messages":[{"role":"user","content":"\u4f60"}]`), "escapes count as what they mean")
	assert.Greater(t, size(`"messages":[`+strings.Repeat(`{},`, 99)+`{}]`), plain+tokens.ChatOverhead(100, 0)-tokens.ChatOverhead(0, 0)-1, "empty messages count")
}

func TestParseChatAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("pools forget at random under the race detector")
	}
	body := []byte(`{"model":"gpt-4o","messages":[{"role":"user","content":"` + strings.Repeat("word ", 800) + `"}],"max_tokens":100,"stream":true}`)
	allocs := testing.AllocsPerRun(200, func() {
		if _, err := ParseChat(body, nil); err != nil {
			t.Fatal(err)
		}
	})
	assert.LessOrEqual(t, allocs, 2.0, "the model's name and the visitor")
}

func FuzzParseChat(f *testing.F) {
	f.Add([]byte(`{"model":"m","max_tokens":5,"n":2,"stream":true,"stream_options":{"include_usage":true}}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}],"tools":[1,null,{"a":1.5}]}`))
	f.Add([]byte("{ \"mod\\u0065l\" :\t\"m\\\"\" ,\r\n\"max_completion_tokens\" : null }"))
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		r, err := ParseChat(body, nil)
		assert.Equal(t, before, string(body))
		if err != nil {
			var fe *FieldError
			require.ErrorAs(t, err, &fe)
			return
		}
		assert.True(t, r.N >= 1 && r.N <= ChoicesMax)
		assert.True(t, r.Output >= 0 && r.Output <= quota.TokensMax)
		assert.Positive(t, PromptTokensMax(r))
		// What was accepted can be edited, and then says what it was told.
		edited, err := r.Clamp(body, 1)
		require.NoError(t, err)
		edited, added, err := AskUsage(edited)
		require.NoError(t, err)
		assert.Equal(t, !r.SetUsage, added)
		again, err := ParseChat(edited, nil)
		require.NoError(t, err, "%s", edited)
		assert.EqualValues(t, 1, again.Output)
		assert.Equal(t, r.Model, again.Model)
		assert.Equal(t, r.N, again.N)
		assert.Equal(t, r.Prompt, again.Prompt)
		assert.True(t, again.SetUsage)
	})
}
