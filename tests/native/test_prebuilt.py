"""Kernels that come with a wheel: the choice by CPU, stale and damaged libraries. Python's own module plays the library."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torchdojo.commands import main
from torchdojo.native import loader, prebuilt, toolchain

SOURCES = {"kernel.cpp": b"int answer = 42;"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt, "cpu_levels", lambda: ("v3", "v2"))
    monkeypatch.delenv("TORCHDOJO_CPU_LEVEL", raising=False)
    return tmp_path


def publish(folder: Path, level: str, sources: dict[str, bytes] = SOURCES) -> Path:
    """A small library that opens, under the name of a kernel."""
    import _ctypes

    contents = Path(_ctypes.__file__).read_bytes()
    path = folder / prebuilt.library_name(level, prebuilt.source_key(sources), contents)
    path.write_bytes(contents)
    return path


def level_of(sources: dict[str, bytes] = SOURCES) -> str | None:
    found = prebuilt.open_prebuilt(sources)
    return None if found is None else found[1]


def test_best_level_of_the_cpu_is_taken(folder: Path):
    for level in prebuilt.LEVELS:
        publish(folder, level)
    assert level_of() == "v3"  # v4 lies there, too, but this CPU lacks it


@pytest.mark.parametrize(("chosen", "expected"), [("v2", "v2"), ("v3", "v3"), ("native", None)])
def test_level_is_chosen_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, expected: str | None):
    publish(folder, "v2"), publish(folder, "v3")
    monkeypatch.setenv("TORCHDOJO_CPU_LEVEL", chosen)
    assert level_of() == expected


@pytest.mark.parametrize(("chosen", "message"), [("v4", "does not have"), ("avx", "allowed are native, v4"), ("v3", "no usable kernel")])
def test_level_that_cannot_be_had_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, message: str):
    publish(folder, "v2")
    monkeypatch.setenv("TORCHDOJO_CPU_LEVEL", chosen)
    with pytest.raises(toolchain.NativeUnavailable, match=message):
        prebuilt.open_prebuilt(SOURCES)


def test_library_of_other_sources_is_not_opened(folder: Path):
    publish(folder, "v3", {"kernel.cpp": b"int answer = 41;"})
    assert level_of() is None


@pytest.mark.parametrize("keep", [0, 1000])
def test_damaged_library_is_named_and_the_next_level_taken(folder: Path, capfd: pytest.CaptureFixture[str], keep: int):
    publish(folder, "v2")
    damaged = publish(folder, "v3")
    damaged.write_bytes(damaged.read_bytes()[:keep])
    assert level_of() == "v2"
    said = capfd.readouterr().err
    assert str(damaged) in said and "pip install --force-reinstall" in said


def test_file_that_is_no_library_is_named(folder: Path, capfd: pytest.CaptureFixture[str]):
    path = folder / prebuilt.library_name("v3", prebuilt.source_key(SOURCES), b"text")
    path.write_bytes(b"text")
    assert level_of() is None
    assert str(path) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("machine", "best", "levels"),
    [
        ("x86_64", "v4", ("v4", "v3", "v2")),
        ("x86_64", "v3", ("v3", "v2")),
        ("x86_64", "v2", ("v2",)),
        ("aarch64", "neon", ("neon",)),
        ("riscv64", None, ()),
    ],
)
def test_levels_follow_from_the_features(monkeypatch: pytest.MonkeyPatch, machine: str, best: str | None, levels: tuple[str, ...]):
    monkeypatch.undo()
    monkeypatch.setattr(prebuilt.sys, "platform", "linux")
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: machine)
    has = " ".join(sorted(prebuilt.LEVELS[best][1])) if best else "asimd sse"
    name = "flags" if machine == "x86_64" else "Features"
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: [machine, f"{name}: {has}"])
    assert prebuilt.cpu_levels() == levels
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: [machine, f"{name}: sse fp"])
    assert prebuilt.cpu_levels() == ()


def test_loader_takes_it_without_a_compiler_or_a_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nothing is written, so a home that is read-only and processes that start together cannot matter."""
    publish(folder, "v3", loader._read(loader.SOURCES).sources)
    monkeypatch.delenv("TORCHDOJO_SANITIZE", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TORCHDOJO_CACHE", str(tmp_path / "cache"))
    assert loader.load_kernel(loader.SOURCES)._name.startswith(str(folder))
    assert not (tmp_path / "cache").exists()


def test_loader_knows_whether_it_would_compile(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("TORCHDOJO_SANITIZE", raising=False)
    monkeypatch.setattr(loader, "cache_roots", lambda: iter([tmp_path / "cache"]))
    monkeypatch.setattr(loader, "_with_compiler", lambda recipe: dataclasses.replace(recipe, key="key"))
    assert loader.compiles()
    (tmp_path / "cache" / "key").mkdir(parents=True)
    contents = publish(folder, "v2").read_bytes()
    (tmp_path / "cache" / "key" / f"kernel-{hashlib.sha256(contents).hexdigest()}.so").write_bytes(contents)
    assert not loader.compiles()
    monkeypatch.setattr(loader, "cache_roots", lambda: iter([]))
    assert loader.compiles()
    publish(folder, "v2", loader._read(loader.SOURCES).sources)
    assert not loader.compiles()


def test_cpu_below_all_levels_compiles_or_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for level in ("v2", "v3", "v4"):
        publish(folder, level, loader._read(loader.SOURCES).sources)
    monkeypatch.setattr(prebuilt, "cpu_levels", lambda: ())
    monkeypatch.delenv("TORCHDOJO_SANITIZE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHDOJO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loader.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(toolchain.NativeUnavailable, match=r"Install g\+\+ .* kernels are there for v2, v3, v4; this CPU has: none"):
        loader.load_kernel(loader.SOURCES)
    monkeypatch.undo()
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setattr(prebuilt, "cpu_levels", lambda: ())
    assert prebuilt.open_prebuilt(loader._read(loader.SOURCES).sources) is None  # so a compiler is looked for


def open_here(folder: str, ready: Any) -> str:
    prebuilt.FOLDER = Path(folder)
    prebuilt.cpu_levels = lambda: ("v3",)  # type: ignore[assignment]
    ready.wait()
    return prebuilt.open_prebuilt(SOURCES)[0]._name  # type: ignore[index]


def test_two_processes_that_start_together_open_one_file_and_write_nothing(folder: Path):
    path = publish(folder, "v3")
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in folder.iterdir())
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, ProcessPoolExecutor(2, mp_context=context) as pool:
        ready = manager.Barrier(2)
        assert [each.result(60) for each in [pool.submit(open_here, str(folder), ready) for _ in range(2)]] == [str(path)] * 2
    assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in folder.iterdir()) == before


def test_version_names_kernel_and_level(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    sources = loader._read(loader.SOURCES).sources
    publish(folder, "v2", sources)
    monkeypatch.delenv("TORCHDOJO_NATIVE", raising=False)
    monkeypatch.delenv("TORCHDOJO_SANITIZE", raising=False)
    assert main.main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("torchdojo ") and "prebuilt for v2" in said and prebuilt.source_key(sources) in said
