#!/bin/sh
# Runs the scripts of HTTP clients against servers with one and with two
# tokenizer-managers, without keys and with those of clients and operators.
#
#   cargo build --release
#   PYTHON=venv/bin/python tests/clients/all.sh target/release/lockstep [PORT]
#
# A script whose client is not installed is skipped by name.
set -eu

program=$1
port=${2:-31200}
python=${PYTHON:-python3}
here=$(dirname "$0")
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
echo sk-client >"$work/client"
echo sk-operator >"$work/operator"

# run FRONTS KEYS SCRIPT MODULE
run() {
    if ! "$python" -c "import $4" 2>/dev/null; then
        echo "skipped $3: no Python module $4"
        return
    fi
    arguments=
    [ "$2" = keys ] && arguments='--api-key sk-client --admin-key sk-operator'
    # shellcheck disable=SC2086
    if "$python" "$here/$3" --base-url "http://127.0.0.1:$port/v1" $arguments; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $3 with $1 tokenizer-managers, $2"
    fi
}

for fronts in 1 2; do
    for keys in none keys; do
        echo "== $fronts tokenizer-managers, $keys"
        files=
        [ $keys = keys ] && files="--api-key-file $work/client --admin-api-key-file $work/operator"
        # shellcheck disable=SC2086
        "$program" serve --model-path "$here/../../models/lockstep-demo-7m" --port "$port" \
            --tokenizer-managers "$fronts" $files >"$work/log" 2>&1 &
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
        run "$fronts" "$keys" openai_client.py openai
        run "$fronts" "$keys" langchain_client.py langchain_openai
        stop
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed != 0 ]
