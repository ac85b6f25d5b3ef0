"""The site: Sphinx reads every page of the repository where it lies. `bash scripts/docs.sh` builds it into outputs/docs.

The source folder is the root of the repository, so links between READMEs are links between pages. This folder has what only the site needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "torchdojo"
author = "the authors of torchdojo"
copyright = "the authors of torchdojo, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "site_extension", "live_figures"]
root_doc = "configs/docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
# A README that somebody adds to the package is a page of the site without a word here.
include_patterns = ["README.md", "CHANGELOG.md", "torchdojo/**.md", "scripts/README.md", "configs/docs/**.md", "configs/docs/**.rst"]
exclude_patterns = [".*", "outputs", "build", "dist", "**/.*", "tests", "notebooks"]

# GitHub's names of headings, so that links such as README.md#precision work on both.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings = ["myst.header"]  # pages of the repository may start a section below the level that Sphinx expects

default_role = "code"  # a name in single backticks of a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
maximum_signature_line_length = 60  # longer ones have a line for each argument
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_param = False  # a line of Args may describe two arguments: "lower, upper: ..."
napoleon_use_rtype = False
napoleon_use_ivar = True
highlight_language = "default"

html_theme = "furo"
html_title = "torchdojo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
