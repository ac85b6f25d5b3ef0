"""Draws the pictures of the site's pages into configs/docs/pictures: `python configs/docs/pictures.py`. Steps give the curves."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import torchdojo as td

FOLDER = Path(__file__).resolve().parent / "pictures"
COLORS = ("#1f6fb4", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93")
INK, LIGHT = "#222", "#bbb"


class Drawing:
    """An SVG that grows by lines, shapes and words. Coordinates are pixels, y downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="13" role="img"><title>{title}</title>',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
        ]

    def line(self, points: Sequence[tuple[float, float]], color: str = INK, width: float = 1.5, fill: str = "none", dash: str = "") -> None:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{text}" fill="{fill}" stroke="{color}" stroke-width="{width}"{dashes}/>')

    def box(self, x: float, y: float, width: float, height: float, fill: str = "#eef3f8", color: str = INK) -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{color}"/>')

    def dot(self, x: float, y: float, radius: float = 4, fill: str = INK) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"/>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        wings = [(end[0] - 9 * math.cos(angle + turn), end[1] - 9 * math.sin(angle + turn)) for turn in (-0.4, 0.4)]
        self.line([start, end], color)
        self.line([wings[0], end, wings[1], wings[0]], color, 1, fill=color)

    def text(self, x: float, y: float, words: str, color: str = INK, anchor: str = "start", size: int = 13) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" font-size="{size}">{words}</text>')

    def write(self, file: Path) -> None:
        file.write_text("\n".join([*self.parts, "</svg>"]) + "\n")


class Axes:
    """A frame with ticks in a drawing, which turns numbers into pixels. With `log`, y is a power of ten."""

    def __init__(self, drawing: Drawing, place: tuple[float, float, float, float], x: tuple[float, float], y: tuple[float, float]) -> None:
        self.drawing, self.place, self.x, self.y = drawing, place, x, y
        left, top, width, height = place
        drawing.line([(left, top), (left, top + height), (left + width, top + height)], INK, 1)

    def at(self, x: float, y: float) -> tuple[float, float]:
        left, top, width, height = self.place
        share_x, share_y = (x - self.x[0]) / (self.x[1] - self.x[0]), (y - self.y[0]) / (self.y[1] - self.y[0])
        return left + width * share_x, top + height * (1 - min(max(share_y, 0), 1))

    def ticks(self, x: Sequence[float], y: Sequence[float], log: bool = False) -> None:
        for value in x:
            place = self.at(value, self.y[0])
            self.drawing.line([place, (place[0], place[1] + 4)], INK, 1)
            self.drawing.text(place[0], place[1] + 18, f"{value:g}", anchor="middle", size=11)
        for value in y:
            place = self.at(self.x[0], value)
            self.drawing.line([place, (place[0] - 4, place[1])], INK, 1)
            self.drawing.text(place[0] - 7, place[1] + 4, f"1e{value:g}" if log else f"{value:g}", anchor="end", size=11)

    def names(self, title: str, x: str, y: str) -> None:
        left, top, width, height = self.place
        self.drawing.text(left + width / 2, top + height + 36, x, anchor="middle")
        self.drawing.text(left - 38, top - 8, y)
        self.drawing.text(left + width, top - 8, title, anchor="end", size=14)

    def curve(self, x: Sequence[float], y: Sequence[float], color: str, dash: str = "") -> None:
        self.drawing.line([self.at(*point) for point in zip(x, y, strict=True)], color, 2, dash=dash)


def lifted_box(kappa: float, **options: object) -> tuple[list[float], list[float], list[float]]:
    """Upward forces on a box of 1 kg at rest, the speed of the box after a step of 0.1 s, and its derivative by the force."""
    mech = td.models.box(mass=1.0, timestep=0.1)
    mech.options = td.SolverOptions(kappa=1e-9)
    with torch.no_grad():
        z = mech.rollout(mech.initial_state(pose="home", on="ground"), steps=20).z[-1]
    mech.options = td.SolverOptions(kappa=kappa, **options)
    force = torch.linspace(0, 20, 41, dtype=torch.float64)
    wrench = torch.nn.functional.pad(force[:, None], (2, 3)).requires_grad_()
    speed = mech.step(z.expand(len(force), -1), wrench=wrench).z[:, 5]
    (slope,) = torch.autograd.grad(speed.sum(), wrench)
    return force.tolist(), speed.tolist(), slope[:, 2].tolist()


