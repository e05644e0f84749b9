//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package upstream

// Without MSG_PEEK connections are not used again and Watch never fires.
const canPeek = false

func peek(uintptr) peekResult { return peekGone }
