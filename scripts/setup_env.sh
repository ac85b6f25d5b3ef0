#!/usr/bin/env bash
# Makes .venv and installs torchdojo into it, editable, with the pinned versions of configs/constraints.txt.
# PYTHON=python3.12 scripts/setup_env.sh chooses the interpreter of a new .venv. An argument chooses the extras, in place of all,dev.
# A second run returns at once unless pyproject.toml, the constraints, or the place of the checkout has changed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
extras=${1:-all,dev}
stamp=$venv/torchdojo-install.sha256  # what is installed: the hash of what decides it, and the extras

check_version() {  # arguments: the interpreter, and the remedy if it is too old
    command -v "$1" >/dev/null || { echo "setup: no '$1' found. $2" >&2; exit 1; }
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        echo "setup: torchdojo needs Python 3.10 or newer, but '$1' is $("$1" -V 2>&1). $2" >&2; exit 1; }
}

fingerprint() {  # hash of everything that decides which packages are installed
    "$python" - "$root" <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
parts = [sys.version.encode(), str(root).encode(), *((root / name).read_bytes() for name in ("pyproject.toml", "configs/constraints.txt"))]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PY
}

# Two scripts that start together must not install into one environment at once.
if command -v flock >/dev/null; then
    exec 9>"$root/.venv.lock"
    flock 9
fi

if [ ! -x "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    check_version "${PYTHON:-python3}" "Set PYTHON to one, e.g. PYTHON=python3.11 $0"
    echo "setup: creating $venv"
    "${PYTHON:-python3}" -m venv "$venv"
fi
check_version "$python" "Remove $venv and run again with PYTHON=python3.11"

wanted=$(fingerprint)
if [ ! -f "$stamp" ] || { [ "$(cat "$stamp")" != "$wanted all,dev" ] && [ "$(cat "$stamp")" != "$wanted $extras" ]; }; then
    echo "setup: installing torchdojo and what it needs (a minute or two the first time)"
    rm -f "$stamp"
    late=()  # for a tour, modules are compiled to bytecode when they are imported: few of PyTorch's are
    [ "$extras" = all,dev ] || late=(--no-compile)
    "$python" -m pip install ${late[@]+"${late[@]}"} --quiet --disable-pip-version-check --no-input \
        --constraint "$root/configs/constraints.txt" --editable "$root[$extras]"
    echo "$wanted $extras" >"$stamp"
fi
