#!/usr/bin/env bash
# Builds the site into outputs/docs, offline search included, and checks its links. A warning is an error. Open outputs/docs/index.html.
# Arguments go to sphinx-build: scripts/docs.sh -E reads every page anew.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh"
export PATH="$root/.venv/bin:$PATH" PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
python -c 'import sphinx, myst_parser, furo' 2>/dev/null || {
    echo "docs: the site needs Python 3.11 or newer and the extra 'docs': pip install -e '.[docs]'; this is $(python -V)" >&2; exit 1; }
cd "$root"

python -m sphinx -W --keep-going -q -b html -c configs/docs -d outputs/docs_doctrees "$@" . outputs/docs
python configs/docs/check_links.py outputs/docs
