"""The private names of PyTorch that torchdojo uses: all of them stand here, with what they are for, and each exists in this version.

A new version of PyTorch may take any of them away without a warning. So a public name is better wherever there is one.
"""

from __future__ import annotations

import importlib
import re

import pytest

from conftest import REPOSITORY

#: name -> what it is for, where PyTorch has no public name
INTERNALS = {
    "torch._C._functorch.maybe_current_level": "whether a transform of torch.func runs",
    "torch._C._functorch.is_gradtrackingtensor": "whether torch.func differentiates by a tensor",
    "torch._C._functorch.is_functorch_wrapped_tensor": "whether values of a tensor are hidden by torch.func",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": "packing of numbers inside of a transform",
    "torch._C._autograd": "hooks of saved tensors, which graphs of the solver must not see",
    "torch._C._dispatch_tls_local_exclude_set": "autograd inside of an operator",
    "torch._C._dispatch_tls_local_include_set": "autograd inside of an operator",
    "torch._C._ForceDispatchKeyGuard": "autograd inside of an operator",
    "torch._C.DispatchKey": "autograd inside of an operator",
    "torch._library.autograd": "derivatives of operators, of lists of tensors too",
    "torch._ops.OpOverload": "the type of an operator",
    "torch._dynamo.symbolic_convert": "numbers that compiled code reads when it runs (native/live.py)",
    "torch._dynamo.source": "its guard",
    "torch._C._dynamo.guards": "its guard",
    "torch._guards": "its guard",
    "torch._dynamo.exc.TorchDynamoException": "rewards that do not compile, which stay as they are (envs/rated.py)",
    "torch._inductor.config": "segments that are compiled ahead (envs/direct.py)",
    "torch._inductor.compile_fx": "segments that are compiled ahead",
    "torch._functorch.config": "segments that are compiled ahead",
    "torch._foreach_lerp_": "averages of the weights of networks, in one call",
    "torch._foreach_copy_": "copies of the weights of networks, in one call",
}
#: attributes of public objects
ATTRIBUTES = {
    "_dynamo_marked_constant": "functions whose value compiled code keeps, without importing the compiler",
    "_inject_new_class": "copies of parametrized modules",
    "_inject_property": "copies of parametrized modules",
    "aoti_torch_get_data_ptr": "addresses of many tensors in one call",
    "_ZNK3c1010TensorImpl13requires_gradEv": "whether any of many tensors requires grad, in one call; each is asked where it is missing",
    "_cdata": "addresses of many tensors in one call",
}
NAME = re.compile(r"\btorch(?:\.\w+)*\._[a-zA-Z]\w*(?:\.\w+)*")
IMPORT = re.compile(r"^\s*from (torch(?:\.\w+)*) import (.+)$", re.MULTILINE)


def used() -> set[str]:
    names: set[str] = set()
    for path in (REPOSITORY / "torchdojo").rglob("*.py"):
        code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        for module, imported in IMPORT.findall(code):
            if "._" in module:
                names |= {f"{module}.{name.partition(' as ')[0].strip(' (),')}" for name in imported.split(",")}
        names |= set(NAME.findall(IMPORT.sub("", code)))
    return names


def test_every_private_name_is_listed() -> None:
    listed, names = tuple(INTERNALS), used()
    unlisted = {name for name in names if not any(name == one or name.startswith(f"{one}.") for one in listed)}
    assert not unlisted, f"private names of PyTorch that are not listed here: {sorted(unlisted)}; use a public one, or list it"
    unused = [one for one in listed if not any(name == one or name.startswith(f"{one}.") for name in names)]
    assert not unused, f"no longer used: {unused}"
    text = "\n".join(path.read_text() for path in (REPOSITORY / "torchdojo").rglob("*.py"))
    assert all(name in text for name in ATTRIBUTES)


@pytest.mark.parametrize("name", INTERNALS)
def test_this_version_has_it(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        assert hasattr(importlib.import_module(module), attribute)
