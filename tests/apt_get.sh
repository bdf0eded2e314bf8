#!/bin/sh
# apt_get.sh PACKAGE WHAT WHOSE: install a package where we are root on a system with apt-get, else say what is missing.
# One at a time, for sets of tools are installed side by side; services are not started.
set -u
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$3: there is no $2, and only root on a system with apt-get can install it here" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
exec flock /tmp/curbstone-apt-get.lock sh -c \
    'apt-get update -qq && apt-get install -y -qq --no-install-recommends $1' sh "$1" >/dev/null
