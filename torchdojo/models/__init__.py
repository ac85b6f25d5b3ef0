"""Built-in mechanisms: functions that build a `Mechanism`, and a table of them with a state to start from.

`td.models.quadruped(friction=0.6)` and `td.models.make("quadruped", friction=0.6)` are the same. The numbers come from the mechanisms of
Dojo (Howell et al. 2025; DojoEnvironments, MIT license), from the MuJoCo files of Gymnasium (MIT license) and from Skydio's X2 of MuJoCo
Menagerie (Apache 2.0 license). The code is our own. Robots come with motors: ``mech.step(z, ctrl=...)`` takes controls from -1 to 1, which
are minus and plus the joint's `effort_limit`.

A new mechanism takes one place: a function that returns a `Mechanism`, in a file of this folder, under the decorator `@built_in(...)`.
The keywords of the decorator are a state to start from. `td.models.NAME`, `names()`, the command line and the tests of all models follow
from there. A new file is also imported below.
"""

from typing import TYPE_CHECKING

from torchdojo.models import basic, linkages, locomotion, planar, quadrotors, unitree  # noqa: F401 (each file adds its mechanisms to the table)
from torchdojo.models.built_in import MODELS, initial_state, make, names
from torchdojo.models.fluid import drag

if TYPE_CHECKING:  # for mypy and editors, which cannot follow the table
    from torchdojo.models.basic import *  # noqa: F403
    from torchdojo.models.linkages import *  # noqa: F403
    from torchdojo.models.locomotion import *  # noqa: F403
    from torchdojo.models.planar import *  # noqa: F403
    from torchdojo.models.quadrotors import *  # noqa: F403
    from torchdojo.models.unitree import *  # noqa: F403

__all__ = ["drag", "initial_state", "make", "names", *MODELS]

globals().update({name: model.build for name, model in MODELS.items()})
