"""Live figures: a page's motion, in the viewer's page, which one can turn and stop. It needs no network.

A line such as `<!-- live: mech.animate(path) -->` of a Markdown page is an expression in the names of the Python block before it, or of all
blocks before it where the page has the line `<!-- blocks: in order -->`. The site runs these blocks and shows the animation in that place.
GitHub shows nothing there. What a block prints is compared in tests/test_readmes.py.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FIGURE = re.compile(r"^<!-- live: (.+) -->$", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_ORDER = "<!-- blocks: in order -->"
FOLDER = "live"  # of the built site
HEIGHT = 440  # [px]


def show_motions(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the lines of a page that ask for a figure.

    Raises:
        ValueError: a line without a block before it, or with an expression that is no animation.
    """
    text = source[0]
    if app.builder.name != "html" or not FIGURE.search(text):
        return
    up = "../" * app.builder.get_target_uri(page).count("/")
    number = 0

    def show(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        name = f"{page.replace('/', '_')}_{number}.html"
        file = Path(app.outdir, FOLDER, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(animation(page, match[1], text[: match.start()]).page())
        title = html.escape(f"A motion that can be turned: {match[1]}")
        return f'<iframe class="live" src="{up}{FOLDER}/{name}" title="{title}" height="{HEIGHT}" loading="lazy"></iframe>'

    source[0] = FIGURE.sub(show, text)


def animation(page: str, expression: str, before: str) -> Any:
    """The value of the expression of a line, after the blocks before it."""
    from torchdojo.viewer.animation import Animation

    blocks = PYTHON.findall(before)
    if not blocks:
        raise ValueError(f"{page}: got <!-- live: {expression} --> before any Python block; put it behind the one that makes the motion")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks if IN_ORDER in before else blocks[-1:]:
            exec(compile(block, page, "exec"), names)
        value = eval(expression, names)
    if not isinstance(value, Animation):
        raise ValueError(f"{page}: got {type(value).__name__} from <!-- live: {expression} -->; allowed: an animation, mech.animate(path)")
    return value


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", show_motions)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
