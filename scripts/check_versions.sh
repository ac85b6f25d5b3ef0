#!/usr/bin/env bash
# Runs the fast tests on other versions than configs/constraints.txt pins: scripts/check_versions.sh PYTHON REQUIREMENT... [-- PYTEST ARGUMENT...]
#   scripts/check_versions.sh python3.10 torch==2.6.0 numpy==1.26.4
#   scripts/check_versions.sh python3.13 torch numpy
# The environment lies in $VENV (default: a new folder, removed at the end). Tests of extras that are not installed skip.
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
"$VENV/bin/python" -m pip install -q "${requirements[@]}" "$root[mjcf,mesh,learn,fit,plots,native,gym]" pytest pytest-xdist
"$VENV/bin/python" -m pip uninstall -q -y torchdojo  # the checkout is tested
export PATH="$VENV/bin:$PATH" PYTHONPATH="$root" OMP_NUM_THREADS=1
python -c 'import sys, numpy, torch; print("Python", sys.version.split()[0], "torch", torch.__version__, "numpy", numpy.__version__)'
cd "$root"
rc=0
python -m pytest -n 2 --dist worksteal -q -p no:cacheprovider "$@" || rc=$?
exit "$rc"
