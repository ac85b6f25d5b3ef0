"""Settings of the whole test suite, and the way to the shared reference data."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Helpers of tests whose assertions show their values, as those of the tests do.
pytest.register_assert_rewrite("golden", "hopper", "late_copies", "machinery", "parity")

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("TORCHDOJO_SHARED") or REPOSITORY.parent / "shared").resolve()
SHARED_IS_REQUIRED = os.environ.get("TORCHDOJO_REQUIRE_SHARED") == "1" and SHARED.is_dir()


def shared_path(*parts: str) -> Path:
    """Path of a shared file or folder, e.g. ``shared_path("models", "ur5", "ur5_robot.urdf")``.

    Skips the calling test (or, called while a module is imported, that module) when the path does not exist. With
    ``TORCHDOJO_REQUIRE_SHARED=1`` (set by ``.ci/run``) and a shared folder present, it fails instead. Available as a fixture of
    the same name, and by ``from conftest import shared_path``.
    """
    path = SHARED.joinpath(*parts)
    if path.exists():
        return path
    reason = f"shared data missing: {path} (set TORCHDOJO_SHARED to the folder that holds it)"
    if SHARED_IS_REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(name="shared_path", scope="session")
def _shared_path() -> Callable[..., Path]:
    return shared_path


@pytest.fixture
def write_mjcf(tmp_path: Path) -> Callable[..., Path]:
    def write(world: str, rest: str = "", name: str = "robot.xml") -> Path:
        path = tmp_path / name
        path.write_text(f'<mujoco><compiler angle="radian" autolimits="true"/>{rest}<worldbody>{world}</worldbody></mujoco>')
        return path

    return write


@pytest.fixture
def write_urdf(tmp_path: Path) -> Callable[..., Path]:
    def write(*elements: str, robot: str = '<robot name="r">') -> Path:
        path = tmp_path / "robot.urdf"
        path.write_text(f'<?xml version="1.0"?>{robot}{"".join(elements)}</robot>')
        return path

    return write


def _fail_if_skipped_for_shared_data(report: Any) -> None:
    """Turn a skip into a failure where its reason is the shared data: catches the tests that do not ask `shared_path`."""
    if not (SHARED_IS_REQUIRED and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if "shared" in reason.lower() or str(SHARED) in reason:
        report.outcome = "failed"
        report.longrepr = f"skipped although {SHARED} exists and TORCHDOJO_REQUIRE_SHARED=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped_for_shared_data(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped_for_shared_data(report)
    return report


def pytest_configure() -> None:
    # Before collection, so that tensors in parametrize tables are float64 as well.
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, the blocks of all READMEs and whole fits: one that began last would leave the other process without work."""
    items.sort(key=lambda item: "identification" not in item.path.parts and item.name != "test_blocks_run_and_print_what_they_say")


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> Iterator[None]:
    """Each test starts from seed 0 and float64, whatever ran before it."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
