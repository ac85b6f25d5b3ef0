"""Drives of an environment: actions become controls in their ranges, and activations are carried from control step to control step.

Activations do not depend on the motion. So `Env.advance` stays a step of the mechanism, and what follows it takes the activations from the
action once more. Where a control step fails, they go on as the control says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdojo.engine.drive_tables import numbers_of
from torchdojo.engine.drive_targets import pushes
from torchdojo.engine.drives import Drive, Drives
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism

if TYPE_CHECKING:
    from torchdojo.envs.motion import Motion

__all__ = ["Driving", "GivenDrives", "first_step", "names_of_actions"]

GivenDrives = Drives | Mapping[str, Drive | None] | None
#: kinds of sensors that read what drives do
PULLED, PUSHED = ("joint_actuator_force",), ("force", "torque")


class Driving:
    """`td.Drives` between the actions and the mechanism of an environment.

    An action of -1 is the lower end of a drive's `ctrlrange`, 1 the upper one. A drive without a range, or one of `mech.actuators`, takes
    the action itself for its control. The drive clips what lies outside.

    Args:
        mech: the mechanism, whose `drives` these become. drives: of it. shown: names of the activations in observations, or all (True).
        repeat: timesteps of a control step. label: of the environment, for messages.

    Raises:
        ValueError: drives of another mechanism, names that no activation has.
    """

    def __init__(self, mech: Mechanism, drives: Drives, shown: bool | Sequence[str], repeat: int, label: str) -> None:
        if drives.mech is not mech:
            raise ValueError(f"drives of {label}: got drives of another mechanism; allowed: those of its own, td.Drives(env.mech, ...)")
        mech.drives = self.drives = drives
        self.repeat = repeat
        names = drives.activated if shown is True else tuple(shown or ())
        if unknown := [name for name in names if name not in drives.activated]:
            raise ValueError(f"observe_activations: got {unknown}; allowed: True, or names of activations, {list(drives.activated)}")
        self.names, self._shown = names, [drives.activated.index(name) for name in names]
        ends = [(-1.0, 1.0) if drive is None or drive.ctrlrange is None else drive.ctrlrange for drive in drives.drives.values()]
        low, high = (torch.stack(torch.broadcast_tensors(*[numbers_of(end[i]).detach() for end in ends]), -1) for i in (0, 1))
        if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
            raise ValueError(f"drives of {label}: got ranges of controls {ends}; allowed: finite ones, which actions from -1 to 1 fill")
        self._center, self._half = 0.5 * (low + high), 0.5 * (high - low)
        #: activations and action of the last control step, whether it has a graph, and the activations after it
        self._moved: tuple[Tensor, Tensor, bool, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moved": None}

    @classmethod
    def of(cls, mech: Mechanism, given: GivenDrives, shown: bool | Sequence[str], repeat: int, label: str) -> Driving | None:
        """The drives that are given, else those of the mechanism; None where there are none.

        Raises:
            TypeError: something else than drives. ValueError: activations to observe where there are none; and as above.
        """
        if isinstance(shown, str) or not isinstance(shown, bool | Sequence):
            raise TypeError(f"observe_activations: got {shown!r}; allowed: True, False, or a sequence of names of activations")
        if given is not None and not isinstance(given, Drives | Mapping):
            raise TypeError(f"drives of {label}: got {type(given).__name__}; allowed: td.Drives, or a mapping {{name: td.Drive(...)}}")
        drives = Drives(mech, given) if isinstance(given, Mapping) else mech.drives if given is None else given
        if drives is not None:
            return cls(mech, drives, shown, repeat, label)
        if shown:
            raise ValueError(f"observe_activations: got {shown!r} for {label}, which has no drives; give drives={{name: td.Drive(...)}}")
        return None

    def ctrl(self, action: Tensor) -> Tensor:
        """Controls (..., n) of actions (..., n) from -1 to 1."""
        return self._center + self._half * action

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        """The control step of the mechanism."""
        out, act, _ = self.drives.step(motion.z, self.ctrl(action), motion.activation, repeat=self.repeat, warm_start=warm)
        self._moved = motion.activation, action, torch.is_grad_enabled(), act
        return out

    def carry(self, activation: Tensor, action: Tensor) -> Tensor:
        """The activations (B, na) after a control step: those of the last one, if these are its tensors."""
        moved, self._moved = self._moved, None
        if moved is not None and moved[0] is activation and moved[1] is action and moved[2] == torch.is_grad_enabled():
            return moved[3]
        return self.drives.advance(self.ctrl(action), activation, repeat=self.repeat)

    def seen(self, motion: Motion) -> Tensor:
        """The activations that an observation has, (B, m)."""
        return motion.activation[..., self._shown]

    def begin(self, start: Motion, activation: Any, label: str) -> Motion:
        """A start with these activations.

        Raises:
            ValueError: another shape, numbers that are not finite.
        """
        shape, is_tensor = (len(start.z), self.drives.num_activations), isinstance(activation, Tensor)
        if not is_tensor or tuple(activation.shape) != shape or not bool(torch.isfinite(activation).all()):
            got = f"{activation.dtype} {tuple(activation.shape)}" if is_tensor else type(activation).__name__
            raise ValueError(f"activations of {label}: got {got}; allowed: finite numbers, {shape}, of {list(self.drives.carried)}")
        return start._replace(activation=activation.detach().double())

    def check_sensors(self, kinds: Mapping[str, str]) -> None:
        """Refuse sensors of forces over several timesteps, in which pushes of drives at sites differ. kinds: by name.

        Raises:
            ValueError: there are such.
        """
        at_sites = [name for name, drive in self.drives.drives.items() if pushes(drive)]
        wrong = [name for name, kind in kinds.items() if kind in PUSHED]
        if at_sites and wrong and self.repeat > 1:
            raise ValueError(f"sensors: got {wrong} with drives at sites, {at_sites}, and repeat={self.repeat}; allowed: repeat=1")

    def pushes(self, kinds: Sequence[str], z: Tensor, activation: Tensor, action: Tensor) -> dict[str, Tensor]:
        """The arguments that sensors of these kinds need beside the state: inputs u, or the wrench of drives at sites."""
        if not any(kind in (*PULLED, *PUSHED) for kind in kinds):
            return {}
        u, wrench, _ = self.drives.inputs(self.ctrl(action), activation, z)
        return {"u": u, **({} if wrench is None else {"wrench": wrench})}


def names_of_actions(mech: Mechanism, driving: Driving | None, label: str) -> tuple[str, ...]:
    """Names of what the actions go to.

    Raises:
        ValueError: neither actuators nor drives.
    """
    if driving is not None:
        return driving.drives.names
    if mech.actuators is None:
        raise ValueError(f"{label}: got a mechanism without actuators; give it motors, td.actuate(mech, {{...}}), or drives={{...}}")
    return tuple(mech.actuators.names)


def first_step(env: Any, start: Motion) -> StepOutput:
    """One timestep from the start of episodes, under actions of zero."""
    driving: Driving | None = env.driving
    if driving is None:
        out: StepOutput = env.mech.step(start.z, ctrl=start.action)
        return out
    return driving.drives.step(start.z, driving.ctrl(start.action), start.activation).out
