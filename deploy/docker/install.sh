#!/bin/sh
# Installs Curbstone from a source tree into a new virtual environment, with the exact files of requirements.lock: what
# has another hash, or would be built on this machine, is refused.
# The image is made with this; tests/deploy runs it without one.
# usage: install.sh SOURCE TARGET
set -eu
source=$1
target=$2
python3 -m venv "$target"
pip() {
    "$target/bin/python" -m pip --disable-pip-version-check "$@"
}
pip install --quiet --no-cache-dir --require-hashes --only-binary :all: --requirement "$source/deploy/docker/requirements.lock"
pip install --quiet --no-cache-dir --no-deps --no-build-isolation "$source"
# What only installs is not needed to run.
pip uninstall --quiet --yes setuptools pip
