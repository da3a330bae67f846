#!/bin/sh
# Measures a running server with AIPerf, and checks that it finds every request,
# every token, and the server's own metrics.
#
#   pip install aiperf==0.13.0
#   cargo run --release -- serve --port 8000
#   tests/clients/aiperf.sh [URL]
#
# URL is http://127.0.0.1:8000 without it. API_KEY is what a server with a key
# asks for.
set -eu

url=${1:-http://127.0.0.1:8000}
key=${API_KEY:-none}
model=$(cd "$(dirname "$0")/../../models/lockstep-demo-7m" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! aiperf profile -m lockstep-demo-7m --url "$url" --api-key "$key" --tokenizer "$model" \
    --endpoint-type chat --streaming --use-server-token-count --ui none \
    --concurrency 4 --request-count 40 --synthetic-input-tokens-mean 40 \
    --output-tokens-mean 32 --extra-inputs ignore_eos:true \
    --artifact-dir "$work" >"$work/log" 2>&1; then
    echo "FAILED  aiperf; its log:"
    tail -40 "$work/log"
    exit 1
fi
python3 - "$work" "$key" <<'END'
import json
import pathlib
import sys

work = pathlib.Path(sys.argv[1])
found = json.loads((work / "profile_export_aiperf.json").read_text())
tokens = found["output_sequence_length"]
checks = {
    "all answered": found["request_count"]["avg"] == 40 and not found["request_error_rate"]["avg"],
    "all tokens": tokens["min"] == tokens["max"] == 32,
    "streamed": found["time_to_first_token"]["max"]
    < found["request_latency"]["max"],
}
# AIPerf shows no key when it asks for metrics.
if sys.argv[2] == "none":
    metrics = (work / "server_metrics_export.json").read_text()
    checks["metrics"] = "lockstep_kv_tokens_total" in metrics
for name, passed in checks.items():
    print("ok     " if passed else "FAILED ", name)
failed = sum(not passed for passed in checks.values())
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
END
