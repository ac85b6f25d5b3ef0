"""Objects reached as module:function: what is refused, names and fit folders of before, and a core that knows no data set."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from conftest import REPOSITORY
from torchdojo import identification
from torchdojo.identification import FittedObject
from torchdojo.identification.run_folder import RUN, begin_run
from torchdojo.identification.user_object import NAMES_OF_BEFORE, find_object

OBJECTS = """
from torchdojo.identification.objects.cube import cube_model

WIDTH = 0.2
NUMBER = 3

def good(timestep, parameters=("friction",), *, start=None, kappa=1e-6, **laws):
    return cube_model(timestep, parameters, start=start, kappa=kappa, **laws)

def mechanism(timestep, parameters=(), *, start=None, kappa=1e-6):
    return cube_model(timestep).mechanism

def without_start(timestep, parameters=()):
    return cube_model(timestep)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "objects_of_a_user.py").write_text(OBJECTS)
    monkeypatch.syspath_prepend(tmp_path)
    return "objects_of_a_user"


def test_an_object_brings_its_width(module):
    user_object = find_object(f"{module}:good")
    assert (user_object.width, user_object.check_recordings) == (0.2, None)
    model = user_object.build(0.01, ["half_side"], start={"half_side": 0.04})
    assert float(model.values()["half_side"].detach()) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ball", "no object 'ball'; allowed: module:function, as in torchdojo.identification.objects.cube:cube_model"),
        ("nowhere:ball", "No module named 'nowhere'; allowed: module:function, of a module that Python finds (PYTHONPATH)"),
        ("{module}:ball", "has no function 'ball'; its functions: good, mechanism, without_start"),
        ("{module}:NUMBER", "has no function 'NUMBER'; its functions: good"),
        ("{module}:without_start", "keyword argument 'start'; allowed: a function (timestep, parameters, *, start, kappa, **laws)"),
    ],
)
def test_objects_that_cannot_be_built_are_refused(name, message, module):
    with pytest.raises(ValueError) as error:
        find_object(name.format(module=module))
    assert message in str(error.value)


def test_what_a_function_returns_is_checked(module):
    with pytest.raises(TypeError, match="its function returns Mechanism; allowed: a ParametricMechanism"):
        find_object(f"{module}:mechanism").build(0.01, ())


@pytest.mark.parametrize("name", ["cube", "elbow"])
def test_fits_of_before_load(name, tmp_path):
    """Parameters that revision 985d80c wrote, and a throw as it simulated it: 30 steps down to the ground and up again."""
    before = json.loads((REPOSITORY / "tests" / "data" / "fits_of_before.json").read_text())[name]
    (tmp_path / "parameters.json").write_text(json.dumps(before["parameters"]))
    fitted = FittedObject.load(tmp_path / "parameters.json")
    assert json.loads(json.dumps(dataclasses.asdict(fitted))) == before["parameters"] | {"nominal": {}}  # which it did not write
    model = fitted.model(1 / 148)
    with torch.no_grad():
        z = model.mechanism.to_maximal(torch.zeros(model.mechanism.num_coordinates, dtype=torch.float64)).reshape(-1, 13)
        z[:, 2] += 0.02 - model.call("distances", z.flatten()).min()
        z[:, 3], z[:, 5] = 1.0, -0.5
        trajectory = model.rollout(z.flatten(), 30)
        assert float(model.call("distances", trajectory.z).min()) < 5e-3
    torch.testing.assert_close(trajectory.z[-1], torch.tensor(before["z"], dtype=torch.float64), rtol=1e-7, atol=1e-9)


def test_runs_of_before_go_on_under_the_full_name_of_their_object(tmp_path):
    data, folder = tmp_path / "tosses.npz", tmp_path / "out"
    data.write_bytes(b"tosses")
    begin_run(folder, {"object": "cube", "seed": 0}, data, resume=False)
    assert json.loads((folder / RUN).read_text())["description"]["object"] == "cube"
    begin_run(folder, {"object": NAMES_OF_BEFORE["cube"], "seed": 0}, data, resume=True)
    with pytest.raises(ValueError, match=r"description\.object"):
        begin_run(folder, {"object": NAMES_OF_BEFORE["elbow"], "seed": 0}, data, resume=True)


def test_the_core_imports_no_object():
    folder = Path(identification.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "__init__.py":
            imports = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
            assert not any(module.startswith("torchdojo.identification.objects") for module in imports), path.name
