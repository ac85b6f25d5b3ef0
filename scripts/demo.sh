#!/usr/bin/env bash
# The tour: drop a quadruped and check the physics, then find a throw by gradient descent through contact. It takes ten seconds once the
# environment and the kernel are there; the first run makes both. The tour writes into outputs/demo.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh" native,pages
export PATH="$root/.venv/bin:$PATH"  # torch looks there for ninja when it builds the native kernel
cd "$root"

echo "demo: 100 steps of the quadruped"
torchdojo simulate quadruped --steps 100 --check --output outputs/demo
echo "demo: throw to a target"
python scripts/throw_to_target.py --html outputs/demo/throws.html
echo "demo: open outputs/demo/trajectory.html and outputs/demo/throws.html in a browser"
