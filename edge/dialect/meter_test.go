package dialect

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

const (
	first = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}` + "\n\n"
	extra = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}}` + "\n\n"
	stop  = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

func delta(text string) string {
	return `data: {"id":"c","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}],"usage":null}` + "\n\n"
}

// stream is an answer and what a Meter has to say about it.
type stream struct {
	name      string
	kind      Kind
	bytes     string
	usage     quota.Usage
	ok        bool
	delivered Delivered
	ended     bool
	done      bool
	failed    bool
	errorSeen bool
	stripped  string // what Strip leaves; "=" is everything
}

var tenAndFour = quota.Usage{Input: 10, Output: 4}

var corpus = []stream{
	{
		"whole stream", Stream, first + delta("Hel") + delta("lo") + stop + extra + done, tenAndFour, true,
		Delivered{5, 5, 2},
		true, true, false, false,
		first + delta("Hel") + delta("lo") + stop + done,
	},
	{"cut before the usage", Stream, first + delta("Hel") + delta("lo"), quota.Usage{}, false, Delivered{5, 5, 2}, false, false, false, false, "="},
	{"cut within a text", Stream, first + `data: {"choices":[{"delta":{"content":"Hel`, quota.Usage{}, false, Delivered{3, 3, 1}, false, false, false, false, "="},
	{"cut behind the usage", Stream, delta("a") + strings.TrimRight(extra, "\n"), tenAndFour, true, Delivered{1, 1, 1}, false, false, false, false, delta("a")},
	{"usage null to the end", Stream, delta("a") + stop + done, quota.Usage{}, false, Delivered{1, 1, 1}, true, true, false, false, "="},
	{
		"CRLF", Stream, strings.ReplaceAll(first+delta("é")+extra+done, "\n", "\r\n"), tenAndFour, true,
		Delivered{2, 1, 1},
		true, true, false, false,
		strings.ReplaceAll(first+delta("é")+done, "\n", "\r\n"),
	},
	{
		"CR", Stream, strings.ReplaceAll(first+delta("é")+extra+done, "\n", "\r"), tenAndFour, true,
		Delivered{2, 1, 1},
		true, true, false, false,
		strings.ReplaceAll(first+delta("é")+done, "\n", "\r"),
	},
	{"no space behind data", Stream, "data:{\"choices\":[],\"usage\":{\"total_tokens\":3,\"prompt_tokens\":1}}\n\n", quota.Usage{Input: 1, Output: 2}, true, Delivered{}, false, false, false, false, ""},
	{"several data lines", Stream, "event: x\nid: 1\ndata: {\"choices\":\ndata: [],\ndata:  \"usage\":{\"prompt_tokens\":10,\ndata: \"completion_tokens\":4}}\n\n" + done, tenAndFour, true, Delivered{}, true, true, false, false, done},
	{
		"comments, between and within", Stream, ": keep-alive\n\n: again\n" + delta("a") + ":\n\n\n\n: x\nid: 7\n: y\n" + extra, tenAndFour, true,
		Delivered{1, 1, 1},
		false, false, false, false,
		": keep-alive\n\n: again\n" + delta("a") + ":\n\n\n\n: x\n",
	},
	{"byte order mark", Stream, "\ufeff" + extra, tenAndFour, true, Delivered{}, false, false, false, false, ""},
	{
		"other fields", Stream, "datas: {\"usage\":{\"prompt_tokens\":1}}\ndat: 1\ndata\nretry: 5\nlongfieldname: 1\n\n" + extra, tenAndFour, true,
		Delivered{},
		false, false, false, false,
		"datas: {\"usage\":{\"prompt_tokens\":1}}\ndat: 1\ndata\nretry: 5\nlongfieldname: 1\n\n",
	},
	{"usage with a choice", Stream, `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":4}}` + "\n\n" + done, tenAndFour, true, Delivered{1, 1, 1}, true, true, false, false, "="},
	{"usage before the choices", Stream, `data: {"usage":{"prompt_tokens":10,"completion_tokens":4},"choices":[{"delta":{"content":"a"}}]}` + "\n\n", tenAndFour, true, Delivered{1, 1, 1}, false, false, false, false, "="},
	{"choices null", Stream, `data: {"choices":null,"usage":{"prompt_tokens":10,"completion_tokens":4}}` + "\n\n", tenAndFour, true, Delivered{}, false, false, false, false, ""},
	{"no choices at all", Stream, `data: {"usage":{"prompt_tokens":10,"completion_tokens":4},"object":"x"}` + "\n\n", tenAndFour, true, Delivered{}, false, false, false, false, ""},
	{
		"empty choices without usage", Stream, `data: {"choices":[],"usage":null,"prompt_filter_results":[{"a":{}}]}` + "\n\n" + extra, tenAndFour, true,
		Delivered{},
		false, false, false, false,
		`data: {"choices":[],"usage":null,"prompt_filter_results":[{"a":{}}]}` + "\n\n",
	},
	{
		"usage on every chunk: the last one counts", Stream,
		`data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":10,"completion_tokens":1}}` + "\n\n" +
			`data: {"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":10,"completion_tokens":4}}` + "\n\n" +
			`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}` + "\n\n", tenAndFour, true,
		Delivered{2, 2, 2},
		true, false, false, false, "=",
	},
	{"usage twice", Stream, extra + extra, tenAndFour, true, Delivered{}, false, false, false, false, ""},
	{"usage behind [DONE]", Stream, delta("a") + done + extra, tenAndFour, true, Delivered{1, 1, 1}, true, true, false, false, delta("a") + done},
	{"zeros are zeros", Stream, `data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}` + "\n\n", quota.Usage{}, true, Delivered{}, false, false, false, false, ""},
	{
		"an unfinished usage does not replace a whole one", Stream, extra + `data: {"choices":[],"usage":{"prompt_tokens":99,`, tenAndFour, true,
		Delivered{},
		false, false, false, false,
		`data: {"choices":[],"usage":{"prompt_tokens":99,`,
	},
	{"error event first", Stream, `data: {"error":{"message":"no","code":500}}` + "\n\n" + done, quota.Usage{}, false, Delivered{}, true, true, true, true, "="},
	{"error event last", Stream, delta("a") + `data: {"error":{"message":"no"}}` + "\n\n", quota.Usage{}, false, Delivered{1, 1, 1}, false, false, false, true, "="},
	{"error null is none", Stream, `data: {"error":null,"choices":[{"delta":{"content":"a"}}]}` + "\n\n", quota.Usage{}, false, Delivered{1, 1, 1}, false, false, false, false, "="},
	{"several choices", Stream, `data: {"choices":[{"index":0,"delta":{"content":"ab"}},{"index":1,"delta":{"content":"c"}}]}` + "\n\n" + `data: {"choices":[{"index":1,"delta":{"content":"d"}}]}` + "\n\n", quota.Usage{}, false, Delivered{4, 4, 3}, false, false, false, false, "="},
	{"arguments of tools", Stream, `data: {"choices":[{"delta":{"content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}` + "\n\n", quota.Usage{}, false, Delivered{8, 8, 2}, false, false, false, false, "="},
	{"escapes", Stream, delta(`\u0041\u00e9\u4f60\ud83d\ude00\n\"\\`), quota.Usage{}, false, Delivered{1 + 2 + 3 + 4 + 3, 7, 1}, false, false, false, false, "="},
	{"characters of many bytes", Stream, delta("你好😀"), quota.Usage{}, false, Delivered{10, 3, 1}, false, false, false, false, "="},
	{"text elsewhere is none", Stream, `data: {"content":"xx","choices":[{"delta":{"role":"assistant"},"logprobs":{"content":[{"token":"yy"}]}}],"x":{"content":"zz"}}` + "\n\n", quota.Usage{}, false, Delivered{}, false, false, false, false, "="},
	{"usage elsewhere is none", Stream, `data: {"x":{"usage":{"prompt_tokens":1}},"choices":[{"usage":{"prompt_tokens":1},"delta":{"content":"{\"usage\":{\"prompt_tokens\":1}}"}}]}` + "\n\n", quota.Usage{}, false, Delivered{29, 29, 1}, false, false, false, false, "="},
	{
		"no JSON", Stream, "data: hello {\"usage\":{}}\n\ndata: {]}\n\ndata: }\n\ndata: \n\n" + extra, tenAndFour, true,
		Delivered{},
		false, false, false, false,
		"data: hello {\"usage\":{}}\n\ndata: {]}\n\ndata: }\n\ndata: \n\n",
	},
	{"spaces in the JSON", Stream, "data:   { \"choices\" : [ ] ,\t\"usage\" : { \"prompt_tokens\" : 10 , \"completion_tokens\" : 4 } }  \n\n", tenAndFour, true, Delivered{}, false, false, false, false, ""},
	{"JSON answer", JSON, `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}}`, tenAndFour, true, Delivered{5, 5, 1}, true, false, false, false, "="},
	{"JSON answer, sniffed", Unknown, " \r\n" + `{"usage":{"prompt_tokens":10,"completion_tokens":4},"choices":[]}` + "\n", tenAndFour, true, Delivered{}, false, false, false, false, "="},
	{"stream, sniffed", Unknown, delta("a") + extra + done, tenAndFour, true, Delivered{1, 1, 1}, true, true, false, false, delta("a") + done},
	{"JSON error", JSON, `{"error":{"message":"no","type":"x"}}`, quota.Usage{}, false, Delivered{}, false, false, true, true, "="},
	{"JSON without usage", JSON, `{"choices":[{"message":{"content":"Hello"}}]}`, quota.Usage{}, false, Delivered{5, 5, 1}, false, false, false, false, "="},
	{"nothing", Stream, "", quota.Usage{}, false, Delivered{}, false, false, false, false, "="},
}

