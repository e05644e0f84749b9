package lua

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
)

//go:embed *.lua lib/*.lua
var sources embed.FS

// script is one .lua file put together with the fragments it names.
type script struct {
	name string
	body string
	exec *rueidis.Lua
}

var (
	reserveScript = newScript("reserve")
	settleScript  = newScript("settle")
	releaseScript = newScript("release")
	accountScript = newScript("account")
	publishScript = newScript("publish")
	bucketScript  = newScript("bucket")

	scripts = []*script{reserveScript, settleScript, releaseScript, accountScript, publishScript, bucketScript}

	// ScriptsHash names the content of all scripts; nodes of one hash run the same protocol.
	ScriptsHash = hashScripts()
)

func newScript(name string) *script {
	body := assemble(name)
	return &script{name: name, body: body, exec: rueidis.NewLuaScript(body)}
}

// assemble replaces the line "-- include: a b" of a script by lib/a.lua and lib/b.lua,
// and drops the comments: Redis keeps and hashes what it is sent.
func assemble(name string) string {
	var out strings.Builder
	for line := range strings.Lines(source(name + ".lua")) {
		names, isInclude := strings.CutPrefix(strings.TrimSpace(line), "-- include: ")
		if !isInclude {
			writeCode(&out, line)
			continue
		}
		for lib := range strings.FieldsSeq(names) {
			for part := range strings.Lines(source("lib/" + lib + ".lua")) {
				writeCode(&out, part)
			}
		}
	}
	return out.String()
}

func writeCode(out *strings.Builder, line string) {
	if code := strings.TrimSpace(line); code != "" && !strings.HasPrefix(code, "--") {
		out.WriteString(line)
	}
}

func source(path string) string {
	data, err := sources.ReadFile(path)
	if err != nil {
		panic("BUG: lua: missing embedded file " + path)
	}
	return string(data)
}

func hashScripts() string {
	sum := sha256.New()
	for _, s := range scripts {
		fmt.Fprintf(sum, "%s\n%s\n", s.name, s.body)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}