def kappa() -> Drawing:
    drawing = Drawing(760, 310, "The central path: gap times impulse equals kappa; a box that is lifted")
    axes = Axes(drawing, (60, 40, 280, 210), (0, 0.1), (0, 0.1))
    axes.ticks((0, 0.05, 0.1), (0.05, 0.1))
    axes.names("gap × impulse = κ", "gap φ [m]", "impulse γ [N·s]")
    for color, value in zip(COLORS, (1e-3, 3e-4, 1e-5), strict=False):
        gaps = [value / 0.1 * (0.1 * 0.1 / value) ** (i / 60) for i in range(61)]
        axes.curve(gaps, [value / gap for gap in gaps], color)
        drawing.text(250, 70 + 18 * COLORS.index(color), f"κ = {value:g}", color)
    axes = Axes(drawing, (440, 40, 280, 210), (0, 20), (0, 1.6))
    axes.ticks((0, 10, 20), (0, 0.5, 1, 1.5))
    axes.names("a box of 1 kg is lifted", "force upwards [N]", "speed after 0.1 s [m/s]")
    for i, value in enumerate((1e-2, 1e-3, 1e-6)):
        force, speed, _ = lifted_box(value)
        axes.curve(force, speed, COLORS[i])
        drawing.text(455, 62 + 18 * i, f"κ = {value:g}", COLORS[i])
    return drawing


def gradient_modes() -> Drawing:
    drawing = Drawing(560, 330, "The derivative of the speed of a lifted box by the force, in three modes")
    axes = Axes(drawing, (70, 40, 440, 225), (0, 20), (0, 0.11))
    axes.ticks((0, 5, 10, 15, 20), (0, 0.05, 0.1))
    axes.names("speed of a lifted box of 1 kg", "force upwards [N]", "∂ speed / ∂ force [1/kg · s]")
    modes = (
        ("exact: a switch at the weight", {"gradient_mode": "exact"}, ""),
        ("central path at κ = 1e-6", {}, "6 4"),
        ("central path, grad_kappa = 1e-3", {"grad_kappa": 1e-3}, ""),
        ("central path, grad_kappa = 1e-2", {"grad_kappa": 1e-2}, ""),
    )
    for i, (name, options, dash) in enumerate(modes):
        force, _, slope = lifted_box(1e-9 if i == 0 else 1e-6, **options)
        axes.curve(force, slope, COLORS[i], dash)
        drawing.text(300, 185 + 18 * i, name, COLORS[i])
    return drawing


def coordinates() -> Drawing:
    drawing = Drawing(760, 300, "Maximal coordinates have every body, minimal coordinates every joint")
    for left, maximal in ((0, True), (390, False)):
        shoulder, elbow, hand = (left + 60, 220), (left + 165, 130), (left + 300, 150)
        for a, b in ((shoulder, elbow), (elbow, hand)):
            drawing.line([a, b], "#9fb8d0", 16)
        for place in (shoulder, elbow):
            drawing.dot(*place, 6)
        drawing.line([(left + 30, 232), (left + 90, 232)], INK, 3)
        if maximal:
            for i, (a, b) in enumerate(((shoulder, elbow), (elbow, hand))):
                x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
                length = math.hypot(b[0] - a[0], b[1] - a[1])
                along = ((b[0] - a[0]) / length, (b[1] - a[1]) / length)
                drawing.arrow((x, y), (x + 40 * along[0], y + 40 * along[1]), COLORS[1])
                drawing.arrow((x, y), (x + 40 * along[1], y - 40 * along[0]), COLORS[2])
                drawing.dot(x, y, 4)
                drawing.text(x + 14, y + 32, f"x{'₁₂'[i]}, q{'₁₂'[i]}, v{'₁₂'[i]}, ω{'₁₂'[i]}")
            drawing.text(left + 20, 30, "maximal: z, 13 numbers for each body", size=15)
            drawing.text(left + 20, 275, "joints are equations, their impulses are unknowns")
        else:
            for (x, y), name, start, turn in ((shoulder, "q₁", 0.0, -0.71), (elbow, "q₂", -0.71, 0.86)):
                arc = [(x + 42 * math.cos(start + turn * i / 20), y + 42 * math.sin(start + turn * i / 20)) for i in range(21)]
                drawing.line(arc, COLORS[0], 2)
                drawing.line([(x, y), (x + 70 * math.cos(start), y + 70 * math.sin(start))], LIGHT, 1, dash="4 3")
                middle = start + turn / 2
                drawing.text(x + 52 * math.cos(middle), y + 52 * math.sin(middle) + 4, name, COLORS[0], size=15)
            drawing.text(left + 20, 30, "minimal: q, qd, one for each free direction", size=15)
            drawing.text(left + 20, 275, "joints hold by construction")
    drawing.arrow((338, 90), (398, 90))
    drawing.text(368, 80, "to_minimal", anchor="middle", size=11)
    drawing.arrow((398, 110), (338, 110))
    drawing.text(368, 128, "to_maximal", anchor="middle", size=11)
    return drawing


