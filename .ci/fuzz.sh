#!/bin/bash
# fuzz.sh TIME: runs every fuzz function of the project for TIME, one after the other, and names those that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
time=${1:?usage: fuzz.sh TIME}

failed=()
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
	if ! list=$(go test -list '^Fuzz' "$package"); then
		echo "$list"
		failed+=("$package")
		continue
	fi
	for function in $(grep '^Fuzz' <<<"$list"); do
		echo "== $package $function"
		go test -run '^$' -fuzz "^$function\$" -fuzztime "$time" -fuzzminimizetime 10x "$package" || failed+=("$package $function")
	done
done

if ((${#failed[@]})); then
	printf 'fuzz: failed: %s\n' "${failed[@]}"
	exit 1
fi
echo 'fuzz: nothing found'
