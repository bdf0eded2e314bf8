#!/bin/sh
# Builds the compiled wheel of a source tree, and installs it into a new virtual environment. Each package comes in the exact
# version of build.lock or requirements.lock: a file with another hash is refused, and so is a package without a wheel.
# The image is made with this; tests/deploy runs it without one. It needs a C compiler and the headers of Python.
# usage: install.sh SOURCE TARGET
set -eu
source=$1
target=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# environment FOLDER LOCK: makes a virtual environment with the packages of a lock file.
environment() {
    python3 -m venv "$1"
    pip "$1" install --no-cache-dir --require-hashes --only-binary :all: --requirement "$source/deploy/docker/$2"
}
pip() {
    folder=$1
    shift
    "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}
environment "$work/build" build.lock
CURBSTONE_COMPILED=1 pip "$work/build" wheel --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$source"
environment "$target" requirements.lock
pip "$target" install --no-cache-dir --no-deps "$work"/wheels/*.whl
# What only installs is not needed to run.
pip "$target" uninstall --yes setuptools pip
