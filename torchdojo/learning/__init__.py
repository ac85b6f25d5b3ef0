"""Learning of policies on the environments of `torchdojo.envs` (extra ``torchdojo[learn]``).

    torchdojo train configs/shac_ant.yaml --output outputs/ant
    torchdojo play outputs/ant --html ant.html

    run = td.learning.load_run("outputs/ant")
    result = td.learning.evaluate(run.config.make_env(64, autoreset="disabled"), run.policy())

An algorithm is imported by the name of its module, `torchdojo.learning.shac`, since each needs packages of its own.
"""

from torchdojo.learning.gait import GaitReport, gait_report
from torchdojo.learning.networks import Actor, Critics, Normalizer, SymmetricActor
from torchdojo.learning.rollouts import Evaluation, evaluate, variants
from torchdojo.learning.runs import Run, RunConfig, load_run, read_config

__all__ = [
    "Actor",
    "Critics",
    "Evaluation",
    "GaitReport",
    "Normalizer",
    "Run",
    "RunConfig",
    "SymmetricActor",
    "evaluate",
    "gait_report",
    "load_run",
    "read_config",
    "variants",
]
