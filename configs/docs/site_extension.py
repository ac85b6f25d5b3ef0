"""The site's additions to Sphinx: API pages from `__all__`, docstrings as they are written here, llms.txt, and a front door.

Docstrings of the package are plain sentences with `code` in single backticks. Signs that reStructuredText would read as markup, such as the
bars of |ω| or the star of w*, are escaped outside of code.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)

LINK_TO_FOLDER = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)\)")
CODE_OR_MARKUP = re.compile(r"``.+?``|`[^`]+`|:\w+:`[^`]+`|[|*]|(?<=\w)_(?=\W|$)")
FIELD = re.compile(r"^[A-Za-z_]\w*(?:, \w+)*: ")  # "z: (..., 13 nb) states": a line of a class of results
SECTIONS = ("Args:", "Attributes:", "Raises:")
FLUSH = re.compile(r"\S(?!.*::$)")  # a line of a paragraph that starts at the margin
PARAGRAPH = 200  # characters of a page's first paragraph in llms.txt


def link_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to folders: to the README of the folder, or where it has none, its name as code."""
    here = Path(app.srcdir, page).parent

    def mend(match: re.Match[str]) -> str:
        target = here / match[2]
        if not target.is_dir():
            return match[0]
        return f"[{match[1]}]({match[2].rstrip('/')}/README.md)" if (target / "README.md").exists() else f"`{match[1]}`"

    source[0] = LINK_TO_FOLDER.sub(mend, source[0])


