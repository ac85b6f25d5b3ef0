"""Checks a built site: every link, picture and anchor inside of it leads somewhere. `python configs/docs/check_links.py outputs/docs`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Targets of a page's links, and the names that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        self.targets |= {value for key in ("href", "src") if (value := values.get(key))}


def dead_links(site: Path) -> list[str]:
    """ "page: target" of each link that leads nowhere, or out of the folder. Links to other hosts are not followed."""
    site = site.resolve()
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            missing_anchor = anchor and file in pages and anchor not in pages[file].names
            if not file.is_file() or not file.is_relative_to(site) or missing_anchor:
                dead.append(f"{path.relative_to(site)}: {target}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    print("\n".join(["docs: links that lead nowhere", *found]) if found else "docs: every link inside leads somewhere", flush=True)
    sys.exit(bool(found))
