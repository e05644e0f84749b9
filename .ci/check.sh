#!/bin/bash
# check.sh: everything that must be true of the source besides its tests. All checks run; the failed ones are named at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()

# quiet NAME COMMAND…: the command must succeed and print nothing. Its standard error (downloads) is shown only if it fails.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
quiet() {
	local name=$1 out
	shift
	if ! out=$("$@" 2>"$errors") || [[ -n $out ]]; then
		printf -- '--- %s\n%s\n' "$name" "$out"
		cat "$errors"
		failed+=("$name")
	fi
}

tool() { go tool -modfile=.ci/tools/go.mod "$@"; }

quiet gofumpt tool gofumpt -l .
quiet vet go vet ./...
quiet staticcheck tool staticcheck ./...
quiet 'go fix' go fix -diff ./...
quiet 'go mod tidy' go mod tidy -diff
quiet 'go mod tidy (tools)' go -C .ci/tools mod tidy -diff
quiet 'vet (tools)' go -C .ci/tools vet ./...

if ((${#failed[@]})); then
	printf 'check: failed:'
	printf ' %s;' "${failed[@]}"
	echo
	exit 1
fi
echo 'check: all good'
