#!/usr/bin/env bash
# Writes the lock files again from pyproject.toml: exact versions with hashes, no index address.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv build/relock
build/relock/bin/pip install --quiet uv
compile() {
    build/relock/bin/uv pip compile --quiet --python-version 3.11 --universal --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links "$@"
}
compile pyproject.toml --extra dev --output-file requirements/dev.lock
compile pyproject.toml requirements/build.in --constraints requirements/dev.lock --output-file requirements/run.lock
compile pyproject.toml --extra cluster --constraints requirements/dev.lock --output-file requirements/cluster.lock
compile pyproject.toml --extra spark --constraints requirements/dev.lock --output-file requirements/spark.lock
