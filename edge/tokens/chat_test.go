package tokens

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fastjson"
)

// The example of the recipe that the numbers are from: six messages, four of them with a name.
func TestChatOverhead(t *testing.T) {
	messages := []struct{ role, name, content string }{
		{"system", "", "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
		{"system", "example_user", "New synergies will help drive top-line growth."},
		{"system", "example_assistant", "Things working well together will increase revenue."},
		{"system", "example_user", "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
		{"system", "example_assistant", "Let's talk later when we're less busy about how to do better."},
		{"user", "", "This late pivot means we don't have time to boil the ocean for the client deliverable."},
	}
	for name, want := range map[string]int64{"cl100k": 129, "o200k": 124} { // as the recipe prints for gpt-4 and gpt-4o
		c := named(t, name).Counter(math.MaxInt64, StepsMax)
		names := 0
		for _, m := range messages {
			c.Add([]byte(m.content))
			c.Add([]byte(m.name))
			if m.name != "" {
				names++
			}
		}
		require.Equal(t, want, c.Tokens()+ChatOverhead(len(messages), names), name)
	}
}

func TestRolesAreOneToken(t *testing.T) {
	for name := range references {
		for _, role := range []string{"system", "developer", "user", "assistant", "tool", "function"} {
			require.EqualValues(t, roleTokens, exact(t, named(t, name), role), "%s, %s", name, role)
		}
	}
}

// recipe counts tools as OpenAI's recipe does.
func recipe(t *testing.T, v *Vocabulary, functionTokens int64, tools *fastjson.Value) int64 {
	n := int64(0)
	for _, tool := range tools.GetArray() {
		f := tool.Get("function")
		n += functionTokens
		n += exact(t, v, string(f.GetStringBytes("name"))+":"+strings.TrimSuffix(string(f.GetStringBytes("description")), "."))
		properties := f.GetObject("parameters", "properties")
		if properties == nil || properties.Len() == 0 {
			continue
		}
		n += 3
		properties.Visit(func(key []byte, p *fastjson.Value) {
			n += 3
			if p.Exists("enum") {
				n -= 3
				for _, item := range p.GetArray("enum") {
					n += 3 + exact(t, v, string(item.GetStringBytes()))
				}
			}
			n += exact(t, v, string(key)+":"+string(p.GetStringBytes("type"))+":"+strings.TrimSuffix(string(p.GetStringBytes("description")), "."))
		})
	}
	return n + 12
}

func TestToolsAreNotBelowTheRecipe(t *testing.T) {
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf("%q", string(rune('a'+i%26)))
	}
	for _, tools := range []string{
		`[{"type":"function","function":{"name":"tide","description":"When is high water at a harbour?","parameters":{"type":"object","properties":{"harbour":{"type":"string","description":"The harbour's name, such as Oban"},"unit":{"type":"string","description":"Of heights","enum":["metres","feet"]}},"required":["harbour"]}}}]`,
		`[{"type":"function","function":{"name":"f"}}]`,
		`[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}},{"type":"function","function":{"name":"g","description":"."}}]`,
		`[{"type":"function","function":{"name":"pick","parameters":{"type":"object","properties":{"x":{"enum":[` + strings.Join(many, ",") + `]}}}}}]`,
		`[{"type":"function","function":{"name":"p","parameters":{"type":"object","properties":{"a":{},"b":{},"c":{},"d":{},"e":{},"f":{},"g":{},"h":{}}}}}]`,
	} {
		v := fastjson.MustParse(tools)
		for name, function := range map[string]int64{"o200k": 7, "cl100k": 10} {
			c := named(t, name).Counter(math.MaxInt64, StepsMax)
			c.AddTools(v)
			want := recipe(t, named(t, name), function, v)
			require.GreaterOrEqual(t, c.Tokens(), want, "%s, %.80s", name, tools)
			require.LessOrEqual(t, c.Tokens(), 3*want, "%s, %.80s", name, tools)
			require.False(t, c.Exact())
		}
	}
	c := named(t, "o200k").Counter(10, StepsMax)
	c.AddTools(nil)
	c.AddTools(fastjson.MustParse(`[]`))
	require.Zero(t, c.Tokens())
}

func TestImageTokens(t *testing.T) {
	for _, c := range []struct {
		model  string
		w, h   int
		detail Detail
		want   int64
	}{
		// The documentation's own examples.
		{"gpt-4o", 1024, 1024, DetailHigh, 765},
		{"gpt-4o", 2048, 4096, DetailHigh, 1105},
		{"gpt-4o-2024-11-20", 4096, 8192, DetailLow, 85},
		// Smaller than a tile; and so long that the first step decides.
		{"gpt-4.1", 10, 10, DetailHigh, 255},
		{"gpt-4o", 100_000, 100, DetailHigh, 85 + 4*170},
		{"gpt-4o", 512, 513, DetailHigh, 85 + 2*170},
		// Unknown sizes: 2048 by 768.
		{"gpt-4o", 0, 0, DetailHigh, 85 + 8*170},
		{"gpt-4o", 640, 0, DetailOriginal, 85 + 8*170},
		{"gpt-4o", 0, 0, DetailLow, 85},
		{"gpt-4o-mini", 0, 0, DetailHigh, 2833 + 8*5667},
		{"gpt-5", 1024, 1024, DetailHigh, 70 + 4*140},
		{"o3", 1024, 1024, DetailHigh, 75 + 4*150},
		{"o1-pro", 0, 0, DetailLow, 75},
		// By patches: 32 × 32 of them, times 1.62; then the most.
		{"gpt-4.1-mini", 1024, 1024, DetailHigh, 1659},
		{"gpt-4.1-nano-2025-04-14", 1800, 2400, DetailHigh, 3779},
		{"o4-mini", 33, 32, DetailLow, 4},
		{"gpt-5-mini", 0, 0, DetailHigh, 2489},
		{"gpt-5.4", 0, 0, DetailHigh, 3000},
		{"gpt-5.4", 0, 0, DetailOriginal, 12_000},
		{"gpt-5.4-mini", 0, 0, DetailOriginal, 2489},
		// Others: the same for each image.
		{"another-model", 32, 32, DetailHigh, 3779},
		{"", -1, 1 << 40, DetailHigh, 3779},
	} {
		require.Equal(t, c.want, ImageTokens(c.model, c.w, c.h, c.detail), "%s, %d × %d, %d", c.model, c.w, c.h, c.detail)
	}
	require.Equal(t, DetailLow, DetailNamed("low"))
	require.Equal(t, DetailOriginal, DetailNamed("original"))
	require.Equal(t, DetailHigh, DetailNamed("auto"))
}

// What is known of a size never costs more than the bound for none.
func TestUnknownSizeIsTheDearest(t *testing.T) {
	for _, r := range imageRules {
		for _, detail := range []Detail{DetailHigh, DetailLow, DetailOriginal} {
			most := r.tokens(0, 0, detail)
			for w := int64(1); w < 9000; w += 197 {
				for h := int64(1); h < 9000; h += 189 {
					if got := r.tokens(w, h, detail); got > most {
						t.Fatalf("%+v, %d × %d: %d, more than %d", r, w, h, got, most)
					}
				}
			}
		}
	}
}

func TestDataImageSize(t *testing.T) {
	picture := image.NewGray(image.Rect(0, 0, 321, 123))
	encode := map[string]func(b *bytes.Buffer) error{
		"png":  func(b *bytes.Buffer) error { return png.Encode(b, picture) },
		"jpeg": func(b *bytes.Buffer) error { return jpeg.Encode(b, picture, nil) },
		"gif":  func(b *bytes.Buffer) error { return gif.Encode(b, picture, nil) },
	}
	webp := func(chunk string, head ...byte) []byte {
		return append([]byte("RIFF\x00\x00\x00\x00WEBP"+chunk+"\x00\x00\x00\x00"), append(head, make([]byte, 16)...)...)
	}
	heads := map[string][]byte{
		"webp, extended": webp("VP8X", 0, 0, 0, 0, 0x40, 0x01, 0x00, 0x7a, 0, 0),
		"webp, lossless": webp("VP8L", 0x2f, 0x40, 0x81, 0x1e, 0x00),
		"webp, lossy":    webp("VP8 ", 0, 0, 0, 0x9d, 0x01, 0x2a, 0x41, 0x01, 0x7b, 0x00),
	}
	for kind, write := range encode {
		var b bytes.Buffer
		require.NoError(t, write(&b))
		heads[kind] = b.Bytes()
	}
	for kind, head := range heads {
		w, h := DataImageSize([]byte("data:image/any;base64," + base64.StdEncoding.EncodeToString(head)))
		require.Equal(t, [2]int{321, 123}, [2]int{w, h}, kind)
		for n := range min(len(head), 64) {
			w, h = DataImageSize([]byte("data:image/any;base64," + base64.StdEncoding.EncodeToString(head[:n])))
			require.True(t, w == 0 && h == 0 || w == 321 && h == 123, "%s, %d bytes", kind, n)
		}
	}
	for _, url := range []string{"", "https://a.example/b.png", "data:,x", "data:image/png;base64,", "data:image/png;base64,%%%%", "data:;base64,iVBORw0K"} {
		w, h := DataImageSize([]byte(url))
		require.Zero(t, w, url)
		require.Zero(t, h, url)
	}
}

func TestSlots(t *testing.T) {
	s := NewSlots(2)
	require.True(t, s.Try())
	require.True(t, s.Try())
	require.False(t, s.Try())
	s.Release()
	select {
	case s.Wait() <- struct{}{}:
	default:
		t.Fatal("a slot is free")
	}
	require.False(t, s.Try())
	s.Release()
	s.Release()
	require.Panics(t, s.Release)
	require.True(t, NewSlots(0).Try())
}
