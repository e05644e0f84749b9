//go:build !linux

package main_test

import "syscall"

// dieWithParent can do nothing here: the child ends by the test's cleanup alone.
func dieWithParent() *syscall.SysProcAttr { return nil }
