#!/usr/bin/env bash
# Makes an sdist, and wheels with kernels for Linux on x86-64 (v2, v3, v4) and aarch64 (NEON): scripts/build_wheels.sh [FOLDER] (dist).
# $LEVELS chooses fewer, as in LEVELS=v3. It packs HEAD, and keeps compiled kernels in build/kernels for the next call.
# It needs `pip install ziglang "setuptools>=77" wheel zopfli`. Fails where a wheel is larger than 8 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
export KERNELS=${KERNELS:-$PWD/build/kernels}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
cd "$work"
export PYTHONPATH=$work${PYTHONPATH:+:$PYTHONPATH}
python -c "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])" "$out" >/dev/null
wheel() {  # arguments: the machine, its levels
    local machine=$1
    shift
    rm -rf build torchdojo/native/lib
    python scripts/build_kernels.py "$@"
    python -m pip wheel -q . --no-deps --no-build-isolation -w "$out" --config-settings=--build-option=--plat-name="manylinux_2_28_$machine"
    python - "$out"/*"$machine".whl <<'PY'
import sys, zipfile
import zopfli.zlib
class Zopfli:  # packs as small as the format can: 0.25 MB less than zlib for a wheel, in half a minute
    def __init__(self):
        self.data = b""
    def compress(self, data):
        self.data += data
        return b""
    def flush(self):
        return zopfli.zlib.compress(self.data, numiterations=5)[2:-4]  # without the frame of zlib
assert hasattr(zipfile, "_get_compressor"), "this Python's zipfile makes its compressors elsewhere"
zipfile._get_compressor = lambda *_: Zopfli()
for name in sys.argv[1:]:
    with zipfile.ZipFile(name) as wheel:
        contents = [(entry, wheel.read(entry)) for entry in wheel.infolist()]
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, data in contents:
            wheel.writestr(entry, data)
    with zipfile.ZipFile(name) as wheel:
        assert wheel.testzip() is None
PY
    local size
    size=$(stat -c %s "$out"/*"$machine".whl | sort -n | tail -1)
    [ "$size" -le 8000000 ] || { echo "$0: a wheel of $size bytes for $machine, allowed 8000000; build fewer LEVELS" >&2; exit 1; }
}
levels=" ${LEVELS:-v2 v3 v4 neon} "
x86=$(grep -o 'v[234]' <<<"$levels" || :)
[ -z "$x86" ] || wheel x86_64 $x86
[[ $levels != *" neon "* ]] || wheel aarch64 neon
ls -l "$out"
