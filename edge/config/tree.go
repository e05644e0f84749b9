package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of a document; larger ones are refused with an error.
const (
	depthMax = 32
	nodesMax = 100_000
)

type kind uint8

const (
	null kind = iota
	scalar
	list
	mapping
)

// node is what YAML and JSON have in common. Scalars keep their text, so that decimals stay exact.
type node struct {
	kind   kind
	text   string
	keys   []string // of a mapping, in the file's order, beside values
	values []*node  // of a mapping or a list
	line   int      // 0: unknown
}

var (
	errDepth = fmt.Errorf("nested deeper than %d levels", depthMax)
	errNodes = fmt.Errorf("more than %d values", nodesMax)
)

// parseYAML reads one document. Anchors and aliases work within it; tags and merge keys are refused.
func parseYAML(data []byte) (*node, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, errors.New(yaml.FormatError(err, false, false)) // without the source, which may hold a password
	}
	docs := file.Docs
	if len(docs) > 1 {
		return nil, errors.New("more than one YAML document")
	}
	if len(docs) == 0 || docs[0].Body == nil {
		return &node{}, nil
	}
	y := yamlReader{anchors: map[string]*node{}}
	return y.read(docs[0].Body, 0)
}

type yamlReader struct {
	anchors map[string]*node
	nodes   int
}

func (y *yamlReader) read(n ast.Node, depth int) (*node, error) {
	if y.nodes++; y.nodes > nodesMax {
		return nil, errNodes
	}
	if depth > depthMax {
		return nil, errDepth
	}
	out := &node{}
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		out.line = tok.Position.Line
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return out, nil
	case *ast.MappingNode:
		return out, y.pairs(out, n.Values, depth)
	case *ast.MappingValueNode:
		return out, y.pairs(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.kind = list
		for _, v := range n.Values {
			child, err := y.read(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.values = append(out.values, child)
		}
		return out, nil
	case *ast.AnchorNode:
		child, err := y.read(n.Value, depth+1)
		if err == nil {
			y.anchors[n.Name.GetToken().Value] = child
		}
		return child, err
	case *ast.AliasNode:
		target, ok := y.anchors[n.Value.GetToken().Value]
		if !ok {
			return nil, fmt.Errorf("line %d: alias without an anchor before it", out.line)
		}
		return target, nil
	case *ast.StringNode:
		out.kind, out.text = scalar, n.Value
		return out, nil
	case *ast.LiteralNode:
		out.kind, out.text = scalar, n.Value.Value
		return out, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		out.kind, out.text = scalar, n.GetToken().Value
		return out, nil
	}
	return nil, fmt.Errorf("line %d: %s is not supported here", out.line, n.Type())
}

func (y *yamlReader) pairs(out *node, pairs []*ast.MappingValueNode, depth int) error {
	out.kind = mapping
	for _, p := range pairs {
		key, err := y.read(p.Key, depth+1)
		if err != nil {
			return err
		}
		if key.kind != scalar {
			return fmt.Errorf("line %d: a field's name must be plain text", key.line)
		}
		value, err := y.read(p.Value, depth+1)
		if err != nil {
			return err
		}
		if value.line == 0 {
			value.line = key.line
		}
		if err := out.add(key.text, value); err != nil {
			return fmt.Errorf("line %d: %w", key.line, err)
		}
	}
	return nil
}

func (n *node) add(key string, value *node) error {
	if slices.Contains(n.keys, key) {
		return fmt.Errorf("%q is there twice", key)
	}
	n.keys = append(n.keys, key)
	n.values = append(n.values, value)
	return nil
}

// parseJSON reads one value and nothing behind it.
func parseJSON(data []byte) (*node, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	nodes := 0
	root, err := readJSON(dec, &nodes, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not one JSON value")
	}
	return root, nil
}

func readJSON(dec *json.Decoder, nodes *int, depth int) (*node, error) {
	if *nodes++; *nodes > nodesMax {
		return nil, errNodes
	}
	if depth > depthMax {
		return nil, errDepth
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, errors.New("not JSON")
	}
	out := &node{kind: scalar}
	switch tok := tok.(type) {
	case nil:
		out.kind = null
	case string:
		out.text = tok
	case json.Number:
		out.text = tok.String()
	case bool:
		out.text = fmt.Sprint(tok)
	case json.Delim:
		out.kind = list
		if tok == '{' {
			out.kind = mapping
		}
		for dec.More() {
			key := json.Token("")
			if out.kind == mapping {
				if key, err = dec.Token(); err != nil {
					return nil, errors.New("not JSON")
				}
			}
			child, err := readJSON(dec, nodes, depth+1)
			if err != nil {
				return nil, err
			}
			if out.kind == list {
				out.values = append(out.values, child)
			} else if err := out.add(key.(string), child); err != nil {
				return nil, err
			}
		}
		if _, err := dec.Token(); err != nil { // the closing bracket
			return nil, errors.New("not JSON")
		}
	}
	return out, nil
}
