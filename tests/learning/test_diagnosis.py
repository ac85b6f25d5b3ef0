"""`torchdojo train --check` lets a good environment pass, and finds wrong gradients, servos that ring, and controls that are cut short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from own_hopper import OwnHopper
from torchdojo.commands.main import main
from torchdojo.learning.diagnosis import Note, diagnose
from torchdojo.learning.runs import read_config

pytest.importorskip("pytorch_lightning", reason="needs the extra torchdojo[learn]")


class Detached(OwnHopper):
    """Its reward for speed forgets where the speed comes from."""

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Mapping[str, Tensor]:
        parts = super().reward(before, after, action)
        assert isinstance(parts, Mapping)
        return {**parts, "speed": parts["speed"].detach(), "height": -(after.root[:, 2] - 0.8).square()}


class Blind(OwnHopper):
    """Half of its observation has no gradient, as after a round trip through numpy."""

    def observe(self, motion: td.envs.Motion) -> Tensor:
        seen = super().observe(motion)
        return torch.cat((seen[:, :5], seen[:, 5:].detach()), -1)


class Doubled(OwnHopper):
    """A control step whose gradient is twice what it is, while each value is right."""

    def advance(self, motion: td.envs.Motion, action: Tensor, warm: Tensor | None) -> Any:
        return super().advance(motion, 2.0 * action - action.detach(), warm)


class Idle(OwnHopper):
    """Its reward is the same whatever it does."""

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Tensor:
        return torch.ones_like(after.root[:, 0])


class Ringing(OwnHopper):
    """Servos without damping, and controls of which a tenth can be used."""

    kv, reach = 0.0, 0.1


def notes_of(kind: type[td.envs.Env]) -> dict[str, Note]:
    return {note.name: note for note in diagnose(read_config({"env": f"test_diagnosis:{kind.__name__}"}))}


def wrong(notes: Mapping[str, Note]) -> list[str]:
    return [name for name, note in notes.items() if note.verdict == "wrong"]


def test_a_good_environment_passes(capsys: Any) -> None:
    assert main(["train", "--env", "own_hopper:OwnHopper", "--check", "--json"]) == 0
    told = capsys.readouterr().out
    assert "gradient through 32 steps" in told and "Recipe:" in told and '"passed": true' in told


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Detached, ["gradient of reward 'speed'", "gradient through 32 steps"]),
        (Blind, ["gradient of observation", "gradient through 32 steps"]),
        (Doubled, ["gradient through 32 steps"]),
        (Idle, ["gradient through 32 steps"]),
    ],
)
def test_gradients_that_are_wrong_are_found_where_they_are(kind: type[td.envs.Env], names: list[str]) -> None:
    assert wrong(notes_of(kind)) == names


def test_a_wrong_gradient_ends_the_command_with_an_error(capsys: Any) -> None:
    assert main(["train", "--env", "test_diagnosis:Detached", "--check"]) == 1
    assert "wrong gradient: reward 'speed'" in capsys.readouterr().out


def test_servos_that_ring_and_controls_cut_short_are_told() -> None:
    notes = notes_of(Ringing)
    assert not wrong(notes)
    assert notes["stiffness of servos"].verdict == "change" and "hip, knee" in notes["stiffness of servos"].advice
    assert notes["range of actions"].verdict == "change" and "hip, knee" in notes["range of actions"].measured


@pytest.mark.parametrize(("h", "kappa", "name"), [(0.01, 1e-1, "kappa"), (0.01, 1e-9, "kappa")])
def test_contacts_that_float_or_are_hard_are_told(h: float, kappa: float, name: str) -> None:
    config = read_config({"env": "own_hopper:OwnHopper", "env_options": {"kappa": kappa, "timestep": h}})
    notes = {note.name: note for note in diagnose(config)}
    assert notes[name].verdict == "change" and "env_options.kappa=" in notes[name].advice


def test_bad_input(capsys: Any) -> None:
    assert main(["train", "--check"]) == 2
    assert "--check: give either a description (CONFIG) or --env" in capsys.readouterr().err
    assert main(["train", "--env", "hopper"]) == 2
    assert "--output DIR: got none" in capsys.readouterr().err
