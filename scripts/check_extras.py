"""Install each extra alone from a wheel, and use what it is for. It needs a package registry, and a minute per extra.

    python scripts/check_extras.py FOLDER [EXTRA...]    # FOLDER has a wheel of torchdojo, as for scripts/check_wheel.sh

All environments share one with torch, numpy and the wheel, by a .pth file, so that torch is installed once. Extras of development are
left out.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

MJCF = (
    "<mujoco><worldbody><body pos='0 0 1'><joint type='hinge' axis='0 1 0'/><geom type='sphere' size='.1' pos='0 0 -.5'/></body>"
    "</worldbody></mujoco>"
)
URDF = (
    "<robot name='r'><link name='a'><inertial><mass value='1'/>"
    "<inertia ixx='1' iyy='1' izz='1' ixy='0' ixz='0' iyz='0'/></inertial></link></robot>"
)
POINTS = "[[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]"
#: extra -> a program that needs it
USES = {
    "urdf": f"open('r.urdf', 'w').write({URDF!r}); mech = td.load('r.urdf', floating_base=True); mech(mech.initial_state())",
    "mjcf": f"open('r.xml', 'w').write({MJCF!r}); mech = td.load('r.xml'); mech(mech.initial_state())",
    "mesh": f"import coacd, collada, trimesh; from scipy.spatial import ConvexHull; assert len(ConvexHull({POINTS}).vertices) == 8",
    "cli": "run('simulate', 'quadruped', '--steps', '20', '--output', '.')",
    "fit": "import torchdojo.identification.lightning; run('fit', '--help')",
    "learn": "import torchdojo.learning.shac, torchdojo.learning.ppo, rsl_rl; run('train', '--help')",
    "plots": "import torchdojo.viewer.plots, torchdojo.identification.plots",
    "native": "import shutil; from torchdojo.native import loader; assert 'ninja' in loader._build_path() or shutil.which('ninja')",
    "pages": "run('simulate', 'quadruped', '--steps', '20', '--output', '.'); assert open('trajectory.html').read(99)",
    "view": "run('simulate', 'quadruped', '--steps', '20', '--output', '.'); run('view', 'trajectory.npz', '--html', 'page.html')",
    "gym": "import gymnasium, torchdojo.envs.gym; e = gymnasium.make('torchdojo/Ant-v0'); e.reset(); e.step(e.action_space.sample())",
    "torchrl": "from torchdojo.envs.torchrl import TorchRLEnv",
    "deploy": "import torchdojo.learning.export, onnx, onnxruntime, onnxscript",
}
HEAD = """
import torch, torchdojo as td
from torchdojo.commands.main import main
def run(*words):
    try:
        assert main(list(words)) == 0
    except SystemExit as error:
        assert not error.code
"""


def python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def install(folder: Path, *arguments: str) -> None:
    subprocess.run([python(folder), "-m", "pip", "--disable-pip-version-check", "install", "-q", *arguments], check=True)


def packages(folder: Path) -> Path:
    scheme = {"base": str(folder), "platbase": str(folder)}
    return Path(sysconfig.get_path("purelib", "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix", scheme))


def check(wheels: Path, extras: list[str]) -> int:
    """The number of extras that fail."""
    failed = []
    wheel = next(wheels.glob(f"torchdojo-*_{platform.machine()}.whl"))
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        venv.create(base, with_pip=True)
        install(base, "--no-index", "--find-links", str(wheels), str(wheel))  # so that torch is the one there
        for extra in extras:
            started = time.monotonic()
            alone = Path(name) / extra
            venv.create(alone, with_pip=True)
            (packages(alone) / "base.pth").write_text(f"{packages(base)}\n")
            try:
                install(alone, "--find-links", str(wheels), f"{wheel}[{extra}]")
                subprocess.run([python(alone), "-c", HEAD + USES[extra]], cwd=alone, check=True, stdout=subprocess.DEVNULL)
            except subprocess.CalledProcessError:
                failed.append(extra)
            print(f"{extra}: {'failed' if extra in failed else 'works'}, {time.monotonic() - started:.0f} s", flush=True)
    return len(failed)


if __name__ == "__main__":
    if len(sys.argv) < 2 or (unknown := [extra for extra in sys.argv[2:] if extra not in USES]):
        sys.exit(f"usage: {sys.argv[0]} FOLDER [EXTRA...]; got {sys.argv[1:]}; extras: {', '.join(USES)}")
    sys.exit(bool(check(Path(sys.argv[1]).absolute(), sys.argv[2:] or list(USES))))