func (s *stream) check(t *testing.T, m *Meter, how string) {
	t.Helper()
	usage, ok := m.Usage()
	got := stream{s.name, s.kind, s.bytes, usage, ok, m.Delivered(), m.Ended(), m.Done(), m.Failed(), m.ErrorSeen(), s.stripped}
	if got != *s {
		t.Fatalf("%s, %s:\n got %+v\nwant %+v", s.name, how, got, *s)
	}
}

func TestMeterWithEverySplit(t *testing.T) {
	for i := range corpus {
		s := &corpus[i]
		m := NewMeter(s.kind)
		_, _ = m.Write([]byte(s.bytes))
		s.check(t, m, "whole")
		for cut := range len(s.bytes) {
			m.Reset(s.kind)
			_, _ = m.Write([]byte(s.bytes[:cut]))
			_, _ = m.Write([]byte(s.bytes[cut:]))
			s.check(t, m, fmt.Sprintf("cut at %d", cut))
		}
		for step := 1; step <= 7; step++ {
			m.Reset(s.kind)
			for rest := s.bytes; rest != ""; {
				n := min(step, len(rest))
				_, _ = m.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			s.check(t, m, fmt.Sprintf("in pieces of %d", step))
		}
	}
}

func TestStripWithEverySplit(t *testing.T) {
	for i := range corpus {
		s := &corpus[i]
		want := s.stripped
		if want == "=" {
			want = s.bytes
		}
		run := func(how string, pieces ...string) {
			m := NewMeter(s.kind)
			var got []byte
			for _, p := range pieces {
				got = m.Strip(got, []byte(p))
			}
			got = m.Flush(got)
			require.Equal(t, want, string(got), "%s, %s", s.name, how)
			s.check(t, m, how)
		}
		run("whole", s.bytes)
		for cut := range len(s.bytes) {
			run(fmt.Sprintf("cut at %d", cut), s.bytes[:cut], s.bytes[cut:])
		}
		bytes := make([]string, len(s.bytes))
		for i := range bytes {
			bytes[i] = s.bytes[i : i+1]
		}
		run("byte by byte", bytes...)
	}
}

func TestStripHoldsNoWholeEventAndNoKnownOne(t *testing.T) {
	m := NewMeter(Stream)
	for _, piece := range []string{
		first, delta("a") + delta("b"), ": keep-alive\n\n", ": keep", "-alive\n", "\n", done,
		`data: {"id":"c","choices":[{`, // from the first choice on the event is known to be ordinary
		`"delta":{"content":"x`, `yz`, `"}}]}`, "\n", "\n",
	} {
		assert.Equal(t, piece, string(m.Strip(nil, []byte(piece))))
	}
	assert.Empty(t, m.Strip(nil, []byte(`data: {"id":"c",`)), "may still be the extra chunk")
	assert.Equal(t, `data: {"id":"c","choices":[{`, string(m.Strip(nil, []byte(`"choices":[{`))))
	assert.Equal(t, `"delta":{}}]}`+"\n\n", string(m.Strip(nil, []byte(`"delta":{}}]}`+"\n\n"))))
	assert.Empty(t, m.Strip(nil, []byte(extra)))
}

func TestStripHoldsABoundedBegin(t *testing.T) {
	m := NewMeter(Stream)
	long := `data: {"id":"` + strings.Repeat("x", holdBytesMax)
	var got []byte
	for i := 0; i < len(long); i += 1000 {
		got = m.Strip(got, []byte(long[i:min(i+1000, len(long))]))
	}
	assert.Greater(t, len(got), holdBytesMax-1000)
	rest := `","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":4}}` + "\n\n"
	got = m.Strip(got, []byte(rest))
	assert.Equal(t, long+rest, string(got), "what is too long to hold passes")
	u, ok := m.Usage()
	assert.True(t, ok)
	assert.Equal(t, tenAndFour, u)
}

func TestLongLinesAreNotHeld(t *testing.T) {
	m := NewMeter(Stream)
	_, _ = m.Write([]byte(`data: {"choices":[{"delta":{"content":"`))
	piece := []byte(strings.Repeat("x", 64<<10))
	for range 160 { // 10 MB in one line
		_, _ = m.Write(piece)
	}
	_, _ = m.Write([]byte(`"}}]}` + "\n\n" + extra))
	s := stream{usage: tenAndFour, ok: true, delivered: Delivered{160 * 64 << 10, 160 * 64 << 10, 1}}
	s.check(t, m, "one long line")
	assert.Less(t, cap(m.scan.capture)+cap(m.scan.usage)+cap(m.held), usageBytesMax)
}

func TestUsageThatIsTooLongCountsAsNone(t *testing.T) {
	m := NewMeter(JSON)
	_, _ = m.Write([]byte(`{"usage":{"prompt_tokens":1,"x":"` + strings.Repeat("x", usageBytesMax) + `"}}`))
	_, ok := m.Usage()
	assert.False(t, ok)
	assert.LessOrEqual(t, cap(m.scan.capture), 2*usageBytesMax)
}

func TestUsage(t *testing.T) {
	none := quota.Usage{}
	for _, row := range []struct {
		raw  string
		want quota.Usage
		ok   bool
	}{
		{`{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920}}`, quota.Usage{Input: 86, CachedInput: 1920, Output: 300}, true},
		{`{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"completion_tokens_details":{"reasoning_tokens":40}}`, quota.Usage{Input: 100, Output: 50, Reasoning: 40}, true},
		{`{"prompt_tokens":100,"completion_tokens":10,"total_tokens":150}`, quota.Usage{Input: 100, Output: 50}, true},
		{`{"prompt_tokens":100,"completion_tokens":60,"total_tokens":150}`, quota.Usage{Input: 100, Output: 60}, true},
		{`{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":8,"cache_write_tokens":6}}`, quota.Usage{CachedInput: 8, CacheWrite: 6}, true},
		{`{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":99}}`, quota.Usage{CachedInput: 10}, true},
		{`{"prompt_tokens":10,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":2,"completion_tokens":1}`, quota.Usage{Input: 2, CachedInput: 8, Output: 1}, true},
		{`{"prompt_tokens":7,"total_tokens":7}`, quota.Usage{Input: 7}, true},
		{`{"completion_tokens":3,"total_tokens":10}`, quota.Usage{Input: 7, Output: 3}, true},
		{`{"prompt_tokens":7,"completion_tokens":null,"prompt_tokens_details":null}`, quota.Usage{Input: 7}, true},
		{`{"prompt_tokens":123.0,"completion_tokens":1e2}`, quota.Usage{Input: 123, Output: 100}, true},
		{`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, none, true},
		{`{}`, none, false},
		{`{"x":1}`, none, false},
		{`{"prompt_tokens":null}`, none, false},
	} {
		got, ok := parseUsage([]byte(row.raw))
		assert.Equal(t, row.ok, ok, row.raw)
		assert.Equal(t, row.want, got, row.raw)
	}
	for _, bad := range []string{"-1", "1.5", "1e30", "1e300", "9223372036854775808", `"5"`, "true", "[]", "{}", "1099511627777"} {
		for _, field := range []string{
			`"prompt_tokens":%s`, `"completion_tokens":%s`, `"prompt_tokens":1,"total_tokens":%s`,
			`"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":%s}`,
			`"prompt_tokens":1,"completion_tokens_details":{"reasoning_tokens":%s}`,
		} {
			_, ok := parseUsage(fmt.Appendf(nil, "{"+field+"}", bad))
			assert.False(t, ok, field, bad)
		}
	}
}

func TestKindOf(t *testing.T) {
	for value, want := range map[string]Kind{
		"text/event-stream": Stream, "Text/Event-Stream; charset=utf-8": Stream,
		"application/json": JSON, "application/problem+json;x": JSON, "": Unknown, "text/plain": Unknown,
	} {
		assert.Equal(t, want, KindOf([]byte(value)), value)
	}
}

func TestEstimate(t *testing.T) {
	assert.EqualValues(t, 0, Delivered{}.Tokens())
	assert.EqualValues(t, 64, Delivered{Bytes: 64 * 3, Pieces: 64}.Tokens())
	assert.EqualValues(t, 25, Delivered{Bytes: 100, Pieces: 1}.Tokens())
	assert.EqualValues(t, 1, Delivered{Bytes: 1}.Tokens())
}

func TestTap(t *testing.T) {
	for i := range corpus {
		s := &corpus[i]
		want := s.stripped
		if want == "=" {
			want = s.bytes
		}
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"plain": func(r io.Reader) io.Reader { return r }, "byte": iotest.OneByteReader, "half": iotest.HalfReader, "data with error": iotest.DataErrReader,
		} {
			m := NewMeter(s.kind)
			got, err := io.ReadAll(NewTap(wrap(strings.NewReader(s.bytes)), m, true))
			require.NoError(t, err)
			require.Equal(t, want, string(got), "%s, %s", s.name, name)
			s.check(t, m, name)

			m = NewMeter(s.kind)
			got, err = io.ReadAll(NewTap(wrap(strings.NewReader(s.bytes)), m, false))
			require.NoError(t, err)
			require.Equal(t, s.bytes, string(got), "a client that asked itself sees every byte")
			s.check(t, m, name)
		}
	}
	broken := errors.New("cut")
	tap := NewTap(io.MultiReader(strings.NewReader(delta("a")+`data: {"id`), iotest.ErrReader(broken)), NewMeter(Stream), true)
	got, err := io.ReadAll(tap)
	assert.Equal(t, broken, err)
	assert.Equal(t, delta("a")+`data: {"id`, string(got), "a cut event passes as far as it came")
}

func TestMeterAllocatesNothingPerEvent(t *testing.T) {
	events := []byte(first + delta("Hello, 世界 \\u4f60") + ": keep-alive\r\n\r\n" + stop +
		`data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":10,"completion_tokens":1}}` + "\n\n" + extra)
	for name, eat := range map[string]func(m *Meter, dst, p []byte) []byte{
		"Write": func(m *Meter, dst, p []byte) []byte { _, _ = m.Write(p); return dst },
		"Strip": func(m *Meter, dst, p []byte) []byte { return m.Strip(dst, p) },
	} {
		m := NewMeter(Stream)
		dst := make([]byte, 0, 2*len(events))
		allocs := testing.AllocsPerRun(100, func() {
			for i := 0; i < len(events); i += 37 {
				dst = eat(m, dst, events[i:min(i+37, len(events))])
			}
			dst = eat(m, dst[:0], events)[:0]
		})
		assert.Zero(t, allocs, name)
	}
}

func FuzzMeter(f *testing.F) {
	for i := range corpus {
		f.Add([]byte(corpus[i].bytes), uint8(i), uint8(corpus[i].kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, step, kind uint8) {
		k := Kind(kind % 3)
		whole := NewMeter(k)
		_, _ = whole.Write(b)
		want := whole.Flush(nil)
		require.Empty(t, want)
		stripWhole := NewMeter(k)
		want = stripWhole.Flush(stripWhole.Strip(nil, b))

		pieces, stripped := NewMeter(k), NewMeter(k)
		var got []byte
		for rest := b; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			_, _ = pieces.Write(rest[:n])
			got = stripped.Strip(got, rest[:n])
			rest = rest[n:]
		}
		got = stripped.Flush(got)
		require.Equal(t, string(want), string(got), "splits change nothing")
		for _, m := range []*Meter{pieces, stripped, stripWhole} {
			wu, wok := whole.Usage()
			mu, mok := m.Usage()
			require.Equal(t, wu, mu)
			require.Equal(t, wok, mok)
			require.Equal(t, whole.Delivered(), m.Delivered())
			require.Equal(t, [4]bool{whole.Ended(), whole.Done(), whole.Failed(), whole.ErrorSeen()}, [4]bool{m.Ended(), m.Done(), m.Failed(), m.ErrorSeen()})
			require.True(t, mu.Input >= 0 && mu.Output >= 0 && mu.CachedInput >= 0 && mu.CacheWrite >= 0 && mu.Reasoning >= 0)
		}
		d := whole.Delivered()
		require.True(t, d.Bytes >= 0 && d.Pieces >= 0 && d.Runes <= int64(len(b)) && d.Bytes <= 4*int64(len(b)))
	})
}

func BenchmarkMeter(b *testing.B) {
	event := []byte(delta("Hello"))
	m := NewMeter(Stream)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = m.Write(event)
	}
}

func BenchmarkStrip(b *testing.B) {
	event := []byte(delta("Hello"))
	m := NewMeter(Stream)
	dst := make([]byte, 0, 1024)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		dst = m.Strip(dst[:0], event)
	}
}
