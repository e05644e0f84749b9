package tokens

// trie finds the longest token that a text begins with. The children of a node lie together, in the
// order of their bytes, and near to those of the nodes before and behind.
type trie struct {
	nodes   []node
	labels  []byte   // of each node, the byte that leads to it
	pairs   []uint32 // the node of two bytes, by first<<8 | second
	singles [256]uint32
}

type node struct {
	token    uint32 // none for a mere prefix
	children uint32 // number << childBits | the first one
}

const childBits = 22

// longest is the longest token that text[from:to] begins with.
func (t *trie) longest(text []byte, from, to int) uint32 {
	best := t.singles[text[from]]
	if to-from == 1 {
		return best
	}
	at := t.pairs[int(text[from])<<8|int(text[from+1])]
	for i := from + 2; at != none; i++ {
		n := t.nodes[at]
		if n.token != none {
			best = n.token
		}
		if i == to || n.children == 0 {
			break
		}
		at = t.child(n.children, text[i])
	}
	return best
}

// child is the one of the given children that b leads to, or none.
func (t *trie) child(children uint32, b byte) uint32 {
	lo := children & (1<<childBits - 1)
	hi := lo + children>>childBits
	for hi-lo > 8 {
		if mid := lo + (hi-lo)/2; t.labels[mid] <= b {
			lo = mid
		} else {
			hi = mid
		}
	}
	for i, label := range t.labels[lo:hi] {
		if label == b {
			return lo + uint32(i)
		}
	}
	return none
}

// walk collects the nodes of a trie depth first.
type walk struct {
	token, parent, number []uint32 // number of children
	label                 []byte
	path                  [256]uint32 // the nodes of the token before, by depth
}

func newWalk(nodes int) *walk {
	w := &walk{
		token: make([]uint32, 1, nodes), parent: make([]uint32, 1, nodes),
		number: make([]uint32, 1, nodes), label: make([]byte, 1, nodes),
	}
	w.token[0] = none
	return w
}

// at is the token of the given length that the token before begins with.
func (w *walk) at(length int) uint32 { return w.token[w.path[length]] }

// above is the longest token of at most the given length that the token before begins with.
func (w *walk) above(length int) uint32 {
	for length > 0 && w.at(length) == none {
		length--
	}
	return w.at(length)
}

// add appends the nodes of a token beyond the bytes it shares with the one before.
func (w *walk) add(shared int, bytes []byte, rank uint32) {
	for depth := shared; depth < len(bytes); depth++ {
		w.number[w.path[depth]]++
		w.path[depth+1] = uint32(len(w.token))
		w.token = append(w.token, none)
		w.parent = append(w.parent, w.path[depth])
		w.number = append(w.number, 0)
		w.label = append(w.label, bytes[depth])
	}
	w.token[w.path[len(bytes)]] = rank
}

// trie lays the nodes out.
func (w *walk) trie() trie {
	t := trie{nodes: make([]node, len(w.token)), labels: make([]byte, len(w.token)), pairs: make([]uint32, 1<<16)}
	for i := range t.pairs {
		t.pairs[i] = none
	}
	place := make([]uint32, len(w.token))
	free := make([]uint32, len(w.token)) // where the next child of a node goes
	next := uint32(1)
	for i := range w.token {
		parent := w.parent[i]
		if i > 0 {
			place[i] = free[parent]
			free[parent]++
		}
		t.nodes[place[i]] = node{token: w.token[i]}
		t.labels[place[i]] = w.label[i]
		if w.number[i] > 0 {
			t.nodes[place[i]].children = w.number[i]<<childBits | next
			free[i] = next
			next += w.number[i]
		}
		switch {
		case i > 0 && parent == 0:
			t.singles[w.label[i]] = w.token[i]
		case parent != 0 && w.parent[parent] == 0:
			t.pairs[int(w.label[parent])<<8|int(w.label[i])] = place[i]
		}
	}
	return t
}
