#!/bin/bash
# run.sh: a node to try: a private Redis, a fake upstream and tollgate, with a demo tenant, until Ctrl-C.
# Everything it writes is below .run; it stops what it has started and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
bash .ci/need.sh redis-server curl

for bin in tollgate tollctl tollbench; do
	if [[ ! -x bin/$bin ]]; then
		echo "bin/$bin is missing; run: make build" >&2
		exit 1
	fi
done

mkdir -p .run
dir=$(mktemp -d "$PWD/.run/demo.XXXXXX")
pids=()

# Children are stopped in the order node, upstream, Redis: the node still settles what is running.
stop() {
	trap - EXIT INT TERM
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill -TERM "${pids[i]}" 2>/dev/null || true
		wait "${pids[i]}" 2>/dev/null || true
	done
	rm -rf "$dir"
}
trap stop EXIT
trap 'echo; echo "stopping"; exit 0' INT TERM

apart=()
if command -v setsid >/dev/null; then
	apart=(setsid)
fi

# start NAME COMMAND…: in a process group of its own, so that Ctrl-C reaches this script first and the order above holds.
start() {
	local name=$1
	shift
	"${apart[@]}" "$@" >"$dir/$name.log" 2>&1 &
	pids+=($!)
}

fail() {
	echo "$1; its log:" >&2
	cat "$dir/$2.log" >&2
	exit 1
}

# await NAME COMMAND…: until the command succeeds; 20 s at most.
await() {
	local name=$1 deadline=$((SECONDS + 20))
	shift
	until "$@" >/dev/null 2>&1; do
		if ! kill -0 "${pids[-1]}" 2>/dev/null; then
			fail "$name ended" "$name"
		fi
		if ((SECONDS > deadline)); then
			fail "$name did not start" "$name"
		fi
		sleep 0.05
	done
}

used() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port FROM: the first port from there on that nobody listens on.
free_port() {
	local port=$1
	while used "$port"; do
		port=$((port + 1))
	done
	echo "$port"
}

redis_port=$(free_port 16379)
start redis redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$dir" --daemonize no --save '' --appendonly yes --maxmemory-policy noeviction
await redis used "$redis_port"

upstream_port=$(free_port 18081)
start upstream bin/tollbench upstream --listen "127.0.0.1:$upstream_port" --delay-chunk 40ms
await upstream used "$upstream_port"

port=$(free_port 8080)
admin_port=$(free_port 9090)
cat >"$dir/config.yaml" <<YAML
listen: 127.0.0.1:$port
admin: {listen: "127.0.0.1:$admin_port"}
data_dir: $dir/data
stores: {default: "redis://127.0.0.1:$redis_port/0"}
upstreams: {fake: {url: "http://127.0.0.1:$upstream_port", dialect: openai, timeout: 60s}}
routes: [{path: "/v1/*", upstream: fake}]
models: {"*": {max_output: 4096, price: {input: 1, output: 1}}}
YAML
unset TOLLGATE_ADMIN_TOKEN
export TOLLGATE_ADMIN="http://127.0.0.1:$admin_port"
start node bin/tollgate -config "$dir/config.yaml"
await node curl -fsS "http://127.0.0.1:$port/readyz"

bin/tollctl tenant create --id t_demo --name Demo --total 1000000 >"$dir/setup.log" || fail "tollctl tenant create failed" setup
bin/tollctl app create t_demo --id a_demo --name Demo >>"$dir/setup.log" || fail "tollctl app create failed" setup
key=$(bin/tollctl key create t_demo --app a_demo --name demo -o json | sed -n 's/.*"secret": *"\([^"]*\)".*/\1/p')

cat <<TEXT

tollgate is running: a node on port $port, its admin API on $admin_port, a fake upstream and a private Redis.
Logs and data are in ${dir#"$PWD"/} until you stop it.

Demo key, with a million credits at one credit per token:
  $key

A chat completion:
  curl http://127.0.0.1:$port/v1/chat/completions -H 'Authorization: Bearer $key' -d '{"model":"fake","max_tokens":20,"messages":[{"role":"user","content":"hello"}]}'

The same as a stream:
  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Authorization: Bearer $key' -d '{"model":"fake","max_tokens":20,"stream":true,"messages":[{"role":"user","content":"hello"}]}'

What was charged:
  TOLLGATE_ADMIN=$TOLLGATE_ADMIN bin/tollctl usage t_demo

Ctrl-C stops all of it.
TEXT

# The node is the last of pids. If any of them ends, the rest has no use.
wait -n "${pids[@]}" || true
echo "one of the processes ended" >&2
tail -n 5 "$dir"/*.log >&2
exit 1
