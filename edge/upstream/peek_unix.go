//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package upstream

import "syscall"

const canPeek = true

// peek looks at the next byte without taking it and without waiting.
func peek(fd uintptr) peekResult {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return peekNothing
		case err != nil || n == 0:
			return peekGone
		}
		return peekData
	}
}
