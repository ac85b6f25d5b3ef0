"""Pictures of playbacks on a machine without a screen: MuJoCo's renderer, on the software or the graphics card that EGL or OSMesa finds.

MuJoCo draws only: bodies are moved by hand ("mocap"), and nothing is simulated.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import GRAY, Part, Scene
from torchdojo.viewer.stage import Camera, finite_frames, tint

__all__ = ["Arrow", "Cord", "Renderer", "required"]

Picture = NDArray[np.uint8]
#: Start and end of an arrow [m], and its color.
Arrow = tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, float, float, float]]

#: Ends of a piece of a string [m], and its color.
Cord = Arrow

#: The libraries behind MuJoCo's contexts that need no screen, best first; PyOpenGL can hold only one in a process.
LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}

SKY, HORIZON, FLOOR, LINES = "0.72 0.82 0.93", "0.96 0.97 0.98", "0.80 0.81 0.82", "0.66 0.68 0.71"
MOST_ARROWS = 1000
#: Widths of arrows and strings, in extents of the scene.
ARROW_WIDTH, CORD_WIDTH = 0.012, 0.008
#: The direction in which the light shines.
LIGHT = "0.12 0.09 -1"
WORLD = f"""<mujoco>
  <statistic extent="1" center="0 0 0"/>
  <visual>
    <headlight ambient="0.50 0.50 0.50" diffuse="0.20 0.20 0.20" specular="0 0 0"/>
    <rgba haze="{HORIZON} 1"/> <quality shadowsize="2048" offsamples="4" numslices="24" numstacks="12"/>
    <map shadowclip="7" shadowscale="0.9" znear="0.02" zfar="60" haze="0.6"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="{SKY}" rgb2="{HORIZON}" width="256" height="256"/>
    <texture name="floor" type="2d" builtin="flat" rgb1="{FLOOR}" rgb2="{FLOOR}" mark="edge" markrgb="{LINES}" width="256" height="256"/>
    <material name="floor" texture="floor" texuniform="true" texrepeat="2 2" specular="0" shininess="0"/>
  </asset>
  <worldbody>
    <body name="light" mocap="true">
      <light type="directional" dir="{LIGHT}" diffuse="0.50 0.50 0.50" specular="0.2 0.2 0.2"/>
    </body>
  </worldbody>
</mujoco>"""


def required(package: str, purpose: str, extra: str = "view") -> Any:
    """The module of an optional package; its absence names the extra that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0].replace("_", "-")
        raise ImportError(f'{purpose} needs {name}, which cannot be imported ({error}): pip install "torchdojo[{extra}]"') from error


