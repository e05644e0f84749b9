// Package tokens is x.
package tokens
