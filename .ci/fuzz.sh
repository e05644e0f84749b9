#!/bin/bash
# fuzz.sh TIME: runs every fuzz function of the project for TIME, one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:?usage: fuzz.sh TIME}

go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r package; do
	go test -list '^Fuzz' "$package" | grep '^Fuzz' | while read -r function; do
		echo "== $package $function"
		go test -run '^$' -fuzz "^$function\$" -fuzztime "$time" -fuzzminimizetime 10x "$package" </dev/null
	done || [[ $? == 1 ]] # a package without fuzz functions
done
