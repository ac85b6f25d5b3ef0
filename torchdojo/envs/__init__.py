"""Environments of robots: batched, torch in and torch out, differentiable.

    env = td.envs.make("ant", num_envs=32, seed=0)
    out = env.step(action)  # EnvStep(obs, reward, terminated, truncated, final_obs, info)

`Env` is the base class for a robot of one's own, `table.py` the table of those that are built in.
"""

from torchdojo.envs import cartpoles, legged, planar, quadrotor  # noqa: F401 (each file adds its environments to the table)
from torchdojo.envs.checker import VectorEnvReport, check_vector_env
from torchdojo.envs.direct import light_guards
from torchdojo.envs.disturbances import SensorNoise
from torchdojo.envs.drives import Drive, add_drives
from torchdojo.envs.env import Env
from torchdojo.envs.gaits import Gait
from torchdojo.envs.locomotion import Locomotion
from torchdojo.envs.mirrors import Mirror, find_mirror
from torchdojo.envs.motion import EnvState, EnvStep, Motion, Transition
from torchdojo.envs.muscles import MuscleArm
from torchdojo.envs.on_device import OnDevice
from torchdojo.envs.segment import Segment, SegmentOutput
from torchdojo.envs.table import TableEnv, make, names

__all__ = [
    "Drive",
    "Env",
    "EnvState",
    "EnvStep",
    "Gait",
    "Locomotion",
    "Mirror",
    "Motion",
    "MuscleArm",
    "OnDevice",
    "Segment",
    "SegmentOutput",
    "SensorNoise",
    "TableEnv",
    "Transition",
    "VectorEnvReport",
    "add_drives",
    "check_vector_env",
    "find_mirror",
    "light_guards",
    "make",
    "names",
]
