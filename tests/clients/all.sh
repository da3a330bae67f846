#!/bin/sh
# Runs all scripts against servers with one and with two tokenizer-managers,
# without keys and with those of clients and operators.
#
#   cargo build --release
#   PYTHON=venv/bin/python tests/clients/all.sh target/release/lockstep [PORT]
#
# A script whose client is not installed is skipped by name; programs are looked
# for beside PYTHON too. Ports from PORT on are used, about 200 of them.
set -eu

program=$1
port=${2:-31200}
python=${PYTHON:-python3}
here=$(dirname "$0")
case $python in
*/*) PATH=$(cd "$(dirname "$python")" && pwd):$PATH ;;
esac
work=$(mktemp -d)
server=
passed=0
failed=0
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
trap 'stop; rm -rf "$work"' EXIT
umask 077
"$here/tools_folder.sh" "$work/tools"
echo sk-right >"$work/client"
echo sk-operator >"$work/operator"

# start FOLDER OPTIONS…: starts a server of a model and waits until it is healthy.
start() {
    folder=$1
    shift
    "$program" serve --model-path "$folder" --served-model-name lockstep-demo-7m \
        --port "$port" --sglang-grpc-port $((port + 2)) \
        --cors-allowed-origins "http://localhost:$((port + 3))" "$@" >"$work/log" 2>&1 &
    server=$!
    tries=0
    until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do
        tries=$((tries + 1))
        if [ $tries = 120 ]; then
            cat "$work/log"
            exit 1
        fi
        sleep 0.5
    done
}

# run CLIENT NAME COMMAND…: runs a script, where its client is installed: a
# program, or a Python module.
run() {
    client=$1
    name=$2
    shift 2
    if ! command -v "$client" >/dev/null && ! "$python" -c "import $client" 2>/dev/null; then
        echo "skipped $name: no $client"
    elif "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $name with $fronts tokenizer-managers, $keys"
    fi
}

url=http://127.0.0.1:$port
sglang=127.0.0.1:$((port + 2))
SMG_PORT=$((port + 100))
export SMG_PORT
for fronts in 1 2; do
    for keys in none keys; do
        echo "== $fronts tokenizer-managers, $keys"
        set -- --tokenizer-managers "$fronts"
        shown=
        if [ $keys = keys ]; then
            set -- "$@" --api-key-file "$work/client" --admin-api-key-file "$work/operator"
            shown='--api-key sk-right --admin-key sk-operator'
        fi
        start "$here/../../models/lockstep-demo-7m" "$@"
        # Words of $shown are arguments of their own.
        # shellcheck disable=SC2086
        {
            run openai openai_client.py "$python" "$here/openai_client.py" \
                --base-url "$url/v1" $shown ${shown:+--key-url "$url/v1"}
            run anthropic structured_client.py "$python" "$here/structured_client.py" \
                --base-url "$url" $shown
            run anthropic anthropic_client.py "$python" "$here/anthropic_client.py" \
                --base-url "$url" $shown ${shown:+--key-url "$url"}
            run langchain_openai langchain_client.py "$python" "$here/langchain_client.py" \
                --base-url "$url/v1" $shown
            run grpc_tools sglang_grpc.py "$python" "$here/sglang_grpc.py" \
                --target "$sglang" $shown
            run "${CHROMIUM:-chromium}" browser.py "$python" "$here/browser.py" \
                --base-url "$url/v1" --page-port $((port + 3)) $shown
        }
        if [ $keys = keys ]; then
            run aiperf aiperf.sh env API_KEY=sk-right "$here/aiperf.sh" "$url"
            run vllm vllm_bench.sh env API_KEY=sk-right "$here/vllm_bench.sh" "$url"
            run smg 'smg_gateway.sh over HTTP' \
                env API_KEY=sk-right "$here/smg_gateway.sh" "$url"
        else
            run aiperf aiperf.sh "$here/aiperf.sh" "$url"
            run vllm vllm_bench.sh "$here/vllm_bench.sh" "$url"
            run smg 'smg_gateway.sh over HTTP' "$here/smg_gateway.sh" "$url"
            run smg 'smg_gateway.sh over gRPC' "$here/smg_gateway.sh" "grpc://$sglang"
            run smg 'smg_gateway.sh over gRPC without a tokenizer' \
                "$here/smg_gateway.sh" "grpc://$sglang" ''
        fi
        stop
        # The marks of calls and of reasoning are several tokens of the demo model each, and
        # reasoning that may come before a held call has to begin with a mark of one token.
        start "$work/tools" --reasoning-parser none "$@"
        # shellcheck disable=SC2086
        {
            run anthropic held_calls_client.py "$python" "$here/held_calls_client.py" \
                --base-url "$url" $shown
            run langchain_anthropic agents_client.py "$python" "$here/agents_client.py" \
                --base-url "$url" $shown
            run mcp mcp_client.py "$python" "$here/mcp_client.py" --base-url "$url" $shown
            run json hostile_client.py "$python" "$here/hostile_client.py" \
                --base-url "$url" $shown
        }
        stop
        start "$work/tools" "$@"
        # shellcheck disable=SC2086
        run anthropic reasoning_client.py "$python" "$here/reasoning_client.py" \
            --base-url "$url" $shown
        stop
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed != 0 ]
