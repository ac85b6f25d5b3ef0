"""Makes the pictures of gallery.md anew: python configs/docs/gallery.py [NAME ...]; without names, all of them (about ten minutes).

The commands are those of the page. Each runs in a folder of its own, where configs and scripts of the checkout are found, and leaves
NAME.webp.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENTRY = re.compile(r"^!\[[^\]]*\]\(([\w./]+/)(\w+)\.webp\)\n\n```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def entries() -> dict[str, tuple[Path, str]]:
    """name: (its picture, the commands that make it), in the order of the page."""
    text = (HERE / "gallery.md").read_text(encoding="utf-8")
    return {name: ((HERE / folder).resolve() / f"{name}.webp", commands) for folder, name, commands in ENTRY.findall(text)}


def make(name: str) -> Path:
    """Run the commands of a picture, and put it where the page shows it."""
    picture, commands = entries()[name]
    with tempfile.TemporaryDirectory() as folder:
        for part in ("configs", "scripts"):
            (Path(folder) / part).symlink_to(ROOT / part)
        paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        subprocess.run(["bash", "-euc", commands], cwd=folder, env={**os.environ, **paths}, check=True, stdout=subprocess.DEVNULL)
        shutil.copyfile(Path(folder) / f"{name}.webp", picture)
    return picture


if __name__ == "__main__":
    for name in sys.argv[1:] or entries():
        made = make(name)
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size / 1e3:.0f} kB", flush=True)
