"""The report on a step's gradients: rows, differences that are found, modes of contact, conditioning, what it says and refuses."""

import dataclasses
import json

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo.commands.main import main
from torchdojo.solver.kkt import KKT
from torchdojo.testing.active_set import active_set
from torchdojo.testing.conditioning import derivative, step_problem


def resting(push: float = 0.0, contact: type[td.Contact] = td.NonlinearContact, kappa: float = 1e-6) -> tuple[td.Mechanism, Tensor, Tensor]:
    """A 1 kg cube after 20 steps on the ground, pushed along x with `push` times its weight; μ = 0.5. Mechanism, z, u."""
    corners = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
    given = {} if contact is td.ImpactContact else {"friction": 0.5}
    mech = td.Mechanism(
        {"box": td.Body(1.0, (0.04, 0.04, 0.04))},
        {"base": td.Floating(None, "box")},
        {f"corner{i}": contact("box", point=p, **given) for i, p in enumerate(corners)},
        options=td.SolverOptions(kappa=kappa),
    )
    u = torch.tensor([push * 9.81, 0.0, 0.0, 0.0, 0.0, 0.0])
    with torch.no_grad():
        z = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.2501))), u.expand(20, 6)).z[-1]
    return mech, z, u


@pytest.mark.parametrize("parameters", ["trainable", "all", "classes", "bodies.box", ["gravity", "contacts.corner0"]])
def test_rows(parameters: str | list[str]) -> None:
    mech, z, u = resting(0.3, kappa=1e-4)
    mech.bodies["box"].mass.requires_grad_()
    report = td.testing.gradient_report(mech, z, u, parameters=parameters)
    inputs = ["z.box", "u", "wrench.box"]
    fields = ["point", "radius", "normal", "offset", "friction"]
    joint = ["axis", "parent_anchor", "child_anchor", "orientation_offset", "spring", "damper", "rest"]
    expected = {
        "trainable": ["bodies.box.mass"],
        "all": [name for name, _ in mech.named_parameters()],
        "classes": ["timestep", "gravity", "bodies.*.mass", "bodies.*.inertia"]
        + [f"joints.*.{name}" for name in joint]
        + [f"contacts.*.{name}" for name in fields],
        "bodies.box": ["bodies.box.mass", "bodies.box.inertia"],
    }
    wanted = expected[parameters] if isinstance(parameters, str) else ["gravity", *(f"contacts.corner0.{name}" for name in fields)]
    assert [row.name for row in report.rows] == inputs + wanted
    assert report.ok(1e-6), str(report)
    assert report.worst.difference == max(row.difference for row in report.rows) and not report.ok(0.5 * report.worst.difference)
    assert [p.requires_grad for p in mech.parameters()].count(True) == 1  # as before
    assert mech.options == td.SolverOptions(kappa=1e-4)


def test_values_are_the_derivatives() -> None:
    """A loss whose derivatives are known: the height after a step of a body in flight."""
    mech = td.Mechanism({"ball": td.Body(2.0, (0.1, 0.1, 0.1))}, timestep=0.1)
    mech.timestep.requires_grad_()
    z = mech.initial_state(ball=dict(position=(0, 0, 5.0), velocity=(0, 0, 3.0)))
    report = td.testing.gradient_report(
        mech, z, loss=lambda out: out.z[..., 2], parameters=["timestep", "bodies", "gravity"], directions=None
    )
    rows = {row.name: row for row in report.rows}
    # z⁺ = z + h (v + h g): the axis that agrees least is shown, whose derivative is one of these.
    speed = 3.0 - 2 * 0.1 * 9.81
    for name, allowed in {"timestep": [speed], "gravity": [0.0, 0.01], "bodies.ball.mass": [0.0], "wrench.ball": [0.0, 0.005]}.items():
        assert min(abs(rows[name].analytic - value) for value in allowed) < 1e-9
        assert min(abs(rows[name].numeric - value) for value in allowed) < 1e-9
    assert report.ok(1e-9)


