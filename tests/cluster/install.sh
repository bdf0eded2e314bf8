#!/bin/sh
# Brings what the tests on a real RabbitMQ node need: the node. Where that is impossible this says why and continues.
set -u
cd "$(dirname "$0")"
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || ../apt_get.sh rabbitmq-server RabbitMQ cluster
