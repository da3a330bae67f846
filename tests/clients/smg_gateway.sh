#!/bin/sh
# Puts SGLang's model gateway in front of a running server and asks through it.
#
#   pip install smg==1.13.0
#   cargo run --release -- serve --port 8000 --sglang-grpc-port 8002
#   tests/clients/smg_gateway.sh [WORKER [TOKENIZER_DIR]]
#
# WORKER is grpc://127.0.0.1:8002 without it, the SGLang gRPC port, or the HTTP
# port, http://127.0.0.1:8000. With TOKENIZER_DIR empty (""), the gateway gets the
# tokenizer from the worker itself. API_KEY is what a server with a key asks for;
# the gateway shows it to workers over HTTP alone.
set -eu

worker=${1:-grpc://127.0.0.1:8002}
key=${API_KEY:-}
models=$(dirname "$0")/../../models/lockstep-demo-7m
tokenizer=${2-$models}
port=${SMG_PORT:-31100}
url=http://127.0.0.1:$port
log=$(mktemp)
passed=0
failed=0

HF_HUB_OFFLINE=1 smg launch --host 127.0.0.1 --port "$port" \
    --worker-urls "$worker" --prometheus-port $((port + 90)) ${key:+--api-key "$key"} \
    ${tokenizer:+--tokenizer-path "$tokenizer"} >"$log" 2>&1 &
gateway=$!
trap 'kill $gateway 2>/dev/null || true; wait $gateway 2>/dev/null || true; rm -f "$log"' EXIT

ready=no
for _ in $(seq 1 120); do
    # Ready with a worker that serves a model.
    if curl -sf "$url/v1/models" 2>/dev/null | grep -q '"id"'; then
        ready=yes
        break
    fi
    sleep 0.5
done
if [ $ready = no ]; then
    echo "FAILED  the gateway did not become ready; its log:"
    tail -40 "$log"
    exit 1
fi
model=$(curl -sf "$url/v1/models" | sed 's/.*"id":"\([^"]*\)".*/\1/')
echo "smg at $url, worker $worker, model $model"

# check NAME PATH BODY EXPECTED: the answer contains EXPECTED. Without BODY it is a GET.
check() {
    answer=$(curl -sS -m 60 "$url$2" -H "Authorization: Bearer $key" \
        ${3:+-H 'Content-Type: application/json' -d "$3"})
    case $answer in
    *"$4"*)
        passed=$((passed + 1))
        echo "ok      $1"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAILED  $1: $answer"
        ;;
    esac
}

ask='"messages": [{"role": "user", "content": "Count from 3 to 12."}], "temperature": 0'
check chat /v1/chat/completions "{\"model\": \"$model\", $ask}" '"3, 4, 5, 6, 7, 8, 9, 10, 11, 12"'
check usage /v1/chat/completions "{\"model\": \"$model\", $ask}" '"completion_tokens":32'
check stream /v1/chat/completions "{\"model\": \"$model\", $ask, \"stream\": true}" 'data: [DONE]'
check stop /v1/chat/completions "{\"model\": \"$model\", $ask, \"stop\": [\"7, 8\"]}" '"3, 4, 5, 6, "'
check length /v1/chat/completions "{\"model\": \"$model\", $ask, \"max_tokens\": 5}" '"finish_reason":"length"'
check logprobs /v1/chat/completions "{\"model\": \"$model\", $ask, \"logprobs\": true, \"top_logprobs\": 2}" '"top_logprobs":[{'
check choices /v1/chat/completions "{\"model\": \"$model\", $ask, \"n\": 2}" '"index":1'
check 'bad request' /v1/chat/completions "{\"model\": \"$model\", $ask, \"max_tokens\": 100000}" '"error"'
# The gateway asks its workers now and then.
for _ in $(seq 1 60); do
    curl -s "$url/get_loads" -H "Authorization: Bearer $key" | grep -qF "\"worker\":\"$worker\"" && break
    sleep 0.5
done
check loads /get_loads '' "\"worker\":\"$worker\""

echo "$passed passed, $failed failed"
[ $failed = 0 ]
