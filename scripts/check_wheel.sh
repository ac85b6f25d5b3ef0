#!/usr/bin/env bash
# Installs a wheel without a network and takes the first gradient without a compiler: scripts/check_wheel.sh WHEEL.
# torch and numpy come from the environment of the `python` on the PATH, by a .pth file.
set -euo pipefail
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=$(python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
python -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-index --no-deps "$wheel"
own=$("$work/venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
echo "$packages" > "$own/others.pth"
mkdir "$work/home"
cd "$work/home"
bare=(env -i HOME="$work/home" PATH="$work/venv/bin" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}")
for level in $("$work/venv/bin/python" -c "from torchdojo.native import prebuilt; print(*prebuilt.cpu_levels())"); do
    ls "$own"/torchdojo/native/lib/kernel-"$level"-*.so >/dev/null 2>&1 || continue
    "${bare[@]}" TORCHDOJO_CPU_LEVEL="$level" "$work/venv/bin/python" - <<'P'
import os, time
started = time.perf_counter()
import torch
import torchdojo as td
from torchdojo.native import loader
mech = td.models.quadruped()
mech.options = td.SolverOptions(backend="native")
z = td.models.initial_state("quadruped", mech).requires_grad_()
mech.rollout(z, steps=10).z.sum().backward()
assert bool(torch.isfinite(z.grad).all()) and not os.path.exists(os.path.expanduser("~/.cache/torchdojo"))
print(f"first gradient after {time.perf_counter() - started:.1f} s; {loader.describe()}")
P
done
