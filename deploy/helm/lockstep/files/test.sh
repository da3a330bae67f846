# What `helm test` asks of a server, with bash alone, so that it runs from the
# server's own image: HOST, PORT, and KEY where the server has one.
set -euo pipefail

# ask METHOD PATH [BODY]: the answer's head and body, within two minutes.
ask() {
    local body=${3:-}
    exec 3<>"/dev/tcp/$HOST/$PORT"
    printf '%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n' \
        "$1" "$2" "$HOST" "${#body}" >&3
    if [ -n "${KEY:-}" ]; then
        printf 'Authorization: Bearer %s\r\n' "$KEY" >&3
    fi
    printf '\r\n%s' "$body" >&3
    timeout 120 cat <&3
    exec 3>&-
}

# expect WHAT TEXT METHOD PATH [BODY]: the answer is 200 and contains TEXT.
expect() {
    local what=$1 text=$2 answer
    shift 2
    answer=$(ask "$@")
    case $answer in
    HTTP/1.1\ 200*"$text"*) echo "ok: $what" ;;
    *)
        echo "failed: $what; expected 200 with $text, got:"
        printf '%s\n' "$answer"
        exit 1
        ;;
    esac
}

# A gateway wants to be told the model.
[[ $(ask GET /v1/models) =~ \"id\":\"([^\"]*)\" ]] || true
chat="\"model\": \"${BASH_REMATCH[1]:-}\", \"max_tokens\": 16"
chat="$chat, \"messages\": [{\"role\": \"user\", \"content\": \"Count from 3 to 12.\"}]"
for test in "$@"; do
    case $test in
    health) expect 'health' '' GET /health ;;
    models) expect 'models' '"object":"list"' GET /v1/models ;;
    chat) expect 'chat' '"finish_reason":' POST /v1/chat/completions "{$chat}" ;;
    stream) expect 'stream' 'data: [DONE]' POST /v1/chat/completions "{$chat, \"stream\": true}" ;;
    metrics) expect 'metrics' 'lockstep_scheduler_up' GET /metrics ;;
    *)
        echo "unknown test $test"
        exit 1
        ;;
    esac
done
