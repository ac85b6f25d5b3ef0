#!/usr/bin/env bash
# Makes an sdist, and wheels with kernels for Linux on x86-64 (v2, v3, v4) and aarch64 (NEON): scripts/build_wheels.sh [FOLDER] (dist).
# $LEVELS chooses fewer, as in LEVELS=v3. It needs `pip install ziglang "setuptools>=77" wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
cd "$work"
python -c "from setuptools import build_meta; build_meta.build_sdist('$out')" >/dev/null
wheel() {  # arguments: the machine, its levels
    local machine=$1
    shift
    rm -rf build torchdojo/native/lib
    PYTHONPATH=$work python scripts/build_kernels.py "$@"
    python -m pip wheel -q . --no-deps --no-build-isolation -w "$out" --config-settings=--build-option=--plat-name="manylinux_2_28_$machine"
}
levels=" ${LEVELS:-v2 v3 v4 neon} "
x86=$(grep -o 'v[234]' <<<"$levels" || :)
[ -z "$x86" ] || wheel x86_64 $x86
[[ $levels != *" neon "* ]] || wheel aarch64 neon
ls -l "$out"
