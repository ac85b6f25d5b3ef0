"""Files and folders of runs: whole at any moment, checked before they are used, with one writer."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo.runs.versions as code
from conftest import REPOSITORY
from torchdojo.identification import GaussNewtonOptions, ShootingOptions, ShootingStage, Stage
from torchdojo.identification.recordings import DataError, WindowDataset, read_recordings
from torchdojo.learning.random_search import Settings as SearchSettings
from torchdojo.learning.shac import ShacSettings
from torchdojo.planning.options import SolveOptions
from torchdojo.runs import check_arrays, locked, read_checkpoint, save_checkpoint, write_atomically
from torchdojo.runs.description import assign, load_yaml
from torchdojo.runs.lock import LOCK
from torchdojo.runs.metrics import Metrics, number, read_rows
from torchdojo.viewer.files import load_playbacks

WEIGHTS = 1000  # most of a file, so that most flipped bits hit them

# -- checkpoints -------------------------------------------------------------------------------------------------------------------------


def test_flipped_bits_of_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint with one flipped bit is refused, or holds what was written: the bit was padding."""
    weights, path = torch.arange(WEIGHTS, dtype=torch.float64), tmp_path / "last.ckpt"
    save_checkpoint(path, {"weights": weights, "iterations": 3})
    whole, generator, refused, silent = path.read_bytes(), random.Random(0), 0, 0
    for _ in range(300):
        place = generator.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        silent += not torch.equal(load_unchecked(path), weights)
        try:
            read = read_checkpoint(path, "a test", [("iterations",)])
        except ValueError as error:
            assert f"{path} is damaged, or no checkpoint of a test" in str(error) and "begin again" in str(error)
            refused += 1
        else:
            assert torch.equal(read["weights"], weights) and read["iterations"] == 3
    assert refused > 200 and silent > 200  # torch.load alone gives other weights, and says nothing


def load_unchecked(path: Path) -> torch.Tensor:
    try:
        return torch.load(path, weights_only=True)["weights"]
    except Exception:
        return torch.arange(WEIGHTS, dtype=torch.float64)


def test_checkpoints_of_something_else(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other.ckpt", {"policy": {}})
    with pytest.raises(ValueError, match=r"no checkpoint of ARS \(KeyError: 'weight'\)"):
        read_checkpoint(tmp_path / "other.ckpt", "ARS", [("policy", "weight")])


def test_checkpoints_and_revisions_name_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "last.ckpt", {"iterations": 1})
    kept = read_checkpoint(tmp_path / "last.ckpt", "a test", [("iterations",)])["versions"]
    assert kept == code.versions() and kept["torch"] == torch.__version__ and set(kept) == {"torchdojo", "revision", "torch", "python"}
    head = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert kept["revision"] is None if head.returncode else kept["revision"].removesuffix("-dirty") == head.stdout.strip()
    outside = tmp_path / "versions.py"
    monkeypatch.setattr(code, "__file__", str(outside))
    assert code.revision.__wrapped__() is None
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    outside.touch()  # in somebody's checkout, which does not track it
    assert code.revision.__wrapped__() is None


# -- files that are never torn -----------------------------------------------------------------------------------------------------------


def write_many(path: Path, letter: bytes, count: int) -> None:
    for _ in range(count):
        write_atomically(path, lambda file: file.write(letter * 30_000))


