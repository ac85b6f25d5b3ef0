"""The XML of a robot file, or an error that names the file."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

__all__ = ["read_xml"]


def read_xml(path: Path, kind: str) -> Element:
    """Root element of the file. Blanks before the XML declaration are left out: other programs read such files.

    Args:
        kind: of file, for the message of a missing one.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it is no XML, or in an encoding that Python does not know.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{kind} file {str(path)!r} does not exist (working directory {str(Path.cwd())!r})")
    try:
        return ElementTree.fromstring(path.read_bytes().lstrip())
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: malformed XML: {error}; allowed: well-formed XML, in which every element is closed") from error
    except (LookupError, ValueError) as error:  # the first is of Python's codecs: encoding="world"
        raise ValueError(f"{path}: the XML cannot be decoded: {error}; allowed: an encoding that Python knows, such as utf-8") from error