def statuses() -> Drawing:
    drawing = Drawing(880, 250, "Attempts of a step, and what a failed environment gets")
    rungs = ("warm start", "from a larger κ", "interior point", "two half steps", "along the path")
    for i, rung in enumerate(rungs):
        x = 20 + 148 * i
        drawing.box(x, 60, 126, 46)
        drawing.text(x + 63, 88, rung, anchor="middle", size=12)
        drawing.arrow((x + 63, 106), (x + 63, 158), COLORS[2])
        if i < len(rungs) - 1:
            drawing.arrow((x + 126, 83), (x + 147, 83), COLORS[1])
    drawing.text(20, 40, "Each environment climbs only as far as it must.", size=15)
    drawing.arrow((738, 83), (759, 83), COLORS[1])
    drawing.box(20, 160, 718, 40, "#e6f4ea", COLORS[2])
    drawing.text(379, 185, "Status.SUCCESS: on the central path, all equations hold", COLORS[2], "middle")
    drawing.box(760, 60, 100, 46, "#fbe9eb", COLORS[1])
    drawing.text(810, 88, "flagged", COLORS[1], "middle")
    drawing.text(20, 228, "A flagged environment keeps its state and has a zero gradient. The rest of the batch does not notice.")
    return drawing


def precision() -> Drawing:
    mech = td.models.quadruped(spring=5.0)
    z = mech.initial_state(pose="home", on="ground")
    single, errors = z.float(), []
    with torch.no_grad():
        for _ in range(100):
            z, single = mech(z), mech(single)
            errors.append(max(float((z - single.double()).abs().max()), 1e-12))
    drawing = Drawing(560, 310, "Rounding a state to float32 after every step")
    axes = Axes(drawing, (75, 40, 430, 210), (0, 100), (-9, -2))
    axes.ticks((0, 50, 100), (-8, -6, -4, -2), log=True)
    axes.names("a quadruped on its feet", "steps", "largest difference of z")
    axes.curve(list(range(1, 101)), [math.log10(error) for error in errors], COLORS[0])
    drawing.text(95, 65, "state rounded to float32 after every step, beside float64", COLORS[0])
    axes.curve([0, 100], [-4, -4], LIGHT, "5 4")
    return drawing


def shapes() -> Drawing:
    drawing = Drawing(760, 290, "Near terms of two boxes, and the fade of their impulses")
    drawing.box(40, 180, 240, 70)
    angle = 0.18
    turned = [(x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)) for x, y in
              ((-80, -35), (80, -35), (80, 35), (-80, 35), (-80, -35))]  # fmt: skip
    corners = [(160 + x, 118 + y) for x, y in turned]
    drawing.line(corners, INK, 1.5, "#eef3f8")
    for corner, color in ((corners[2], COLORS[1]), (corners[3], COLORS[0])):
        drawing.line([corner, (corner[0], 180)], color, 2, dash="4 3")
        drawing.dot(*corner, 5, color)
    drawing.text(corners[2][0] + 12, 172, "near: a slot with its cone", COLORS[1])
    drawing.text(20, 172, "beyond the reach", COLORS[0], size=12)
    drawing.text(40, 40, "terms of a pair: corner and face, edge and edge", size=15)
    axes = Axes(drawing, (480, 60, 240, 170), (0, 1.2), (0, 1.1))
    axes.ticks((0, 0.5, 1), (0, 1))
    axes.names("no jump when a term enters", "gap / reach", "fade w")

    def fade(x: float) -> float:
        t = min(max(2 * x - 1, 0.0), 1.0)
        return 1 - t**3 * (10 - 15 * t + 6 * t * t)

    places = [1.2 * i / 60 for i in range(61)]
    axes.curve(places, [fade(x) for x in places], COLORS[0])
    return drawing


PICTURES: tuple[Callable[[], Drawing], ...] = (kappa, gradient_modes, coordinates, statuses, precision, shapes)


def draw(folder: Path = FOLDER) -> list[Path]:
    """Writes all pictures, and returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{picture.__name__}.svg" for picture in PICTURES]
    for picture, file in zip(PICTURES, files, strict=True):
        picture().write(file)
    return files


if __name__ == "__main__":
    for file in draw(*map(Path, sys.argv[1:])):
        print(f"{file}: {file.stat().st_size} bytes")
