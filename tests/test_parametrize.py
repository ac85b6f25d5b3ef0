"""Parametrizations: the same step, gradients by the chain rule, domains that no optimizer leaves, copies, state dictionaries, baking."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td

ROUNDING = dict(rtol=1e-12, atol=1e-13)  # log and exp, logit and the logistic function, Cholesky factors of well-conditioned matrices


def scene(backend: str = "auto") -> td.Mechanism:
    """A box that slides on the ground, with a pendulum on it that has a spring, a limit and friction in its joint."""
    turn = torch.linalg.qr(torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 0.7], [0.2, 0.4, 1.0]])).Q
    inertia = turn @ torch.diag(torch.tensor([0.02, 0.03, 0.04])) @ turn.mT
    return td.Mechanism(
        {"box": td.Body(1.3, inertia), "rod": td.Body(0.4, (0.01, 0.012, 0.004))},
        {
            "hinge": td.Revolute(
                "box", "rod", axis=(0.6, 0.8, 0.0), child_anchor=(0, 0, 0.3), spring=2.0, damper=0.1, limits=(-1.0, 0.6), friction=0.05
            )
        },
        {
            f"corner{i}": td.NonlinearContact("box", point=(a, b, -0.1), radius=0.01, friction=0.4, normal=(0.1, 0.0, 1.0), restitution=0.2)
            for i, (a, b) in enumerate(((0.1, 0.1), (0.1, -0.1), (-0.1, 0.0)))
        },
        timestep=0.01,
        options=td.SolverOptions(kappa=1e-4, backend=backend),
    )


@torch.no_grad()  # joint coordinates depend on axes and the timestep
def start(mech: td.Mechanism, count: int | None = None) -> Tensor:
    shape = () if count is None else (count,)
    z = mech.initial_state(shape, box=dict(position=(0, 0, 0.125), velocity=(0.5, 0.2, -1.0)), hinge=dict(q=0.58, qd=2.0))
    return z if count is None else z + torch.linspace(0, 0.1, count)[:, None] * torch.eye(26)[3]


def wrap(mech: td.Mechanism) -> None:
    """Every parametrization once, in every kind of module."""
    td.parametrize.inertia(mech.bodies["box"])
    td.parametrize.positive(mech.bodies["rod"], "mass")
    td.parametrize.positive(mech.joints["hinge"], "spring")
    td.parametrize.unit(mech.joints["hinge"], "axis")
    td.parametrize.bounded(mech.joints["hinge"], "upper", 0.1, 1.0)
    td.parametrize.positive(mech.joints["hinge"], "friction")
    td.parametrize.bounded(mech.contacts["corner0"], "friction", 0, 2)
    td.parametrize.bounded(mech.contacts["corner2"], "restitution", 0, 1)
    td.parametrize.positive(mech.contacts["corner1"], "radius")
    td.parametrize.unit(mech.contacts["corner2"], "normal")
    td.parametrize.positive(mech, "timestep")


@pytest.mark.parametrize(("backend", "built"), [("native", "before"), ("native", "after"), ("reference", "after")])
def test_same_step(backend: str, built: str) -> None:
    """A mechanism steps the same, parametrized before its modules are put together or afterwards."""
    plain, wrapped = scene(backend), scene(backend)
    wrap(wrapped)
    if built == "after":
        parts = [list(part.items()) for part in (wrapped.bodies, wrapped.joints, wrapped.contacts)]
        wrapped = td.Mechanism(*parts, timestep=wrapped.timestep.detach(), options=wrapped.options)
    z = start(plain, 3)
    torch.testing.assert_close(wrapped(z), plain(z), **ROUNDING)
    torch.testing.assert_close(wrapped.rollout(z, steps=3).z, plain.rollout(z, steps=3).z, rtol=1e-9, atol=1e-10)
    assert all(p.requires_grad for name, p in wrapped.named_parameters() if "original" in name)


def test_gradients() -> None:
    """With respect to every θ: against central differences, and the reference against the kernel."""
    mech = scene("native")
    wrap(mech)
    names = [name for name, p in mech.named_parameters() if p.requires_grad]
    assert len(names) == 12
    z, weights = start(mech), torch.randn(26)
    report = td.testing.check_gradients(mech, z, parameters=names, tolerance=1e-6)
    for name in names:
        assert float(report.numeric[f"{name} -> state"].abs().max()) > 1e-6, name
    trained = [p for p in mech.parameters() if p.requires_grad]
    native = torch.autograd.grad(mech(z) @ weights, trained)
    mech.options = td.SolverOptions(kappa=1e-4, backend="reference")
    # Two solves of residuals below 1e-9, amplified by derivatives of some 1e2.
    for one, other in zip(native, torch.autograd.grad(mech(z) @ weights, trained), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1.0),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_stay_in_the_domain(optimizer: str) -> None:
    """Long steps in arbitrary directions: every value remains one that its field accepts, and the step is solved."""
    mech, z = scene(), start(scene())
    wrap(mech)
    # The timestep is left out: long steps may have no solution.
    trained = [p for name, p in mech.named_parameters() if p.requires_grad and "timestep" not in name]
    solver, before = OPTIMIZERS[optimizer](trained), [p.detach().clone() for p in trained]
    weights = [torch.randn_like(p) for p in trained]
    for _ in range(10):
        solver.zero_grad()
        pull = torch.stack([(w * p).sum() for w, p in zip(weights, trained, strict=True)]).sum()
        (pull + 1e-3 * mech(z).square().sum()).backward()
        solver.step()
    for p, q in zip(trained, before, strict=True):
        assert float((p.detach() - q).abs().max()) > 0.5
    for module in (*mech.bodies.values(), *mech.joints.values(), *mech.contacts.values()):
        for name in module.fields:
            value = getattr(module, name).detach()
            torch.testing.assert_close(module.check_field(name, value), value, rtol=0, atol=1e-12)
    assert int(mech.step(z).status) == td.Status.SUCCESS


def test_inertia_is_always_realisable() -> None:
    """Any seven numbers are a body: positive mass, moments that obey the triangle inequality; and every body has such numbers."""
    body = td.Body(torch.ones(1000), torch.eye(3).expand(1000, 3, 3))
    log_mass, theta = td.parametrize.inertia(body)
    assert log_mass.shape == (1000,) and theta.shape == (1000, 6)
    with torch.no_grad():
        log_mass.copy_(2 * torch.randn(1000))
        theta.copy_(2 * torch.randn(1000, 6))
    moments = torch.linalg.eigvalsh(body.inertia)
    assert bool((body.mass > 0).all()) and bool((moments[:, 0] > 0).all())
    # Strictly so in exact arithmetic; lengths e^d that differ by e^±8 leave less than the rounding of the largest moment.
    assert bool((moments[:, 2] <= (moments[:, 0] + moments[:, 1]) * (1 + 1e-12)).all())
    body.check_field("inertia", body.inertia.detach())

    root = torch.randn(1000, 3, 3)
    second = root @ root.mT + 1e-3 * torch.eye(3)  # Σ/m of random bodies
    trace = second.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    target = trace * torch.eye(3) - second
    body.mass = torch.ones(1000)
    body.inertia = target
    torch.testing.assert_close(body.inertia, target, rtol=1e-10, atol=1e-10)
    # Rucker and Wensing's factor with t = 0: the pseudo-inertia is U Uᵀ.
    d, s = theta[:, :3].exp(), theta[:, 3:]
    upper = torch.diag_embed(d)
    upper[:, 0, 1], upper[:, 1, 2], upper[:, 0, 2] = s.unbind(-1)
    torch.testing.assert_close(upper @ upper.mT, second, rtol=1e-9, atol=1e-9)


def test_mass_scales_inertia() -> None:
    body = td.Body(2.0, (0.1, 0.2, 0.25))
    td.parametrize.inertia(body)
    body.mass = 4.0
    torch.testing.assert_close(body.inertia, torch.diag(torch.tensor([0.2, 0.4, 0.5])), **ROUNDING)
    bounded = td.Body(2.0, (0.1, 0.2, 0.25))
    mass = td.parametrize.bounded(bounded, "mass", 1.0, 3.0)
    assert td.parametrize.inertia(bounded)[0] is mass


def test_identification_of_mass_and_inertia() -> None:
    """Adam on the log-Cholesky numbers finds the body that a torque-driven motion was made with."""
    truth, model = scene(), scene()
    truth.bodies["box"].mass, truth.bodies["box"].inertia = 2.0, (0.05, 0.03, 0.04)
    td.parametrize.inertia(model.bodies["box"])
    z = truth.initial_state((6,), box=dict(position=(0, 0, 2.0)))
    wrench = torch.cat((5 * torch.eye(6), torch.zeros(6, 6)), dim=-1)
    with torch.no_grad():
        target = truth.rollout(z, steps=3, wrench=wrench).z
    optimizer = torch.optim.LBFGS(
        [p for p in model.parameters() if p.requires_grad],
        max_iter=200,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-14,
        tolerance_change=0,
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (model.rollout(z, steps=3, wrench=wrench).z - target).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    # Velocities agree to 1e-7 of those of some 0.1 m/s, and the moments to the same digits.
    torch.testing.assert_close(model.bodies["box"].mass.detach(), torch.tensor(2.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(model.bodies["box"].inertia.detach(), torch.diag(torch.tensor([0.05, 0.03, 0.04])), rtol=0, atol=1e-6)


def test_values_are_never_stale() -> None:
    """The kernel keeps what it computed of parameters while they stay the same; a parametrized value is computed at every step."""
    mech = scene("native")
    z = start(mech)
    with torch.no_grad():
        mech(z)  # fills the cache
        theta = td.parametrize.positive(mech.bodies["box"], "mass")
        for change in (lambda: theta.data.add_(0.3), lambda: theta.mul_(2.0), lambda: setattr(mech.bodies["box"], "mass", 0.7)):
            before = mech(z)
            change()
            fresh = scene("native")
            fresh.bodies["box"].mass = mech.bodies["box"].mass.detach()
            torch.testing.assert_close(mech(z), fresh(z), **ROUNDING)
            assert not torch.equal(mech(z), before)
        td.parametrize.bake(mech)
        torch.testing.assert_close(mech(z), fresh(z), **ROUNDING)
        mech.bodies["box"].mass = 5.0
        assert not torch.allclose(mech(z), fresh(z))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_batches_of_values(backend: str) -> None:
    """One value per environment, one bound per environment, and gradients of each."""
    mech = scene(backend)
    mech.bodies["box"].mass = torch.tensor([1.0, 1.5, 2.0])
    mech.contacts["corner0"].friction = torch.tensor([0.3, 0.4, 0.5])
    log_mass, theta = td.parametrize.inertia(mech.bodies["box"])
    friction = td.parametrize.bounded(mech.contacts["corner0"], "friction", 0.0, torch.tensor([1.0, 2.0, 3.0]))
    assert log_mass.shape == friction.shape == (3,) and theta.shape == (3, 6)
    z = start(mech)
    out = mech(z)
    grads = torch.autograd.grad(out[:, :6].sum(), [log_mass, theta, friction])
    for i in range(3):
        single = scene(backend)
        single.bodies["box"].mass = mech.bodies["box"].mass[i].detach()
        single.contacts["corner0"].friction = mech.contacts["corner0"].friction[i].detach()
        alone = [*td.parametrize.inertia(single.bodies["box"]), td.parametrize.bounded(single.contacts["corner0"], "friction", 0, 1.0 + i)]
        result = single(z)
        torch.testing.assert_close(result, out[i], **ROUNDING)
        for grad, expected in zip(grads, torch.autograd.grad(result[:6].sum(), alone), strict=True):
            torch.testing.assert_close(grad[i], expected, rtol=1e-8, atol=1e-10)


def test_functional_call_and_compile_see_the_parameters() -> None:
    mech = scene()
    theta = td.parametrize.positive(mech.bodies["box"], "mass")
    z = start(mech)
    key = "bodies.box.parametrizations.mass.original"
    changed = torch.func.functional_call(mech, {key: theta.detach() + 0.5}, (z,))
    per_sample = torch.func.vmap(lambda t: torch.func.functional_call(mech, {key: t}, (z,)))(theta.detach() + torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(per_sample, torch.stack((mech(z), changed)).detach(), **ROUNDING)
    mech.bodies["box"].mass = mech.bodies["box"].mass.detach() * torch.tensor(0.5).exp()
    torch.testing.assert_close(mech(z).detach(), changed, **ROUNDING)


# -- copies ------------------------------------------------------------------------------------------------------------------------------


def pickled(mech: td.Mechanism) -> td.Mechanism:
    copied: td.Mechanism = pickle.loads(pickle.dumps(mech))
    return copied


def stored(mech: td.Mechanism) -> td.Mechanism:
    buffer = io.BytesIO()
    torch.save(mech, buffer)
    buffer.seek(0)
    copied: td.Mechanism = torch.load(buffer, weights_only=False)
    return copied


def reloaded(mech: td.Mechanism) -> td.Mechanism:
    other = scene()
    wrap(other)
    for p in other.parameters():
        p.data.mul_(1.1)
    buffer = io.BytesIO()
    torch.save(mech.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    return other


@pytest.mark.parametrize("copier", [copy.deepcopy, pickled, stored, reloaded])
def test_copies_are_equal_and_independent(copier: Callable[[td.Mechanism], td.Mechanism]) -> None:
    mech = scene()
    wrap(mech)
    mech.contacts["corner0"].friction = 1.7
    z = start(mech)
    before = mech(z).detach()
    copied = copier(mech)
    assert torch.equal(copied(z), before)
    assert {k: v.shape for k, v in copied.named_parameters()} == {k: v.shape for k, v in mech.named_parameters()}
    copied.bodies["box"].mass = 7.0
    copied.bodies["box"].parametrizations.inertia.original.data.add_(0.3)
    assert not torch.equal(copied(z), before)
    with torch.no_grad(), torch.nn.utils.parametrize.cached():  # keyed by module: a copy must not see the values of the original
        assert float(mech.bodies["box"].mass) != float(copied.bodies["box"].mass)
    td.parametrize.bake(copied)
    assert torch.equal(mech(z), before)
    assert mech.bodies["box"].mass.item() == pytest.approx(1.3)
    torch.autograd.grad(mech(z).sum(), [p for p in mech.parameters() if p.requires_grad])


def test_bake() -> None:
    mech = scene()
    names = {name: p.shape for name, p in mech.named_parameters()}
    wrap(mech)
    assert "contacts.corner0.parametrizations.friction.0.upper" in mech.state_dict()
    z = start(mech)
    before = mech(z).detach()
    td.parametrize.bake(mech)
    assert {name: p.shape for name, p in mech.named_parameters()} == names
    assert not any(p.requires_grad for p in mech.parameters())
    assert {type(m) for m in mech.modules()} == {type(m) for m in scene().modules()}
    torch.testing.assert_close(mech(z), before, rtol=0, atol=0)
    scene().load_state_dict(mech.state_dict())
    td.parametrize.bake(mech)  # nothing left to do
    wrap(mech)  # and again
    torch.testing.assert_close(mech(z), before, **ROUNDING)


def test_bake_refuses_what_the_field_refuses() -> None:
    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - 3.0

        def right_inverse(self, y: Tensor) -> Tensor:
            return y + 3.0

    mech = scene()
    nn.utils.parametrize.register_parametrization(mech.bodies["box"], "mass", Shift())
    mech.bodies["box"].parametrizations.mass.original.data.sub_(2.0)
    with pytest.raises(ValueError, match=r"Body\.mass: got .*; allowed: positive masses"):
        td.parametrize.bake(mech)
    mech.bodies["box"].mass = 2.0
    td.parametrize.bake(mech)
    assert float(mech.bodies["box"].mass) == 2.0


def test_shared_values_are_not_changed() -> None:
    """Two bodies with one parameter: to parametrize the mass of one leaves the other's alone."""
    shared = nn.Parameter(torch.tensor(2.0))
    one, other = td.Body(1.0, (1, 1, 1)), td.Body(1.0, (1, 1, 1))
    one.mass = shared
    other.mass = shared
    td.parametrize.positive(one, "mass")
    assert other.mass.item() == 2.0 and one.mass.item() == pytest.approx(2.0)


