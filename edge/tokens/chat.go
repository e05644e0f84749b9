package tokens

import "github.com/valyala/fastjson"

// What OpenAI's chat format adds, after the recipe "How to count tokens with tiktoken" in the OpenAI
// Cookbook, for all models since gpt-3.5-turbo-0613.
const (
	messageTokens = 3 // begin and end of a message
	roleTokens    = 1 // each of the roles' names is one token of either vocabulary
	nameTokens    = 1 // of a message that has a name, besides the name itself
	replyTokens   = 3 // lead the reply
)

// What the same recipe adds for functions. It describes their rendering, which OpenAI does not publish;
// the numbers are the larger ones of the two vocabularies.
const (
	functionTokens = 10
	toolsTokens    = 12
	enumItemTokens = 3
)

// ChatOverhead is what a chat's format adds to the tokens of its texts, for the given number of messages,
// and of those among them that have a name.
func ChatOverhead(messages, names int) int64 {
	return int64(messages)*(messageTokens+roleTokens) + int64(names)*nameTokens + replyTokens
}

// AddTools counts the definitions of tools or functions, the value of tools or functions in a request.
//
// The model is shown a shorter form than the JSON: without quotes and braces, and schemas as types. The
// recipe has a number for each function, property and item of an enum besides their texts. The sum of the
// JSON's tokens and of those numbers is not below what the recipe comes to, and up to three times that
// for definitions with few words.
func (c *Counter) AddTools(tools *fastjson.Value) {
	items := tools.GetArray()
	if len(items) == 0 {
		return
	}
	c.bounded = true
	c.Add(tools.MarshalTo(nil))
	c.tokens += toolsTokens + int64(len(items))*functionTokens + schemaTokens(tools)
}

// schemaTokens is what the items of enums add beyond their JSON.
func schemaTokens(v *fastjson.Value) (n int64) {
	switch v.Type() {
	case fastjson.TypeArray:
		for _, item := range v.GetArray() {
			n += schemaTokens(item)
		}
	case fastjson.TypeObject:
		v.GetObject().Visit(func(key []byte, member *fastjson.Value) {
			if string(key) == "enum" {
				n += enumItemTokens * int64(len(member.GetArray()))
			}
			n += schemaTokens(member)
		})
	}
	return n
}
