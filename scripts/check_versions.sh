#!/usr/bin/env bash
# Runs the fast tests on other versions than configs/constraints.txt pins: scripts/check_versions.sh PYTHON REQUIREMENT... [-- PYTEST ARGUMENT...]
#   scripts/check_versions.sh python3.10 torch==2.6.0 numpy==1.26.4
#   scripts/check_versions.sh python3.13 torch numpy -- tests/native tests/engine
# The environment lies in $VENV (default: a new folder, removed at the end). All else is installed as pinned, without a look at what it asks
# for: pip's resolver would go through every release of packages that ask for a newer torch. Tests of such packages may skip.
# A prebuilt kernel of scripts/build_kernels.py is used if there is one, else one is compiled.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${1:?"usage: $0 PYTHON REQUIREMENT... [-- PYTEST ARGUMENT...]"}
shift
requirements=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do requirements+=("$1"); shift; done
[ $# -eq 0 ] || shift

if [ -z "${VENV:-}" ]; then
    VENV=$(mktemp -d)
    trap 'rm -rf "$VENV"' EXIT
fi
[ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
pins=$(mktemp)
grep -E '^[a-z]' "$root/configs/constraints.txt" | grep -vE "^(torch|numpy)==" >"$pins"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$pins"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check "${requirements[@]}"
rm "$pins"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$root"  # its version is looked up among installed packages
export PATH="$VENV/bin:$PATH" PYTHONPATH="$root" OMP_NUM_THREADS=1  # the checkout is tested
python - <<'P'
import sys, numpy, torch
from torchdojo.native import loader
print("Python", sys.version.split()[0], "torch", torch.__version__, "numpy", numpy.__version__, flush=True)
loader.library()
print(loader.describe(), flush=True)
P
cd "$root"
rc=0
python -m pytest -n 2 --dist worksteal -q -p no:cacheprovider "$@" || rc=$?
exit "$rc"
