package dialect

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSetOutputChangesOneValueOnly(t *testing.T) {
	for _, row := range [][3]string{ // field, body, want
		{"max_tokens", `{"model":"m","max_tokens":9}`, `{"model":"m","max_tokens":5}`},
		{"max_tokens", `{"max_tokens":9,"model":"m"}`, `{"max_tokens":5,"model":"m"}`},
		{"max_tokens", `{"max_tokens":null}`, `{"max_tokens":5}`},
		{"max_tokens", "\n{\t\"max_tokens\" :\r\n 900 , \"a\" : 1 }\n", "\n{\t\"max_tokens\" :\r\n 5 , \"a\" : 1 }\n"},
		{"max_tokens", `{"max\u005ftokens":9}`, `{"max\u005ftokens":5}`},
		{"max_tokens", `{"\u006d\u0061\u0078\u005f\u0074\u006f\u006b\u0065\u006e\u0073":9}`, `{"\u006d\u0061\u0078\u005f\u0074\u006f\u006b\u0065\u006e\u0073":5}`},
		{"max_tokens", `{"x":{"max_tokens":1},"y":["max_tokens",2,{"max_tokens":3}],"max_tokens":9}`, `{"x":{"max_tokens":1},"y":["max_tokens",2,{"max_tokens":3}],"max_tokens":5}`},
		{"max_tokens", `{"a":"\"max_tokens\":1}\\","max_tokens":9}`, `{"a":"\"max_tokens\":1}\\","max_tokens":5}`},
		{"max_tokens", `{}`, `{"max_tokens":5}`},
		{"max_tokens", ` { } `, ` {"max_tokens":5 } `},
		{"max_tokens", `{"max_completion_tokens":9}`, `{"max_tokens":5,"max_completion_tokens":9}`},
		{"max_tokens", "{ \"n\": 1.50e1, \"é\": \"\\u00e9\xc3\xa9\" }", "{\"max_tokens\":5, \"n\": 1.50e1, \"é\": \"\\u00e9\xc3\xa9\" }"},
	} {
		body := []byte(row[1])
		got, err := SetOutput(body, row[0], 5)
		require.NoError(t, err)
		assert.Equal(t, row[2], string(got))
		assert.Equal(t, row[1], string(body), "the body itself stays")
	}
	for _, body := range []string{"", "[]", "null", `"{}"`, `{"a"`, `{"a":1`, `{"a":1]`, `{a:1}`} {
		_, err := SetOutput([]byte(body), "max_tokens", 5)
		assert.ErrorIs(t, err, ErrNotObject, body)
	}
}

func TestClampGoesIntoTheFieldsThatTheClientUsed(t *testing.T) {
	for _, row := range [][2]string{
		{`{"model":"m"}`, `{"max_completion_tokens":5,"model":"m"}`},
		{`{"model":"m","max_tokens":9}`, `{"model":"m","max_tokens":5}`},
		{`{"model":"m","max_completion_tokens":9}`, `{"model":"m","max_completion_tokens":5}`},
		{`{"model":"m","max_tokens":9,"max_completion_tokens":6}`, `{"model":"m","max_tokens":5,"max_completion_tokens":5}`},
		{`{"model":"m","max_tokens":3,"max_completion_tokens":6}`, `{"model":"m","max_tokens":3,"max_completion_tokens":5}`},
		{`{"model":"m","max_tokens":5}`, `{"model":"m","max_tokens":5}`},
		{`{"model":"m","max_tokens":null}`, `{"max_completion_tokens":5,"model":"m","max_tokens":null}`},
	} {
		r := parse(t, row[0])
		got, err := r.Clamp([]byte(row[0]), 5)
		require.NoError(t, err)
		assert.Equal(t, row[1], string(got))
	}
}

func TestAskUsage(t *testing.T) {
	for _, row := range []struct {
		body, want string
		added      bool
	}{
		{`{"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`, true},
		{`{}`, `{"stream_options":{"include_usage":true}}`, true},
		{`{"stream_options": null}`, `{"stream_options": {"include_usage":true}}`, true},
		{`{"stream_options":{}}`, `{"stream_options":{"include_usage":true}}`, true},
		{`{"stream_options": { "x" : [1, {"include_usage":false}] } , "a":1}`, `{"stream_options": {"include_usage":true, "x" : [1, {"include_usage":false}] } , "a":1}`, true},
		{`{"stream_options":{"include_usage": null ,"x":1}}`, `{"stream_options":{"include_usage": true ,"x":1}}`, true},
		{`{"stream_options":{"include_usage":true}}`, ``, false},
		{`{"stream_options":{ "include_usage" : false }}`, ``, false},
		{`{"stream\u005foptions":{"includ\u0065_usage":true}}`, ``, false},
		{`{"stream\u005foptions":{"x":1}}`, `{"stream\u005foptions":{"include_usage":true,"x":1}}`, true},
	} {
		got, added, err := AskUsage([]byte(row.body))
		require.NoError(t, err)
		assert.Equal(t, row.added, added, row.body)
		if row.want == "" {
			row.want = row.body
		}
		assert.Equal(t, row.want, string(got))
	}
	_, _, err := AskUsage([]byte(`{"stream_options":5}`))
	assert.ErrorIs(t, err, ErrNotObject)
}

func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"a":[1,"\\\"",{"max_tokens":2}],"max_tokens":9}`))
	f.Add([]byte(`{"stream_options":{"include_usage":null}}`))
	f.Add([]byte("{\"\\"))
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _ = SetOutput(body, "max_tokens", 5)
		_, _, _ = AskUsage(body)
	})
}
