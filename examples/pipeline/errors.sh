#!/bin/sh
# Copies the log lines of one queue that say ERROR into another. recv acks a message once it is printed, so if `send` fails
# what was in the pipe is gone: for a move that loses nothing there is `curbstone move`.
set -eu
server=${CURBSTONE_SERVER:-http://127.0.0.1:8080}
curl --fail --silent --show-error --request PUT "$server/v2/shop/queues/errors"
curbstone recv shop/logs --count=0 --ack | grep ERROR | curbstone send shop/errors
