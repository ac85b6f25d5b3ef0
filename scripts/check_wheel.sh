#!/usr/bin/env bash
# Installs torchdojo from a folder of wheels alone, and takes the first gradient where there is no compiler: scripts/check_wheel.sh FOLDER.
# The folder has a wheel of torchdojo, and what it needs: scripts/build_wheels.sh FOLDER; pip download -d FOLDER torch numpy meshcat.
# A pip of 20.2.4 in it (pip download -d FOLDER --no-deps pip==20.2.4) has to say that it is older than the wheel's tag.
# Each level that this CPU has is forced once. Root gets a namespace without a network: its /usr/bin is empty, and the home and the packages
# are read-only. Others get an empty PATH. The check fails where a gradient comes later than $SECONDS_ALLOWED (15) after the start of Python.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheels=$(realpath "${1:?"usage: $0 FOLDER_OF_WHEELS"}")
export SECONDS_ALLOWED=${SECONDS_ALLOWED:-15} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
unset TORCHDOJO_CPU_LEVEL
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m venv "$work/venv"
mkdir "$work/home" "$work/pages" "$work/empty"
cp "$root/scripts/throw_to_target.py" "$work"

cat > "$work/launch.py" <<'P'
import os, sys
work, *arguments = sys.argv[1:]
kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "SECONDS_ALLOWED", "TORCHDOJO_CPU_LEVEL") if os.environ.get(name)}
os.chdir(work + "/pages")
path = work + "/venv/bin" + (":/usr/bin:/bin" if os.environ.get("MASKED") else "")
os.execve(sys.executable, [sys.executable, *arguments], {"HOME": work + "/home", "PATH": path, **kept})
P
# Runs Python with the arguments after the first one, which is a folder that may be written besides `pages`.
if unshare --mount --net true 2>/dev/null; then
    echo "without a network, with an empty /usr/bin and a read-only home"
    alone() {
        WORK=$work MASKED=1 unshare --mount --net bash -c '
            for folder in "$WORK/venv" "$WORK/home"; do
                mount --bind "$folder" "$folder"
                [ "$1" = "$folder" ] || mount -o remount,ro,bind "$folder"
            done
            mount --bind "$WORK/empty" /usr/bin
            exec "$WORK/venv/bin/python" "$WORK/launch.py" "$WORK" "${@:2}"' - "$@"
    }
else
    echo "without a namespace, which only root gets, so with nothing else on the PATH"
    alone() { "$work/venv/bin/python" "$work/launch.py" "$work" "${@:2}"; }
fi

started=$SECONDS
alone "$work/venv" -m pip --isolated --disable-pip-version-check install -q --no-cache-dir --no-index --find-links "$wheels" torchdojo meshcat
echo "installed in $((SECONDS - started)) s"

for old in "$wheels"/pip-*.whl; do
    [ -e "$old" ] || continue
    said=$(alone "$work/venv" "$old/pip" --isolated install --no-cache-dir --no-index --no-deps --force-reinstall "$wheels"/torchdojo-*x86_64.whl 2>&1 || :)
    grep -q "is not a supported wheel on this platform" <<<"$said" || { echo "$0: $(basename "$old") said: $said" >&2; exit 1; }
    echo "$(basename "$old") refuses: $(grep "not a supported wheel" <<<"$said")"
done

cat > "$work/first_gradient.py" <<'P'
import os, shutil, time
started = time.perf_counter()
import torch
import torchdojo as td
from torchdojo.native import loader
assert not [name for name in ("c++", "g++", "clang++", "cc", "gcc", "clang") if shutil.which(name)], "a compiler is on the PATH"
mech = td.models.quadruped()
mech.options = td.SolverOptions(backend="native")
z = td.models.initial_state("quadruped", mech).requires_grad_()
mech.rollout(z, steps=10).z.sum().backward()
seconds = time.perf_counter() - started
assert bool(torch.isfinite(z.grad).all()) and bool((z.grad != 0).any()), "the gradient"
assert "prebuilt" in loader.describe(), loader.describe()
assert not os.path.exists(os.path.expanduser("~/.cache/torchdojo")), "something was compiled"
print(f"first gradient after {seconds:.1f} s; {loader.describe()}")
assert seconds <= float(os.environ["SECONDS_ALLOWED"]), f"allowed: {os.environ['SECONDS_ALLOWED']} s"
P
alone none "$work/first_gradient.py"  # the first start of a new installation, at the best level
levels=$("$work/venv/bin/python" -c "from torchdojo.native import prebuilt; print(*prebuilt.cpu_levels())")
for level in $levels; do
    if compgen -G "$work/venv/lib/*/site-packages/torchdojo/native/lib/kernel-$level-*.so" >/dev/null; then
        TORCHDOJO_CPU_LEVEL=$level alone none "$work/first_gradient.py"
    else
        echo "the wheel has no kernel for $level"
    fi
done

echo "two processes that start together"
alone none "$work/first_gradient.py" &
alone none "$work/first_gradient.py"
wait $!

echo "pages of the demo"
started=$SECONDS
alone none -m torchdojo simulate quadruped --steps 100 --check --output "$work/pages" | tail -1
alone none "$work/throw_to_target.py" --html "$work/pages/throws.html" | tail -1
for page in trajectory throws; do
    size=$(stat -c %s "$work/pages/$page.html")
    [ "$size" -gt 100000 ] || { echo "$0: $page.html has $size bytes, which is no page" >&2; exit 1; }
    echo "$page.html: $size bytes"
done
echo "in $((SECONDS - started)) s"
