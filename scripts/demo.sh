#!/usr/bin/env bash
# The tour: drop a quadruped and check the physics, then find a throw by gradient descent through contact. It takes ten seconds once the
# environment and the kernel are there; the first run makes both. The tour writes into outputs/demo.
# Where the kernel must be compiled, the tour gets one of its own with -O1: it takes half the time to compile, and the tour takes few steps.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh" native,pages
export PATH="$root/.venv/bin:$PATH"  # torch looks there for ninja when it builds the native kernel
cd "$root"
if python -c 'import sys; from torchdojo.native import loader; sys.exit(not loader.compiles())' 2>/dev/null; then export CXX="${CXX:-c++} -O1"; fi

echo "demo: 100 steps of the quadruped"
torchdojo simulate quadruped --steps 100 --check --output outputs/demo
echo "demo: throw to a target"
python scripts/throw_to_target.py --html outputs/demo/throws.html
echo "demo: open outputs/demo/trajectory.html and outputs/demo/throws.html in a browser"
