"""Which backend takes a step, what it says of that, and what it leaves alone in other processes."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import torchdojo as td


class Padded(td.NonlinearContact):
    """An element that the kernel does not know."""


def mechanism(contact: type[td.NonlinearContact], **options: str) -> td.Mechanism:
    return td.Mechanism(
        {"ball": td.Body(1.0, (0.1, 0.1, 0.1))},
        contacts={"tip": contact("ball", radius=0.1)},
        options=td.SolverOptions(**options),  # type: ignore[arg-type]
    )


def test_auto_says_once_which_element_takes_the_reference() -> None:
    mech = mechanism(Padded)
    z = mech.initial_state(ball=dict(position=(0.0, 0.0, 1.0)))
    with pytest.warns(UserWarning, match=r"the reference takes the steps.*contacts\.tip.*Padded.*backend=\"reference\"") as caught:
        mech(z)
    assert caught[0].filename == __file__  # the line of the user, not one of torchdojo
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech(z)
        mech.rollout(z, steps=2)


@pytest.mark.parametrize("contact, backend", [(td.NonlinearContact, "auto"), (Padded, "reference")])
def test_nothing_is_said_of_what_was_asked_for(contact: type[td.NonlinearContact], backend: str) -> None:
    mech = mechanism(contact, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech(mech.initial_state(ball=dict(position=(0.0, 0.0, 1.0))))


FORK = """
import multiprocessing as mp, sys
import torch, torchdojo as td

def child(results):
    before = torch.get_num_threads()
    mech = td.models.box()
    mech(td.models.initial_state("box", mech))
    after = torch.get_num_threads()
    torch.set_num_threads(2)
    mech(td.models.initial_state("box", mech))
    results.put((before, after, torch.get_num_threads()))

if __name__ == "__main__":
    torch.set_num_threads(2)
    context = mp.get_context("fork")
    results = context.SimpleQueue()
    worker = context.Process(target=child, args=(results,))
    worker.start()
    print(*results.get())
    worker.join()
"""


@pytest.mark.skipif(not hasattr(torch, "set_num_threads") or sys.platform == "win32", reason="no fork on this system")
def test_forked_children_keep_the_threads_of_torch() -> None:
    """The import changes nothing in a forked child. Its first call of a mechanism takes one thread, and later choices stay."""
    ran = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["2", "1", "2"], ran.stderr[-2000:]
