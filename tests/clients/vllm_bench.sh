#!/bin/sh
# Measures a running server with `vllm bench serve`, over both of the APIs that
# it knows, and checks that it finds every request and every token.
#
#   pip install vllm==0.32.0
#   cargo run --release -- serve --port 8000
#   tests/clients/vllm_bench.sh [URL]
#
# URL is http://127.0.0.1:8000 without it. API_KEY is what a server with a key
# asks for.
set -eu

url=${1:-http://127.0.0.1:8000}
model=$(cd "$(dirname "$0")/../../models/lockstep-demo-7m" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As vLLM's own clients show their key.
export OPENAI_API_KEY="${API_KEY:-none}"

# bench BACKEND PATH
bench() {
    if ! vllm bench serve --backend "$1" --base-url "$url" --endpoint "$2" \
        --model lockstep-demo-7m --tokenizer "$model" --dataset-name random \
        --random-input-len 40 --random-output-len 32 --num-prompts 40 --max-concurrency 4 \
        --ignore-eos --disable-tqdm --save-result --save-detailed --result-dir "$work" \
        --result-filename "$1.json" >"$work/log" 2>&1; then
        echo "FAILED  vllm bench serve over $2; its log:"
        tail -40 "$work/log"
        exit 1
    fi
}
bench openai /v1/completions
bench openai-chat /v1/chat/completions
python3 - "$work"/openai.json "$work"/openai-chat.json <<'END'
import json
import sys

failed = passed = 0
for path in sys.argv[1:]:
    found = json.load(open(path))
    checks = {
        "all answered": found["completed"] == 40 and not any(found["errors"]),
        "all tokens": found["output_lens"] == [32] * 40,
        # A gap for each token behind the first, but for those that waited together
        # where the machine is busy.
        "token by token": sum(map(len, found["itls"])) >= 40 * 31 // 2,
        "streamed": found["mean_ttft_ms"] < found["mean_tpot_ms"] * 32,
    }
    for name, fine in checks.items():
        print("ok     " if fine else "FAILED ", found["endpoint_type"], name)
        passed += fine
        failed += not fine
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
END