# -- bad input ---------------------------------------------------------------------------------------------------------------------------


def test_refused_registrations() -> None:
    mech = scene()
    box, hinge, corner = mech.bodies["box"], mech.joints["hinge"], mech.contacts["corner0"]
    before = {name: p.clone() for name, p in mech.state_dict().items()}
    frictionless = td.NonlinearContact("box", friction=0.0)
    for attempt, message in (
        (lambda: td.parametrize.positive(frictionless, "friction"), r"NonlinearContact\.friction is 0\.0; allowed: values > 0.*Start from"),
        (lambda: td.parametrize.positive(box, "inertia"), r"is a matrix; use td\.parametrize\.inertia"),
        (lambda: td.parametrize.positive(box, "density"), r"no field 'density' in this Body; it has \['mass', 'inertia'\]"),
        (lambda: td.parametrize.positive(corner, "restitution"), r"not every value.*coefficients of restitution from 0 to 1"),
        (lambda: td.parametrize.positive(corner, "stiffness"), r"no field 'stiffness' in this NonlinearContact; it has \['point',"),
        (lambda: td.parametrize.bounded(corner, "restitution", -0.5, 1), r"not every value.*restitution: got -0\.5; allowed"),
        (lambda: td.parametrize.bounded(corner, "friction", 0.5, 1), r"friction is 0\.4; allowed: values between 0\.5 and 1\.0, both excl"),
        (lambda: td.parametrize.bounded(corner, "friction", 1, 0.5), r"got bounds 1 and 0\.5; allowed: lower < upper"),
        (lambda: td.parametrize.bounded(corner, "friction", 0.4, 1), r"allowed: values between 0\.4 and 1\.0, both excluded"),
        (lambda: td.parametrize.bounded(corner, "friction", 0, float("inf")), r"not every value.*finite numbers"),
        (lambda: td.parametrize.bounded(hinge, "upper", -2.0, 1.0), r"not every value.*lower limits below the upper ones"),
        (lambda: td.parametrize.unit(box, "mass"), r"Body\.mass has shape \(\) and is no vector"),
        (lambda: td.parametrize.unit(corner, "point"), r"point has length .*which has a meaning; allowed: directions \(normal\)"),
        (lambda: td.parametrize.inertia(td.Body(1.0, (1.0, 1.0, 2.0))), r"without thickness; allowed: less than the sum\. Give the body"),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()
    with pytest.raises(TypeError, match="got Revolute; allowed: a Body"):
        td.parametrize.inertia(hinge)
    with pytest.raises(TypeError, match="got Linear; allowed: a body, joint, contact or mechanism"):
        td.parametrize.positive(nn.Linear(1, 1), "weight")
    assert all(torch.equal(value, before[name]) for name, value in mech.state_dict().items())
    td.parametrize.positive(box, "mass")
    with pytest.raises(ValueError, match=r"Body\.mass is parametrized already; undo that with td\.parametrize\.bake"):
        td.parametrize.bounded(box, "mass", 0.1, 10)
    corner.friction = 0.3 * torch.ones((), requires_grad=True)
    with pytest.raises(ValueError, match=r"a graph of its own.*module\.friction = module\.friction\.detach\(\)"):
        td.parametrize.positive(corner, "friction")


def test_refused_assignments() -> None:
    """A parametrized field takes what the field and the parametrization accept, and keeps its value otherwise."""
    mech = scene()
    box, corner = mech.bodies["box"], mech.contacts["corner0"]
    td.parametrize.positive(box, "mass")
    td.parametrize.bounded(corner, "friction", 0.1, 2)
    for module, name, value, message in (
        (box, "mass", -1.0, r"Body\.mass: got -1\.0; allowed: positive masses"),
        (box, "mass", float("nan"), r"Body\.mass: got nan; allowed: finite numbers"),
        (corner, "friction", 3.0, r"friction is 3\.0; allowed: values between 0\.1 and 2\.0"),
        (corner, "friction", torch.ones((), requires_grad=True), r"requires grad for a parametrized field.*value\.detach\(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            setattr(module, name, value)
    assert box.mass.item() == pytest.approx(1.3) and corner.friction.item() == pytest.approx(0.4)
    box.mass = 2
    assert box.mass.item() == pytest.approx(2.0)


def test_assigned_limits() -> None:
    """Limits are checked as a pair, whichever of them is parametrized."""
    hinge = scene().joints["hinge"]
    td.parametrize.bounded(hinge, "upper", 0.1, 1.0)
    hinge.limits = (-0.8, 0.5)
    assert hinge.lower.item() == -0.8 and hinge.upper.item() == pytest.approx(0.5)
    with pytest.raises(ValueError, match="lower limits below the upper ones"):
        hinge.upper = -0.9
    with pytest.raises(ValueError, match="lower limits below the upper ones"):
        hinge.lower = 0.7
    with pytest.raises(ValueError, match=r"not every value.*lower limits below the upper ones"):
        td.parametrize.bounded(hinge, "lower", -1.0, 0.6)
