#!/bin/bash
# need.sh COMMAND…: makes sure that the commands are on PATH. On Debian and Ubuntu it installs what is missing, as root or
# with sudo; elsewhere it says what to install and fails.
set -euo pipefail

package_of() {
	case $1 in
	nginx) echo nginx-light ;;
	*) echo "$1" ;;
	esac
}

missing=() packages=()
for command in "$@"; do
	if ! command -v "$command" >/dev/null; then
		missing+=("$command")
		packages+=("$(package_of "$command")")
	fi
done

if ((${#missing[@]})); then
	as_root=()
	if ((EUID != 0)); then
		as_root=(sudo)
	fi
	if ! command -v apt-get >/dev/null; then
		echo "missing: ${missing[*]}. Install with your system's package manager (Debian's names: ${packages[*]}), Redis in version 7.0 or later, then try again." >&2
		exit 1
	fi
	if ((EUID != 0)) && ! command -v sudo >/dev/null; then
		echo "missing: ${missing[*]}. Run as root: apt-get update && apt-get install -y ${packages[*]}" >&2
		exit 1
	fi
	echo "installing ${packages[*]}" >&2
	{
		"${as_root[@]}" apt-get update -qq
		"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
	} >&2
fi

for command in "$@"; do
	if [[ $command == redis-server ]]; then
		version=$(redis-server --version | sed -n 's/.*v=\([0-9]*\).*/\1/p')
		if ((${version:-0} < 7)); then
			echo "redis-server is version ${version:-unknown}; 7.0 or later is needed" >&2
			exit 1
		fi
	fi
done
