"""The loader of the native kernel, tested on a kernel of one line: caching, rebuilding, and the messages of failures."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from torchdojo.native import loader, toolchain

COMPILER = shutil.which(os.environ.get("CXX") or "c++")
if COMPILER is None:
    pytest.skip("no C++ compiler", allow_module_level=True)

ANNOUNCEMENT = "torchdojo: compiling the native kernel"
DEADLINE = 60.0  # of everything that is waited for: a hang fails instead


@pytest.fixture
def source_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "my sources"  # with a space, as a user's folder may have
    folder.mkdir()
    (folder / "answer.hpp").write_text("constexpr int answer = 42;\n")
    (folder / "kernel.cpp").write_text('#include "answer.hpp"\nextern "C" int get_answer() { return answer; }\n')
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, source_dir: Path, cache: Path) -> None:
    """Each test has its own cache, and the loader starts as in a new process."""
    for name in ("CXX", "TORCHDOJO_SANITIZE", "TORCHDOJO_NATIVE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHDOJO_CACHE", str(cache))
    monkeypatch.setattr(loader, "SOURCES", source_dir)
    monkeypatch.setattr(loader, "_outcome", None)
    monkeypatch.setattr(loader, "_warned", False)


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """A compiler that writes a line to `compiles.log` when it compiles the kernel, and then takes $PAUSE seconds."""
    path = tmp_path / "wrapped-c++"
    log = tmp_path / "compiles.log"
    path.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*kernel.cpp*) echo $$ >> "{log}"; sleep ${{PAUSE:-0}};; esac\nexec {COMPILER} "$@"\n')
    path.chmod(0o755)
    log.write_text("")
    return path


def compiles(wrapper: Path) -> int:
    return len((wrapper.parent / "compiles.log").read_text().splitlines())


def start(source_dir: Path, code: str = "print(loader.library().get_answer())", **environment: str) -> subprocess.Popen[str]:
    """A new process with the kernel in `source_dir`, at the head of its own process group."""
    program = f"from pathlib import Path; from torchdojo.native import loader; loader.SOURCES = Path({str(source_dir)!r}); {code}"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """(stdout, stderr) of a process that must succeed."""
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, err
    return out.strip(), err


def wait_until(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < DEADLINE
        time.sleep(0.02)


def published(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/kernel-*.so"))


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*/*") if path.name != "lock" and not path.name.startswith("kernel-")]


# The cache.


def test_second_process_takes_the_library_from_the_cache(source_dir: Path, cache: Path):
    code = "import sys; print(loader.library().get_answer(), 'torch.utils.cpp_extension' in sys.modules)"
    out, err = finish(start(source_dir, code))
    assert out == "42 True" and err.count(ANNOUNCEMENT) == 1
    (library,) = published(cache)
    before = library.stat()
    out, err = finish(start(source_dir, code))
    assert out == "42 False" and err == ""  # torch's builder is not even imported
    assert published(cache) == [library] and library.stat().st_mtime_ns == before.st_mtime_ns
    assert leftovers(cache) == []


def test_import_neither_compiles_nor_imports_the_builder(source_dir: Path, cache: Path):
    out, err = finish(start(source_dir, "import sys, torchdojo; print('torch.utils.cpp_extension' in sys.modules)"))
    assert out == "False" and err == "" and not cache.exists()


def test_build_restores_the_environment(source_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LC_ALL", raising=False)
    before = dict(os.environ)
    assert loader.load_kernel(source_dir).get_answer() == 42
    assert dict(os.environ) == before


def test_ninja_is_found_without_an_activated_environment(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ninja")
    monkeypatch.setenv("PATH", "/nowhere")
    assert shutil.which("ninja", path=loader._build_path()) is not None


def test_threads_share_one_library(capfd: pytest.CaptureFixture[str]):
    libraries: list[ctypes.CDLL] = []
    threads = [threading.Thread(target=lambda: libraries.append(loader.library())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(libraries) == 4 and all(library is libraries[0] for library in libraries)
    assert capfd.readouterr().err.count(ANNOUNCEMENT) == 1


@pytest.mark.parametrize("name", ["kernel.cpp", "answer.hpp"])
def test_changed_source_is_compiled_anew(source_dir: Path, cache: Path, name: str):
    assert loader.load_kernel(source_dir).get_answer() == 42
    path = source_dir / name
    path.write_text(path.read_text().replace("return answer", "return 43").replace("= 42", "= 43"))
    assert loader.load_kernel(source_dir).get_answer() == 43
    assert len(published(cache)) == 2


def test_key_follows_everything_the_code_depends_on(source_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def key() -> str:
        return loader.make_recipe(source_dir).key

    keys = [key()]
    assert key() == keys[0]
    compiler = tmp_path / "other-c++"
    for version in ("1", "2"):  # another path, then another version at the same path
        compiler.write_text(f"#!/bin/sh\necho other {version}\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
        keys.append(key())
    monkeypatch.setenv("CXX", f"{compiler} -g")
    keys.append(key())
    monkeypatch.delenv("CXX")
    with monkeypatch.context() as patch:
        patch.setattr(loader, "cpu_features", lambda: ["flags: avx2"])
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(loader, "require_asan_runtime", lambda compiler: None)
        patch.setenv("TORCHDOJO_SANITIZE", "1")
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr("torch.__version__", "0.0")
        keys.append(key())
    (source_dir / "kernel.cpp").rename(source_dir / "renamed.cpp")
    keys.append(key())
    assert len(set(keys)) == len(keys)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_cpu_features_name_the_instruction_sets():
    features = toolchain.cpu_features()
    assert features == toolchain.cpu_features()
    assert any(line.startswith(("flags: ", "Features: ", "isa: ")) for line in features)


@pytest.mark.parametrize(
    "damage", ["truncated", *(pytest.param(name, marks=pytest.mark.slow) for name in ("empty", "altered", "not a library"))]
)
def test_damaged_library_is_rebuilt(source_dir: Path, cache: Path, capfd: pytest.CaptureFixture[str], damage: str):
    recipe = loader.make_recipe(source_dir)
    folder = cache / recipe.key
    if damage == "not a library":  # its checksum is right, but it does not open
        folder.mkdir(parents=True)
        draft = folder / "draft"
        draft.write_bytes(b"nonsense")
        draft.rename(folder / f"kernel-{loader._checksum(draft)}.so")
    else:
        finish(start(source_dir))  # elsewhere: the file must not change under a process that has it open
        (library,) = published(cache)
        content = library.read_bytes()
        library.write_bytes({"empty": b"", "truncated": content[:-100], "altered": content[:-1] + bytes([content[-1] ^ 1])}[damage])
    assert loader.load_kernel(source_dir).get_answer() == 42
    assert capfd.readouterr().err.count(ANNOUNCEMENT) == 1
    assert len(published(cache)) == 1
    assert loader.load_kernel(source_dir).get_answer() == 42
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("hidden", ["PATH", "CXX", "broken"])
def test_a_cached_library_needs_no_compiler(source_dir: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str):
    """Nothing on the PATH, $CXX of another machine, or a compiler that does not run: the library is the one that a compiler left here."""
    assert loader.load_kernel(source_dir).get_answer() == 42
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    variable, value = {"PATH": ("PATH", "/nowhere"), "CXX": ("CXX", "/nowhere/g++"), "broken": ("CXX", str(broken))}[hidden]
    monkeypatch.setenv(variable, value)
    assert loader.load_kernel(source_dir).get_answer() == 42 and len(published(cache)) == 1
    # Other flags, another CPU, other sources or a damaged file are no match.
    with monkeypatch.context() as patch, pytest.raises(loader.NativeUnavailable, match="compiler"):
        patch.setattr(loader, "cpu_features", lambda: ["flags: avx2"])
        loader.load_kernel(source_dir)
    with monkeypatch.context() as patch, pytest.raises(loader.NativeUnavailable, match="compiler"):
        patch.setenv("CXX", "/nowhere/g++ -O1")
        loader.load_kernel(source_dir)
    with monkeypatch.context() as patch, pytest.raises(loader.NativeUnavailable, match="compiler"):
        patch.setenv("TORCHDOJO_SANITIZE", "1")
        loader.load_kernel(source_dir)
    (source_dir / "answer.hpp").write_text("constexpr int answer = 43;\n")
    with pytest.raises(loader.NativeUnavailable, match="compiler"):
        loader.load_kernel(source_dir)


# Several processes, and processes that die.


def test_processes_that_start_together_compile_once(source_dir: Path, cache: Path, wrapper: Path):
    processes = [start(source_dir, CXX=str(wrapper), PAUSE="3") for _ in range(2)]
    results = [finish(process) for process in processes]
    assert [out for out, _ in results] == ["42", "42"]
    assert sum(err.count(ANNOUNCEMENT) for _, err in results) == 1
    assert compiles(wrapper) == 1 and len(published(cache)) == 1


@pytest.mark.parametrize("whole_group", [True, False], ids=["process group", "python only"])
def test_killed_compile_does_no_harm(source_dir: Path, cache: Path, wrapper: Path, whole_group: bool, monkeypatch: pytest.MonkeyPatch):
    process = start(source_dir, CXX=str(wrapper), PAUSE="30")
    try:
        wait_until(lambda: compiles(wrapper) == 1)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
        assert published(cache) == [] and len(leftovers(cache)) == 1
        monkeypatch.setenv("CXX", str(wrapper))
        started = time.monotonic()
        assert loader.load_kernel(source_dir).get_answer() == 42  # with the orphaned compiler still there, if only python died
        assert time.monotonic() - started < 25
        assert len(published(cache)) == 1 and leftovers(cache) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_lock_that_is_never_released_does_not_hang(source_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "LOCK_SECONDS", 0.2)
    folder = cache / loader.make_recipe(source_dir).key
    (folder / "build-of-another-process").mkdir(parents=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert loader.load_kernel(source_dir).get_answer() == 42
    assert [path.name for path in leftovers(cache)] == ["build-of-another-process"]  # it may be at work still


# Folders that cannot be written.


def test_unusable_home_falls_back_to_a_temporary_folder(
    source_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("TORCHDOJO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))  # below a regular file: not even root can write there
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert loader.load_kernel(source_dir).get_answer() == 42
    err = capfd.readouterr().err
    assert "cannot write the cache folder" in err and "TORCHDOJO_CACHE" in err
    (library,) = published(tmp_path / "tmp" / f"torchdojo-{os.getuid()}")
    assert library.parents[1].stat().st_mode & 0o777 == 0o700
    assert loader.load_kernel(source_dir).get_answer() == 42
    assert capfd.readouterr().err == ""


def test_no_folder_at_all_is_an_error_with_the_remedy(source_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHDOJO_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "tmp"))
    with pytest.raises(loader.NativeUnavailable, match="Set TORCHDOJO_CACHE"):
        loader.load_kernel(source_dir)


def test_temporary_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    squatted = tmp_path / f"torchdojo-{os.getuid()}"
    squatted.mkdir()
    squatted.chmod(0o777)
    assert loader._temporary_root() != squatted
    squatted.chmod(0o700)
    assert loader._temporary_root() == squatted


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TORCHDOJO_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"TORCHDOJO_CACHE": "~/a", "HOME": "/c"}, "/c/a"),
        ({"TORCHDOJO_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/torchdojo"),
        ({"TORCHDOJO_CACHE": "", "XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/torchdojo"),
        ({"TORCHDOJO_CACHE": "", "HOME": "/c"}, "/c/.cache/torchdojo"),
    ],
)
def test_cache_folder(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert next(loader.cache_roots()) == Path(expected)


# Failures: each is an exception from `library`, and one warning from `available`.


def fail() -> str:
    """The message of the failure, once it is sure that it comes as promised."""
    with pytest.warns(RuntimeWarning, match="the pure-torch reference runs instead, which is much slower") as warned:
        assert not loader.available()
        assert not loader.available()
    assert len(warned) == 1
    with pytest.raises(loader.NativeUnavailable) as raised:
        loader.library()
    assert str(raised.value) in str(warned[0].message)
    return str(raised.value)


def test_available():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader.available()


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    message = fail()
    assert "CXX=/nonexistent" in message and "Install g++ or clang++, or set CXX" in message
    monkeypatch.delenv("CXX")
    assert not loader.available()  # remembered: a long run does not look again at every step


def test_no_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "Install g++ or clang++, or set CXX" in fail()


def test_compiler_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "does not run" in fail()


def test_missing_ninja(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "_build_path", lambda: "/nowhere")
    assert 'pip install "torchdojo[native]"' in fail()


def test_compile_error_shows_the_output_of_the_compiler(source_dir: Path, cache: Path):
    (source_dir / "kernel.cpp").write_text('extern "C" int get_answer() { return undeclared_name; }\n')
    message = fail()
    assert f"{source_dir}/kernel.cpp:1" in message and "undeclared_name" in message
    assert leftovers(cache) == [] and published(cache) == []


def test_library_that_does_not_open(source_dir: Path):
    (source_dir / "kernel.cpp").write_text('int missing_symbol();\nextern "C" int get_answer() { return missing_symbol(); }\n')
    message = fail()
    assert "cannot be opened" in message and "missing_symbol" in message


def test_missing_sources(source_dir: Path):
    shutil.rmtree(source_dir)
    assert "reinstall torchdojo" in fail()


def test_switched_off(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.setenv("TORCHDOJO_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loader.available()
    with pytest.raises(loader.NativeUnavailable, match="TORCHDOJO_NATIVE"):
        loader.library()
    assert not cache.exists()
    monkeypatch.delenv("TORCHDOJO_NATIVE")
    assert loader.available()


# Flags.


def test_compiler_without_some_flags_builds_without_them(
    source_dir: Path, wrapper: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    refuse = 'case "$*" in *=native*) echo "unknown flag" >&2; exit 1;; esac\n'
    wrapper.write_text(wrapper.read_text().replace("\n", f"\n{refuse}", 1))
    monkeypatch.setenv("CXX", str(wrapper))
    assert loader.load_kernel(source_dir).get_answer() == 42
    assert "does not take -march=native" in capfd.readouterr().err


def test_threads_of_the_standard_library_run(source_dir: Path):
    (source_dir / "kernel.cpp").write_text(
        '#include <thread>\nextern "C" int get_answer() { int n = 0; std::thread([&] { n = 42; }).join(); return n; }\n'
    )
    assert loader.load_kernel(source_dir).get_answer() == 42


def test_sanitizer_without_its_runtime_is_an_error_and_no_crash(source_dir: Path, monkeypatch: pytest.MonkeyPatch):
    if hasattr(ctypes.CDLL(None), "__asan_init"):
        pytest.skip("the runtime is here")
    monkeypatch.setenv("TORCHDOJO_SANITIZE", "1")
    assert "LD_PRELOAD=" in fail()


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_sanitizer_reports_an_overrun(source_dir: Path):
    assert COMPILER is not None
    runtime = [
        subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True).strip() for name in ("libasan.so", "libstdc++.so")
    ]
    if not os.path.isabs(runtime[0]):
        pytest.skip("the compiler has no libasan.so")
    (source_dir / "kernel.cpp").write_text('extern "C" int get_answer(int i) { int a[3] = {1, 2, 3}; return a[i]; }\n')
    environment = {"TORCHDOJO_SANITIZE": "1", "LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"}
    process = start(source_dir, "lib = loader.library(); print(lib.get_answer(1), flush=True); lib.get_answer(3)", **environment)
    out, err = process.communicate(timeout=DEADLINE)
    assert out.strip() == "2" and process.returncode != 0
    assert f"{source_dir}/kernel.cpp:1" in err and "runtime error: index 3 out of bounds" in err
