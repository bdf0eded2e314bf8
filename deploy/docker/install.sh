#!/bin/sh
# Installs Curbstone from a source tree into a new virtual environment, with the exact versions of constraints.txt.
# The image is made with this; tests/deploy runs it without one.
# usage: install.sh SOURCE TARGET
set -eu
source=$1
target=$2
python3 -m venv "$target"
"$target/bin/python" -m pip --disable-pip-version-check install --quiet --no-cache-dir \
    --constraint "$source/constraints.txt" "$source"
# What only installs is not needed to run.
"$target/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes pip
