#!/bin/sh
# Brings the clients that the tests talk to: npm packages, as the lock file says, Chromium, and nc.
# Where that is impossible this says why and continues: the tests that miss something then fail and name it.
set -u
cd "$(dirname "$0")"
complete=0

if command -v npm >/dev/null; then
    npm ci --no-audit --no-fund --ignore-scripts --loglevel=error || complete=1
else
    echo "interop: there is no npm on the PATH; install Node.js 18 or newer" >&2
    complete=1
fi

# bring PACKAGE NAME: install what is not there.
bring() {
    ../apt_get.sh "$1" "$2" interop || complete=1
}

command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || bring chromium Chromium
command -v nc >/dev/null || bring netcat-openbsd nc
command -v php >/dev/null || bring php-cli PHP # small; Go and a JDK are large, and used where they are

exit $complete
