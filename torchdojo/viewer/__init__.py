"""See what a mechanism does: an offline page, a live view, a video, plots. Nothing below this folder imports it."""

from torchdojo.viewer.page import page_html, write_page
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import ContactPoint, JointFrame, Part, Scene, Triangles

__all__ = ["ContactPoint", "JointFrame", "Part", "Playback", "Scene", "Triangles", "page_html", "write_page"]
