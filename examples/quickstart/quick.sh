#!/bin/sh
# Curbstone from a shell: make a queue, put a message in, take it and say that it is done.
set -eu
queue=${CURBSTONE_URL:-http://127.0.0.1:8080}/v2/demo/queues/hello-shell

call() { curl --silent --fail-with-body --noproxy '*' "$@"; }

call --request PUT "$queue" >/dev/null
call --header 'Content-Type: text/plain' --data 'hello' "$queue/messages" >/dev/null # on disk when it returns
taken=$(call --data '{"wait": 10, "seconds": 60}' "$queue/messages/lease")
ack_id=$(echo "$taken" | sed 's/.*"ackId":"\([^"]*\)".*/\1/')
echo "got $(echo "$taken" | sed 's/.*"message":"\([^"]*\)".*/\1/')"
call --data "{\"ackIds\": [\"$ack_id\"]}" "$queue/messages/ack" >/dev/null # without it the message is delivered again after 60 s