class Renderer:
    """Draws frames of playbacks that stand at `offsets` (playbacks, 3) [m], in pictures of `size`, width and height.

    overlay: playbacks after the first are translucent.
    """

    def __init__(self, playbacks: Sequence[Playback], offsets: NDArray[np.float64], size: tuple[int, int], overlay: bool, extent: float):
        self._mujoco = mujoco = required("mujoco", "drawing without a screen")
        self._playbacks, self._offsets = playbacks, offsets
        self._finite = [finite_frames(playback) for playback in playbacks]
        spec = mujoco.MjSpec.from_string(WORLD)
        spec.stat.extent = extent
        spec.visual.global_.offwidth, spec.visual.global_.offheight = size
        names = self._build(spec, overlay)
        self._model = spec.compile()
        self._geoms = [[self._model.geom(name).id for name in group] for group in names]
        self._data = mujoco.MjData(self._model)
        self._alpha = self._model.geom_rgba[:, 3].copy()
        self._scene = mujoco.MjvScene(self._model, maxgeom=self._model.ngeom + MOST_ARROWS + sum(map(cord_count, playbacks)))
        self._options = mujoco.MjvOption()
        self._scene.flags[mujoco.mjtRndFlag.mjRND_HAZE] = True
        self._rect = mujoco.MjrRect(0, 0, *size)
        self._window = _context(size)
        self._window.make_current()
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)

    def draw(self, frames: Sequence[int], camera: Camera, arrows: Sequence[Arrow] = (), cords: Sequence[Cord] = ()) -> Picture:
        """The picture (height, width, 3) of a frame of each playback; a playback whose frame is a gap is left out."""
        mujoco, data = self._mujoco, self._data
        first = 1  # the light
        data.mocap_pos[0] = np.asarray(camera.target) - 0.8 * camera.distance * np.array([float(x) for x in LIGHT.split()])
        for playback, offset, finite, geoms, frame in zip(self._playbacks, self._offsets, self._finite, self._geoms, frames, strict=True):
            last = first + playback.positions.shape[1]
            shown = bool(finite[frame])
            self._model.geom_rgba[geoms, 3] = self._alpha[geoms] if shown else 0.0
            if shown:
                data.mocap_pos[first:last] = playback.positions[frame] + offset
                data.mocap_quat[first:last] = playback.orientations[frame]
            first = last
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_camlight(self._model, data)
        view = mujoco.MjvCamera()
        view.type = mujoco.mjtCamera.mjCAMERA_FREE
        view.lookat[:] = camera.target
        view.distance, view.azimuth, view.elevation = camera.distance, camera.azimuth, camera.elevation
        self._model.vis.global_.fovy = camera.field_of_view
        mujoco.mjv_updateScene(self._model, data, self._options, None, view, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        for kind, width, lines in ((mujoco.mjtGeom.mjGEOM_ARROW, ARROW_WIDTH, arrows), (mujoco.mjtGeom.mjGEOM_CAPSULE, CORD_WIDTH, cords)):
            for line in lines:
                self._add_line(kind, width * float(self._model.stat.extent), line)
        self._window.make_current()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        picture = np.empty((self._rect.height, self._rect.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, self._rect, self._context)
        return np.ascontiguousarray(picture[::-1])

    def close(self) -> None:
        self._window.make_current()
        self._context.free()
        self._window.free()

    def _build(self, spec: Any, overlay: bool) -> list[list[str]]:
        """Add all parts; returns the names of the geoms of each playback that move. Static parts stand once where playbacks overlap."""
        names: list[list[str]] = []
        for index, (playback, offset) in enumerate(zip(self._playbacks, self._offsets, strict=True)):
            scene = playback.scene
            names.append([])
            holders = {name: spec.worldbody.add_body(name=f"{index}/{name}", mocap=True) for name in scene.bodies}
            for number, part in enumerate(scene.parts):
                name = f"{index}/{number}"
                if part.body is not None:
                    self._add_part(spec, holders[part.body], part, scene, name, tint(scene.color(part), index, overlay))
                    names[-1].append(name)
                elif index == 0 or (offset.any() and part.kind != "plane"):
                    self._add_part(spec, spec.worldbody, part, scene, name, scene.color(part), offset)
        return names

    def _add_part(self, spec: Any, holder: Any, part: Part, scene: Scene, name: str, color: Sequence[float], offset: Any = 0.0) -> None:
        mujoco, position = self._mujoco, np.asarray(part.position) + offset
        geom: dict[str, Any] = {"name": name, "pos": position, "quat": part.orientation, "rgba": color, "contype": 0, "conaffinity": 0}
        size = np.zeros(3)
        if part.kind == "mesh":
            surface = scene.meshes[part.mesh]
            mesh = spec.add_mesh(name=name)
            mesh.uservert = (surface.vertices * np.asarray(part.size, dtype=np.float32)).reshape(-1)
            mesh.userface = surface.faces.reshape(-1)
            mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # open surfaces have no volume
            geom["meshname"] = name
        elif part.kind == "plane":
            size[2] = 1.0
            if part.color == GRAY:
                geom |= {"material": "floor", "rgba": (1.0, 1.0, 1.0, 1.0)}
        elif part.kind == "box":
            size[:] = np.asarray(part.size) / 2
        elif part.kind in ("capsule", "cylinder"):
            size[:2] = part.size[0], part.size[1] / 2
        else:
            size[: len(part.size)] = part.size
        holder.add_geom(type=getattr(mujoco.mjtGeom, f"mjGEOM_{part.kind.upper()}"), size=size, **geom)

    def _add_line(self, kind: Any, width: float, line: Arrow | Cord) -> None:
        mujoco, scene = self._mujoco, self._scene
        if scene.ngeom >= scene.maxgeom:
            return
        start, end, color = line
        geom = scene.geoms[scene.ngeom]
        mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.eye(3).reshape(-1), np.asarray(color, dtype=np.float32))
        mujoco.mjv_connector(geom, kind, width, start, end)
        scene.ngeom += 1


def cord_count(playback: Playback) -> int:
    """The number of pieces of all strings of a playback."""
    return sum(max(points.shape[1] - 1, 0) for points in playback.strings.values())


def _context(size: tuple[int, int]) -> Any:
    """A context to draw in without a window. PyOpenGL keeps the first library of a process, so a library is tried only where it exists."""
    names = {"Darwin": ["cgl"], "Windows": ["glfw"]}.get(platform.system()) or _present()
    problems = []
    for name in names:
        try:
            return importlib.import_module(f"mujoco.{name}").GLContext(*size)
        except Exception as error:  # each driver fails in a way of its own
            problems.append(f"{name}: {error}")
    raise RuntimeError(
        f"no renderer without a screen ({'; '.join(problems) or 'neither libEGL nor libOSMesa is installed'}): "
        "apt-get install libegl1 libegl-mesa0, or libosmesa6, or your graphics card's driver; or write a page instead of a video"
    )


def _present() -> list[str]:
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in LIBRARIES:
        return [chosen]
    for name, library in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return [name]
    return []
