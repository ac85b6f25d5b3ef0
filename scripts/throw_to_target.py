#!/usr/bin/env python
"""Find the throw that lands a box on a target, by gradient descent through flight, bounce and slide.

The box leaves the hand at a height of 0.5 m, hits the ground and slides or tumbles to a halt. Its final place depends on the throw through
contact and friction. torchdojo differentiates through the whole trajectory, so an ordinary torch optimizer finds the velocity.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import torchdojo as td

TARGET = (1.5, 0.6)  # point at which the center of the box should come to rest [m]
FIRST_GUESS = (1.0, 0.0, 1.0)  # velocity of the throw [m/s]
STEPS = 60  # steps of 0.02 s: long enough to come to rest
CLOSE_ENOUGH = 0.005  # m
MAX_THROWS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    parser.add_argument("--html", metavar="FILE", help="write a page that shows the first, a middle and the last throw")
    options = parser.parse_args()
    torch.set_num_threads(1)

    mech = td.models.box(timestep=0.02, mass=1.0, size=(0.4, 0.4, 0.2), friction=0.5)
    # grad_kappa asks for gradients of slightly softened contact: they see past the single bounce.
    mech.options = td.SolverOptions(kappa=1e-5, grad_kappa=1e-3)
    target = torch.tensor(TARGET, dtype=torch.float64)
    throws: list[td.Trajectory] = []

    def throw(velocity: torch.Tensor) -> torch.Tensor:
        """The state at the end, (13,): position [m], velocity [m/s], orientation, angular velocity."""
        z = mech.initial_state(box={"position": (0.0, 0.0, 0.5), "velocity": velocity})
        trajectory = mech.rollout(z, steps=STEPS)
        assert bool((trajectory.status == td.Status.SUCCESS).all()), "a step was flagged"
        throws.append(trajectory)
        return trajectory.z[-1]

    velocity = torch.tensor(FIRST_GUESS, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([velocity], lr=1.0)
    start = time.perf_counter()
    print(f"target at ({TARGET[0]}, {TARGET[1]}) m; first throw with velocity {FIRST_GUESS} m/s")
    for iteration in range(1, MAX_THROWS + 1):
        place = throw(velocity)[:2]
        miss = torch.linalg.vector_norm(place - target)
        print(f"  throw {iteration:2d}: lands at ({place[0]:6.3f}, {place[1]:6.3f}) m, misses by {100 * miss:5.1f} cm")
        if miss < CLOSE_ENOUGH:
            break
        optimizer.zero_grad()
        miss.backward()
        assert velocity.grad is not None
        velocity.grad *= miss.detach() / velocity.grad.square().sum()  # Polyak's step leads to the point at which the tangent has no miss
        optimizer.step()

    with torch.no_grad():
        checked = throw(velocity)  # once more, without gradients
        final = float(torch.linalg.vector_norm(checked[:2] - target))
        speed = float(torch.linalg.vector_norm(checked[3:6]))
    best = velocity.tolist()
    print(
        f"Thrown with velocity ({best[0]:.2f}, {best[1]:.2f}, {best[2]:.2f}) m/s, the box stops {1000 * final:.1f} mm from the target: "
        f"found in {iteration} throws and {time.perf_counter() - start:.0f} s, by differentiating through the bounce."
    )
    if options.html:
        shown = sorted({0, len(throws) // 3, len(throws) - 1})
        page = mech.animate([throws[i] for i in shown], options.html, labels=[f"throw {i + 1}" for i in shown], title="Throw to a target")
        print(f"to see throws {', '.join(str(i + 1) for i in shown)}: open {page.path}")
    if options.json:
        print(json.dumps({"velocity_m_per_s": best, "miss_m": final, "throws": iteration, "wall_time_s": time.perf_counter() - start}))
    if final > CLOSE_ENOUGH or speed > 0.02:
        raise SystemExit(f"the search failed: {final:.3f} m from the target, still moving at {speed:.3f} m/s")


if __name__ == "__main__":
    main()
