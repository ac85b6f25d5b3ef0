// Looks at the directions of an attempt on the path, which tell whether a step is too fast for its timestep. solver/speed.py has the reasons
// and the constants.
#pragma once

#include <algorithm>

#include "solver/problem.hpp"

namespace torchdojo {

template <class T>
class SpeedLooks {
public:
    SpeedLooks(const MechanismTable &m, const Problem<T> &problem) : mechanism(m), problem(problem) {}

    // Whether the direction of an iteration, counted from one, leads beyond the velocities that a step represents. `fastest`: |a| before the step.
    bool leads_beyond(int lane, const T *point, const T *direction, int iteration, double fastest) const {
        if (iteration >= constant::speed_iterations)
            return fastest > constant::driven_sine && beyond(lane, point, direction, constant::most_momentum, least(lane));
        return iteration == 1 && fastest > constant::start_sine && driven(lane) &&
               beyond(lane, point, direction, constant::first_momentum, constant::start_sine, 0.0);
    }

    // The same for the last direction of an attempt that fails. `lowered`: the attempt has come from a larger κ.
    bool failed_beyond(int lane, const T *point, const T *direction, bool lowered) const {
        return beyond(lane, point, direction, constant::near_momentum, least(lane)) ||
               (lowered && driven(lane) && beyond(lane, point, direction, constant::most_momentum, 0.0));
    }

private:
    const MechanismTable &mechanism;
    const Problem<T> &problem;

    double half_step(int lane) const { return 0.5 * get(problem.timestep(), lane); }
    double least(int lane) const { return driven(lane) ? constant::driven_sine : constant::start_sine; }

    bool driven(int lane) const {
        const auto pushes = [&](const T &value) { return get(value, lane) != 0.0; };
        const auto any_pushes = [&](const std::vector<T> &values) { return std::any_of(values.begin(), values.end(), pushes); };
        return any_pushes(problem.u) || any_pushes(problem.wrench);
    }

    // Whether limits of the speed of a joint keep a body slow against the body that carries it.
    bool slowed(int lane, int body) const {
        const int number = mechanism.bodies[body].slowed_by;
        if (number < 0) return false;
        const JointTable &joint = mechanism.joints[number];
        for (int k = joint.first_cone; k < joint.first_cone + joint.num_cones; ++k) {
            const JointConeTable &cone = mechanism.joint_cones[k];
            if (cone.limits_rate() && cone.coordinate >= joint.free_t() &&
                !(half_step(lane) * get(problem.parameters[cone.parameter], lane) < constant::near_sine))
                return false;
        }
        return true;
    }

    // Whether the direction leads some body to a momentum |l| above `limit`, of those above |a| = `near` at `point` and `least` before the step.
    bool beyond(int lane, const T *point, const T *direction, double limit, double least, double near = constant::near_sine) const {
        const double half = half_step(lane);
        const auto spin = [&](const T *from) { return half * Vec3<double>{get(from[0], lane), get(from[1], lane), get(from[2], lane)}; };
        const auto above = [](const Vec3<double> &x, double bound) { return dot(x, x) > bound * bound || bound == 0.0; };
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const Vec3<double> a = spin(point + 6 * i + 3), change = spin(direction + 6 * i + 3);
            const double c = std::sqrt(1.0 - dot(a, a));
            const Vec3<double> l = c * (a + change) - (dot(a, change) / c) * a;
            const Vec3<double> before = spin(&problem.z[state_size * i + 10]);
            if (above(before, least) && above(a, near) && above(l, limit) && !slowed(lane, i)) return true;
        }
        return false;
    }
};

}  // namespace torchdojo