class WrongGradient(torch.autograd.Function):
    """The identity, with a derivative that is 1 % too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 1.01 * grad


def test_wrong_gradients_are_found() -> None:
    mech, z, u = resting(0.3)

    def loss(out: td.StepOutput) -> Tensor:
        return WrongGradient.apply(out.z)[..., 3]

    report = td.testing.gradient_report(mech, z, u, loss=loss)
    assert not report.ok(1e-3)
    assert report.worst.difference == pytest.approx(0.01, rel=3)  # several entries, along random directions
    assert report.worst.analytic == pytest.approx(1.01 * report.worst.numeric, rel=1e-5)

    def broken(out: td.StepOutput) -> Tensor:
        return (out.z[..., 3] * 0).sqrt()

    report = td.testing.gradient_report(mech, z, u, loss=broken)
    assert report.worst.difference == float("inf") and not report.ok(1e6)


@pytest.mark.parametrize("contact", [td.NonlinearContact, td.LinearContact])
@pytest.mark.parametrize(("push", "mode"), [(0.0, "sticking"), (0.3, "sticking"), (0.8, "sliding")])
def test_modes_of_contact(contact: type[td.Contact], push: float, mode: str) -> None:
    """Pushed below and above its friction limit; the upper corners are open."""
    mech, z, u = resting(push, contact)
    report = td.testing.gradient_report(mech, z, u)
    below = mech.distances(z) < 0.1
    # The push acts above the ground and tips the cube: the corners at the back may lift off.
    modes = [report.active.contacts[name].mode for name in mech.contacts]
    assert {m for m, low in zip(modes, below, strict=True) if low} - {"open"} == {mode}
    assert all(m == "open" for m, low in zip(modes, below, strict=True) if not low)
    assert f"{sum(m != 'open' for m in modes)} of 8 closed" in str(report) and f": {mode}, gap" in str(report)
    impulses = sum(c.impulse for c in report.active.contacts.values())
    assert impulses == pytest.approx(0.01 * 9.81, rel=1e-3)


def test_frictionless_contacts_slide() -> None:
    mech, z, u = resting(0.0, td.ImpactContact)
    assert [c.mode for c in td.testing.gradient_report(mech, z, u).active.contacts.values()].count("sliding") == 4


@pytest.mark.parametrize(("angle", "rate", "reached"), [(0.0, 0.0, []), (0.499, 2.0, ["upper 0"]), (-0.299, -2.0, ["lower 0"])])
def test_limits_and_frictions(angle: float, rate: float, reached: list[str]) -> None:
    hinge = td.Revolute(None, "rod", axis=(1, 0, 0), child_anchor=(0, 0, 0.5), limits=(-0.3, 0.5), friction=0.2)
    mech = td.Mechanism({"rod": td.Body(1.0, (0.1, 0.1, 0.01))}, {"hinge": hinge})
    report = td.testing.gradient_report(mech, mech.initial_state(hinge=dict(q=angle, qd=rate)), parameters="all")
    assert report.ok(1e-6), str(report)
    assert report.active.limits == {"hinge": reached}
    # In the step in which a limit stops it the hinge still turns, by a milliradian.
    assert report.active.frictions == {"hinge": ["sliding" if reached else "sticking"]}
    assert f"limits: {'hinge (' + reached[0] + ')' if reached else 'none acts'}" in str(report)


def test_condition_number() -> None:
    """The condition number belongs to the matrix whose transpose the gradient solves; dense and condensed derivative agree."""
    mech, z, u = resting(0.3, kappa=1e-4)
    report = td.testing.gradient_report(mech, z, u)
    with torch.no_grad():
        problem, w = step_problem(mech, z, u), mech.step(z, u).solution
        matrix, right = derivative(problem, w), torch.randn(1, len(w))
        torch.testing.assert_close(KKT(problem, w[None]).solve(right), torch.linalg.solve(matrix, right[0])[None], rtol=1e-7, atol=1e-9)
        assert active_set(mech, problem, w).contacts.keys() == mech.contacts.keys()
    assert report.condition == pytest.approx(float(torch.linalg.cond(matrix)), rel=1e-2)
    assert 1 <= report.condition_balanced < report.condition
    assert f"condition number of the linear system: {report.condition:.2g}" in str(report)


def test_smoothed_gradients_are_named() -> None:
    """Gradients at grad_kappa are not those that differences see; the report shows both, and says why they differ."""
    mech, z, u = resting(0.3)
    sharp = td.testing.gradient_report(mech, z, u)
    mech.options = dataclasses.replace(mech.options, grad_kappa=1e-3)
    smooth = td.testing.gradient_report(mech, z, u)
    assert sharp.ok(1e-4) and not sharp.smoothed and "smoothed" not in str(sharp)
    assert not smooth.ok(1e-2) and smooth.smoothed
    assert "differ by design; with grad_kappa=None they can be compared" in str(smooth)
    assert mech.options.grad_kappa == 1e-3


def test_shared_parameters_move_together() -> None:
    """One parameter in two bodies: its derivative is the sum over both, and so are the differences."""
    mech = td.Mechanism({"a": td.Body(1.0, (0.1, 0.1, 0.1)), "b": td.Body(1.0, (0.1, 0.1, 0.1))}, gravity=(0, 0, 0))
    shared = torch.nn.Parameter(torch.tensor(2.0))
    mech.bodies["a"].mass = shared
    mech.bodies["b"].mass = shared
    wrench = torch.randn(12)
    report = td.testing.gradient_report(mech, mech.initial_state(), wrench=wrench, loss=lambda out: out.z[..., 3] + out.z[..., 16])
    row = report.rows[-1]
    assert row.name == "bodies.a.mass"
    assert row.numeric == pytest.approx(-0.01 * float(wrench[0] + wrench[6]) / 4, rel=1e-7)
    assert report.ok(1e-7)
    assert td.testing.check_gradients(mech, mech.initial_state(), parameters=["bodies.a.mass"]).max_relative_error < 1e-7


def test_refused() -> None:
    mech, z, u = resting()
    for arguments, message in (
        ((mech, z[None], u), r"got z of shape \(1, 13\).*allowed: one environment, \(13 nb,\), float64"),
        ((mech, z.float(), u), r"torch\.float32; allowed: one environment"),
        ((mech, z * float("nan"), u), r"the step fails at this state: the state, input, wrench or a parameter is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            td.testing.gradient_report(*arguments)
    with pytest.raises(
        ValueError, match=r"no parameter begins with 'body'; allowed: \"trainable\", \"all\", \"classes\", or beginnings of"
    ):
        td.testing.gradient_report(mech, z, u, parameters=["body"])
    with pytest.raises(ValueError, match=r"has shape \(13,\); allowed: one number per environment"):
        td.testing.gradient_report(mech, z, u, loss=lambda out: out.z)
    with pytest.raises(ValueError, match="tangent_step: the step fails"):
        td.testing.tangent_step(mech, z * float("nan"))
    mech.bodies["box"].mass = torch.ones(3)
    with pytest.raises(ValueError, match=r"parameters have batch dimensions \(3,\); allowed: one environment"):
        td.testing.gradient_report(mech, z, u)


# -- the command -------------------------------------------------------------------------------------------------------------------------


def test_check_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "box", "--steps", "40", "--check", "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert report["passed"] and report["gradient_error_relative"] <= report["gradient_tolerance"] == 1e-4
    assert report["condition_number_balanced"] > 1
    for text in ("gradients of the step after", "z.box", "contacts.*.friction", "condition number", "gradient against differences"):
        assert text in out


def test_check_fails_with_its_exit_status(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdojo.commands import simulate

    monkeypatch.setattr(simulate, "check_tolerance", lambda kappa: 1e-16)
    assert main(["simulate", "sphere", "--steps", "4", "--check"]) == 1
    assert "allowed 1e-16: FAILED" in capsys.readouterr().out


def test_check_fails_where_nothing_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A pendulum that spins faster than the step can represent is flagged at once."""
    mech = models.pendulum()
    z = mech.initial_state(hinge=dict(q=0.3))
    z[10] = 1e4
    from torchdojo.commands.simulate import gradient_check, record

    mech.options = td.SolverOptions(max_halvings=0)
    report = gradient_check(mech, record(mech, z[None], 2), seed=0)
    assert report == {"gradient_error_relative": None, "passed": False}
    assert "no gradient check after" in capsys.readouterr().out


def test_other_gradient_modes_are_named() -> None:
    mech = td.models.box()
    mech.options = td.SolverOptions(gradient_mode="exact")
    report = td.testing.gradient_report(mech, mech.initial_state())
    assert report.smoothed and "those of the mode 'exact'" in str(report)