def tolerate_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Fields of results become lists, indented equations literal blocks, and signs outside of code no markup."""
    lines[:] = one_entry_per_line(lines, names_of(obj))
    if inspect.isclass(obj) and (issubclass(obj, tuple) or hasattr(obj, "__dataclass_fields__")):
        lines[:] = list_fields(lines)
    result: list[str] = []
    text: list[str] = []  # lines that are no equations and wait to be escaped: code in backticks may span two

    def finish() -> None:
        result.extend(CODE_OR_MARKUP.sub(escape, "\n".join(text)).split("\n") if text else [])
        text.clear()

    equation = False
    for i, line in enumerate(lines):
        if equation and line.strip() and not line.startswith("    "):
            equation = False
        if line.startswith("    ") and not equation and i > 1 and not lines[i - 1].strip() and FLUSH.match(lines[i - 2]):
            finish()
            result.extend(["::", ""])
            equation = True
        if equation:
            result.append(line)
        else:
            text.append(line)
    finish()
    lines[:] = result


def names_of(obj: Any) -> list[str]:
    """Arguments of a function or class, and fields of a named tuple."""
    try:
        return [*inspect.signature(obj).parameters, *getattr(obj, "_fields", ())]
    except (TypeError, ValueError):
        return []


def one_entry_per_line(lines: list[str], names: list[str]) -> list[str]:
    """Breaks "z: state. u: input." of a section, and the errors of "Raises:", into a line for each."""
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "$^"
    again = re.compile(rf"(?<=\.) (?=(?:{name})(?:, (?:{name}))*: |[A-Z]\w*Error: )")
    result, indent = [], None  # the indentation of entries, inside of a section
    for i, line in enumerate(lines):
        if line in SECTIONS:
            indent = "    "
        elif FIELD.match(line) and not lines[i - 1].strip():
            indent = ""
        elif not line.strip():
            indent = None
        pieces = again.split(line) if indent is not None else [line]
        result += [pieces[0], *(f"{indent}{piece}" for piece in pieces[1:])]
    return result


def escape(match: re.Match[str]) -> str:
    """Code as reStructuredText wants it, whatever stands beside it; anything else as a plain sign."""
    found, text = match[0], match.string
    if found.startswith(":"):
        return found
    if not found.startswith("`"):
        return "\\" + found
    before, after = text[: match.start()][-1:], text[match.end() :][:1]
    code = found if found.startswith("``") else f"`{found}`"
    return ("\\ " if before.isalnum() else "") + code + ("\\ " if after and (after.isalnum() or after in "([=") else "")


def list_fields(lines: list[str]) -> list[str]:
    """Turns paragraphs of "name: text" lines into lists, an item for each line and what is indented below it."""
    result: list[str] = []
    in_fields = False
    for i, line in enumerate(lines):
        starts = not line.strip() or i == 0 or not lines[i - 1].strip()
        if starts:
            in_fields = bool(FIELD.match(line))
            if in_fields and result and result[-1].strip():
                result.append("")
        if in_fields and line.strip():
            if FIELD.match(line):
                names, text = line.split(": ", 1)
                line = f"- `{names}`: {text}"
            else:
                line = f"  {line.strip()}"
        result.append(line)
    return result


def skip_member(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples stand in the docstring of their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


class PublicNames(SphinxDirective):
    """``.. public-names:: torchdojo`` documents the names of `__all__` from the modules of ``:from:``, those of ``:first:`` first."""

    required_arguments = 1
    option_spec = {"from": directives.unchanged, "first": directives.unchanged}  # noqa: RUF012  (docutils reads the class)

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        origins, first = self.options.get("from", "").split(), self.options.get("first", "").split()
        lines: list[str] = []
        for name in sorted(public_names(module), key=lambda name: first.index(name) if name in first else len(first)):
            value = getattr(module, name)
            origin = getattr(value, "__module__", "") or ""
            if origins and not any(origin == wanted or origin.startswith(wanted + ".") for wanted in origins):
                continue
            kind = "autoclass" if inspect.isclass(value) else "autofunction" if callable(value) else "autodata"
            if module.__name__ != "torchdojo":  # viewcode's way back from the source of a module that two pages name
                lines += [".. raw:: html", "", f'   <span id="torchdojo.{name}"></span>', ""]
            lines += [f".. {kind}:: {module.__name__}.{name}"]
            lines += [*(f"   {option}" for option in options_of(value)), ""]
            documented(self.env).add(f"{self.arguments[0]}.{name}")
        if not lines:
            logger.warning("public-names: %s has no name from %s", module.__name__, origins, location=self.get_location())
        container = nodes.section()
        container.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, container, match_titles=True)
        return container.children


def public_names(module: types.ModuleType) -> list[str]:
    """Names of `__all__` that are no modules: those have a page of their own."""
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


def options_of(value: Any) -> list[str]:
    """Members that a class inherits from classes without a place on the site are shown with it."""
    import torchdojo

    if not inspect.isclass(value):
        return []
    bases = [base for base in value.__mro__[1:] if base.__module__.startswith("torchdojo")]
    public = [base for base in bases if getattr(torchdojo, base.__name__, None) is base]
    hidden = bool(bases) and bases[0] not in public  # of a subclass of a public class, the base has its place
    inherited = ", ".join(["Module", "tuple", "Enum", *(base.__name__ for base in public)])
    return [*([f":inherited-members: {inherited}"] if hidden else []), *([":show-inheritance:"] if public else [])]


def documented(env: Any) -> set[str]:
    if not hasattr(env, "torchdojo_documented"):
        env.torchdojo_documented = set()
    return env.torchdojo_documented


def check_all_names(app: Sphinx, env: Any) -> None:
    """Every public name has its place on a page of the API."""
    import torchdojo

    modules = [torchdojo, *(getattr(torchdojo, name) for name in torchdojo.__all__ if inspect.ismodule(getattr(torchdojo, name)))]
    for module in modules:
        missing = {f"{module.__name__}.{name}" for name in public_names(module)} - documented(env)
        if missing:
            logger.warning("no page of configs/docs/api documents %s", ", ".join(sorted(missing)))


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """index.html leads to the first page; llms.txt lists the pages, each with a line, for programs that read."""
    if error is not None or app.builder.name != "html":
        return
    first = app.builder.get_target_uri(app.config.root_doc)
    Path(app.outdir, "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>torchdojo</title><meta http-equiv="refresh" content="0; url={first}">'
        f'<a href="{first}">torchdojo</a>\n'
    )
    lines = ["# torchdojo", "", "> Differentiable rigid-body physics with hard contact, as PyTorch modules.", "", "## Pages", ""]
    for page in sorted(app.env.found_docs, key=lambda page: (not page.startswith("configs/docs"), page)):
        title = app.env.titles[page].astext()
        paragraphs = app.env.get_doctree(page).findall(nodes.paragraph)
        text = next((paragraph.astext() for paragraph in paragraphs if not list(paragraph.findall(nodes.image))), "")
        words = " ".join(text.split())
        words = words if len(words) <= PARAGRAPH else words[:PARAGRAPH].rsplit(" ", 1)[0] + " …"
        lines.append(f"- [{title}]({app.builder.get_target_uri(page)})" + (f": {words}" if words else ""))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", link_folders)
    app.connect("autodoc-process-docstring", tolerate_docstring, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_member)
    app.connect("env-check-consistency", lambda app, env: check_all_names(app, env))
    app.connect("build-finished", write_front_door)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
