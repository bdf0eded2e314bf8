#!/bin/sh
# Brings what the tests in this folder need: the extras `spark`, `sql` and `objects` into the environment of the Python given, and a Java;
# for Spark Connect and an object store more packages, in folders of their own there.
# Where that is impossible this says why and continues.
set -u
python=$1
complete=0

"$python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable ".[dev,objects,spark,sql]" || complete=1

# For single tests, each in a folder of its own, apart from the rest: all else has to work without.
prefix=$("$python" -c 'import sys; print(sys.prefix)')
apart() {
    test -d "$prefix/spark-$1" || "$python" -m pip --disable-pip-version-check install --quiet --no-compile --target "$prefix/spark-$1" \
        --requirement "tests/spark/$1-requirements.txt" || complete=1
}
apart connect
apart frames
apart dlt
apart iceberg
apart s3

java_found='import sys
from curbstone.spark.session import find_java
sys.exit(find_java() is None)'
if ! "$python" -c "$java_found"; then
    tests/apt_get.sh openjdk-17-jre-headless "Java 17 or newer" spark || complete=1
fi

# Python workers of Spark start faster with the one, Java processes with the other; without them they start all the same.
test $complete = 1 || "$python" -m tests.spark.compiled_zips
test $complete = 1 || "$python" -m tests.spark.class_archive

exit $complete
