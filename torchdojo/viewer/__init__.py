"""See what a mechanism does: an offline page, a live view, a video, plots. Nothing below this folder imports it."""

from torchdojo.viewer.files import load_playbacks, save_playbacks
from torchdojo.viewer.live import LiveView, live
from torchdojo.viewer.page import page_html, write_page
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.plots import plot, plot_gradients
from torchdojo.viewer.scene import ContactPoint, JointFrame, Part, Scene, Triangles
from torchdojo.viewer.stage import Camera
from torchdojo.viewer.video import draw_frames, write_video

__all__ = [
    "Camera",
    "ContactPoint",
    "JointFrame",
    "LiveView",
    "Part",
    "Playback",
    "Scene",
    "Triangles",
    "draw_frames",
    "live",
    "load_playbacks",
    "page_html",
    "plot",
    "plot_gradients",
    "save_playbacks",
    "write_page",
    "write_video",
]
