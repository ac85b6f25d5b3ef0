#!/usr/bin/env bash
# Runs the tests on two processes; arguments go to pytest: scripts/test.sh -m slow, scripts/test.sh tests/elements
# Tests that compare with recorded data look for it in $TORCHDOJO_SHARED (default: the folder `shared` beside the checkout).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh"

shared=${TORCHDOJO_SHARED:-$root/../shared}
if [ -d "$shared" ]; then
    TORCHDOJO_SHARED=$(cd "$shared" && pwd)
    export TORCHDOJO_SHARED
fi
export PATH="$root/.venv/bin:$PATH"  # torch looks there for ninja when it builds the native kernel
unset PYTHONDONTWRITEBYTECODE  # else both processes, and all that tests start, compile every module anew
export OMP_NUM_THREADS=1  # one thread per pytest process

cd "$root"
exec python -m pytest -n 2 --dist worksteal "$@"  # a process without tests takes tests from the other