def test_readers_never_see_a_torn_file(tmp_path: Path) -> None:
    """Two processes write the same file, while this one reads it."""
    path = tmp_path / "shared.bin"
    write_many(path, b"a", 1)
    context = multiprocessing.get_context("fork")  # quick, and the writers only write
    writers = [context.Process(target=write_many, args=(path, letter, 150)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    reads = set()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert content in (b"a" * 30_000, b"b" * 30_000)
        reads.add(content[:1])
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads == {b"a", b"b"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.bin"]


def test_failed_writes_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted(file: io.BufferedWriter) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


# -- the lock ----------------------------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from torchdojo.runs import locked
with locked(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(300)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    return process


def test_a_folder_has_one_writer(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A second process is refused, by the name of the first one. When the first one is killed, the second one takes over."""
    folder = tmp_path / "run"
    process = holder(folder)
    try:
        expected = rf"in use by process {process.pid} on .* \(since 20.*\); allowed: one process .*; wait until it ends"
        with pytest.raises(ValueError, match=expected), locked(folder):
            pass
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / f"last.ckpt.{1:016x}.partial").write_bytes(b"half of")
        (folder / "mine.partial").write_bytes(b"not ours")
        assert not recwarn.list
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with pytest.warns(UserWarning, match=rf"takes over .* from process {process.pid} on .*, which ended without releasing"), locked(folder):
        assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["checkpoints", "mine.partial"]
    with locked(folder):  # released in order: there is nothing to take over
        assert len(recwarn.list) == 0
    assert not (folder / LOCK).exists()


def test_two_runs_of_one_process_have_two_folders(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match=rf"in use by process {os.getpid()}"), locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text("nonsense")
    with pytest.warns(UserWarning, match="takes over .* from a process unknown"), locked(tmp_path):
        pass


# -- metrics -----------------------------------------------------------------------------------------------------------------------------


def test_rows_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = Metrics(path)
    metrics.add({"samples": 10, "return": 0.1234567})
    metrics.add({"samples": 20})
    inode = path.stat().st_ino
    metrics.add({"samples": 30, "return": 2.0})
    assert path.stat().st_ino == inode  # appended
    metrics.add({"samples": 40, "speed": 1.0})
    assert path.read_text() == "samples,return,speed\n10,0.123457,\n20,,\n30,2,\n40,,1\n"
    with path.open("ab") as file:
        file.write(b"50,1")  # a row that is still being written
    assert [row["samples"] for row in read_rows(path)] == ["10", "20", "30", "40"]
    resumed = Metrics(path)
    resumed.keep(20)
    resumed.add({"samples": 30, "return": 3.0})
    assert path.read_text() == "samples,return,speed\n10,0.123457,\n20,,\n30,3,\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simples,return\n10,1\n", "got samples = None; allowed: a finite number"),
        ("samples,return\nten,1\n", "got samples = 'ten'"),
        ("samples,return\nnan,1\n", "got samples = 'nan'"),
        ("samples,return\n10\n", "line 2 has other columns"),
        ("samples,return\n10,1,2\n", "line 2 has other columns"),
        ("samples\n\xff\n", "can't decode"),
    ],
)
def test_damaged_metrics(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"metrics.csv is damaged: .*{message}.*; delete it"):
        Metrics(path).keep(100)


def test_missing_numbers(tmp_path: Path) -> None:
    assert np.isnan(number({"return": ""}, "return", tmp_path, float("nan")))


# -- archives and descriptions -----------------------------------------------------------------------------------------------------------


def archive(path: Path, shape: str, content: int, kind: str = "<f8", name: str = "playback") -> Path:
    """An .npz of one array of zeros, which compresses a thousandfold, with a header of one's own."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open(f"{name}.npy", "w", force_zip64=True) as member:
        member.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for _ in range(content // 2**20):
            member.write(bytes(2**20))
        member.write(bytes(content % 2**20))
    return path


@pytest.mark.parametrize(
    ("shape", "content", "kind", "message"),
    [
        ("(1000000000000,)", 80, "<f8", r"says float64 \(1000000000000,\), 8000000000000 bytes, and 80 follow"),
        ("(-3,)", 24, "<f8", "-24 bytes, and 24 follow"),
        ("(3,)", 24, "|O", "playback holds Python objects"),
    ],
)
def test_sizes_of_archives_are_checked_before_they_are_read(tmp_path: Path, shape: str, content: int, kind: str, message: str) -> None:
    path = archive(tmp_path / "huge.npz", shape, content, kind)
    with pytest.raises(ValueError, match=f"huge.npz is truncated or damaged: .*{message}"):
        load_playbacks(path)
    with pytest.raises(DataError, match=f"huge.npz is not an .npz file of plain arrays, or is damaged .*{message}"):
        read_recordings(path)


def test_archives_that_unpack_to_more_than_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdojo.runs.files.LARGEST", 2**22)
    path = archive(tmp_path / "bomb.npz", f"({2**19 + 1},)", 2**22 + 8)
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"unpack to more than 0.00390625 GiB .*; allowed: 0.00390625 GiB; keep every k-th sample"):
        load_playbacks(path)
    np.savez(tmp_path / "fine.npz", a=np.zeros((3, 0)), b=np.array(1.0), c=np.array("text"))
    with np.load(tmp_path / "fine.npz") as fine:
        check_arrays(fine)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 5000 + "]" * 5000, "is nested too deeply; allowed: up to 50 levels"),
        ("a: &a [*a]", "is nested too deeply"),
        ("a: [1", "is not YAML"),
        ("- 1", "holds list; allowed: a mapping"),
        ("\x00", "is not YAML"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"config.yaml {message}"):
        load_yaml(path)


def test_bad_values_on_the_command_line() -> None:
    with pytest.raises(ValueError, match="the value of seed is not YAML"):
        assign({}, "seed=[")
    with pytest.raises(ValueError, match="the value of seed is nested too deeply"):
        assign({}, "seed=" + "{a: " * 5000 + "1" + "}" * 5000)


SETTINGS = {
    "WindowDataset.horizon": lambda value: WindowDataset(None, value),  # type: ignore[arg-type]  # refused before it is read
    "GaussNewtonOptions.max_iterations": lambda value: GaussNewtonOptions(max_iterations=value),
    "ShootingStage.horizon": lambda value: ShootingStage(horizon=value),
    "ShootingOptions.draws": lambda value: ShootingOptions(draws=value),
    "Stage.horizon": lambda value: Stage(horizon=value),
    "SolveOptions.max_iterations": lambda value: SolveOptions(max_iterations=value),
    "directions": lambda value: SearchSettings(directions=value),
    "horizon": lambda value: ShacSettings(horizon=value),
}


@pytest.mark.parametrize("value", [2.5, "3", None, True, float("inf"), -1])
@pytest.mark.parametrize("name", SETTINGS)
def test_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: got {value!r}; allowed: a whole number of [01] or more"):
        SETTINGS[name](value)
