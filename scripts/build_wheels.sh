#!/usr/bin/env bash
# Makes an sdist and a wheel with kernels for x86-64-v2, v3 and v4: scripts/build_wheels.sh [FOLDER] (dist); $LEVELS chooses fewer.
# The tag follows from the symbols that the libraries need of glibc, so an older system refuses the wheel instead of failing in it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
cd "$work"
python -c "from setuptools import build_meta; print(build_meta.build_sdist('$out'))"
PYTHONPATH=$work python scripts/build_kernels.py ${LEVELS:-v2 v3 v4}
glibc=$(objdump -T torchdojo/native/lib/*.so | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)
minor=${glibc#GLIBC_2.}
tag=manylinux_2_$((minor > 28 ? minor : 28))_x86_64
python -m pip wheel -q . --no-deps --no-build-isolation -w "$out" --config-settings=--build-option=--plat-name="$tag"
ls -l "$out"
