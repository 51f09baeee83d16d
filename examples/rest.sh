#!/bin/sh
# Launches a request through `hpcdash serve --api`, follows its log, and ends with its exit status.
#
#   hpcdash --cluster juno serve --api --port 8765        # in another terminal, with a token in api-tokens.toml
#   HPCDASH_TOKEN=... examples/rest.sh train.py
#
# Sent again with the same KEY it launches nothing: it follows the launch that is there.
set -eu
url=${HPCDASH_URL:-http://127.0.0.1:8765}
script=$1
name=$(basename "$script")
key=${KEY:-$name-$(sha256sum <"$script" | cut -c 1-16)}

# The token comes from a file descriptor: an argument would stand in the process list.
call() {
  curl -sS --fail-with-body -H @/dev/fd/3 "$@" 3<<HEADER
Authorization: Bearer $HPCDASH_TOKEN
HEADER
}

launch_id() {
  python3 -c '
import json, sys
answer = json.load(sys.stdin)
sys.exit(answer["error"]["message"]) if "error" in answer else print(answer["launch"]["id"])
'
}

launch() {
  python3 - "$name" "$script" <<'REQUEST' | call -H 'Content-Type: application/json' -H "Idempotency-Key: $key" -d @- "$url/launches"
import base64, json, sys
name, path = sys.argv[1:]
request = {
    "name": name.partition(".")[0],
    "script": name,
    "slots": 1,
    "slot_type": "cpu",
    "time": "10m",
    "files": {name: base64.b64encode(open(path, "rb").read()).decode()},
}
print(json.dumps(request))
REQUEST
}

id=$(launch | launch_id)
echo "launch $id" >&2

# Server-sent events, a line of JSON each, until the launch has ended.
call -N "$url/launches/$id/logs?follow=true" | sed -n 's/^data: //p' | python3 -c '
import json, sys
for line in sys.stdin:
    print(json.loads(line).get("text", ""), end="", flush=True)
'

call "$url/launches/$id" | python3 -c '
import json, sys
launch = json.load(sys.stdin)["launch"]
print("{status} (exit status {exit_code})".format(**launch), file=sys.stderr)
sys.exit(launch["exit_code"] or launch["status"] != "COMPLETED")
'
