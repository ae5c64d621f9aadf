#!/bin/sh
# Upload a document, search it, and ask about it, with nothing but curl:
#   sh examples/curl.sh docs/operations.md "Which command makes an API key?"
set -eu

URL=${APPLIANCE_URL:-http://127.0.0.1:8000/v1}
KEY=${APPLIANCE_API_KEY:-none}
MODEL=${APPLIANCE_MODEL:-smollm2}
DOCUMENT=${1:-docs/operations.md}
QUESTION=${2:-Which command makes an API key?}

call() { # METHOD PATH [curl's options]
  method=$1 path=$2
  shift 2
  curl --silent --show-error --fail-with-body --request "$method" "$URL$path" --header "Authorization: Bearer $KEY" "$@"
}
post() { call POST "$1" --header 'Content-Type: application/json' --data "$2"; } # PATH JSON
value() { grep -o "\"$1\":\"[^\"]*\"" | head -n 1 | cut -d '"' -f 4; } # the first value of that key

call GET /models
echo

file=$(call POST /files --form purpose=assistants --form "file=@$DOCUMENT" | value id)
store=$(post /vector_stores '{"name": "curl"}' | value id)
post "/vector_stores/${store:?was not made}/files" "{\"file_id\": \"${file:?was not uploaded}\"}" > /dev/null

tries=0
while [ "$(call GET "/vector_stores/$store/files/$file" | value status)" = in_progress ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] || { echo "$DOCUMENT is still not indexed" >&2; exit 1; }
  sleep 0.2
done

post "/vector_stores/$store/search" "{\"query\": \"$QUESTION\", \"max_num_results\": 1}"
echo

post /chat/completions "{
  \"model\": \"$MODEL\", \"stream\": true, \"temperature\": 0, \"max_tokens\": 200,
  \"messages\": [{\"role\": \"user\", \"content\": \"$QUESTION\"}],
  \"tools\": [{\"type\": \"file_search\", \"vector_store_ids\": [\"$store\"], \"max_num_results\": 3}]
}" --no-buffer

call DELETE "/vector_stores/$store" > /dev/null
call DELETE "/files/$file" > /dev/null
