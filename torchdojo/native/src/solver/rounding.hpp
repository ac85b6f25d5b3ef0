// The residuals that rounding leaves where dampers or tendons are very stiff. solver/solution.py has the reasons and the constants.
#pragma once

#include <limits>

#include "elements/tendon_impulse.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

namespace constant {
constexpr double clearly = 0.9;  // fraction of the tolerance that is below it by more than rounding
}  // namespace constant

template <class T>
class Rounding {
public:
    explicit Rounding(const MechanismTable &m) : mechanism(m), scale(2 * (m.num_bodies + 1)) {}

    bool some = false;  // whether any factor differs from one

    // Factor of the residual of the linear (part 0) and of the angular rows (part 1) of a body, at most one.
    TD_INLINE const T &factor(int body, int part) const { return scale[2 * body + part]; }

    // Computes the factors for this step. `problem` is prepared.
    void prepare(const Problem<T> &problem, double tolerance) {
        some = false;
        T largest{};
        each_damped(
            [&](const JointTable &joint, const JointData<T> &data) {
                const T *damping = problem.damping(joint, data);
                for (int k = 0; k < joint.free(); ++k) largest = max(largest, damping[k]);
            },
            problem);
        each_tendon([&](const TendonTable &, const T &steepness, const TendonData<T> &) { largest = max(largest, steepness); }, problem);
        constexpr double unit = constant::roundings * std::numeric_limits<double>::epsilon();
        const Mask<T> large = largest > broadcast<T>(tolerance / (unit * constant::most_size));
        if (!any(large)) return;
        some = true;
        std::fill(scale.begin(), scale.end(), T{});
        const auto length = [](const Vec3<T> &v) { return abs(v.x) + abs(v.y) + abs(v.z); };
        each_damped(
            [&](const JointTable &joint, const JointData<T> &data) {
                const T *damping = problem.damping(joint, data), *p = &problem.parameters[joint.parameters];
                T along{}, about{};
                for (int k = 0; k < joint.free(); ++k) (k < joint.free_t() ? along : about) += damping[k];
                const Vec3<T> &parent = problem.bodies[joint.parent].pose.x, &child = problem.bodies[joint.child].pose.x;
                const T child_lever = length(load3(p + parameter::child_anchor)), parent_lever = length(child - parent) + child_lever;
                const T force = along * (length(parent) + length(child) + child_lever);
                scale[2 * joint.parent] += force;
                scale[2 * joint.parent + 1] += parent_lever * force + about;
                scale[2 * joint.child] += force;
                scale[2 * joint.child + 1] += child_lever * force + about;
            },
            problem);
        each_tendon(
            [&](const TendonTable &tendon, const T &steepness, const TendonData<T> &data) {
                T size = abs(data.length);
                each_pull(problem, tendon, [&](int body, const Pull<T> &) { size += length(problem.bodies[body].pose.x); });
                const T force = steepness * size;
                each_pull(problem, tendon, [&](int body, const Pull<T> &pull) {
                    scale[2 * body] += force * length(pull.force);
                    scale[2 * body + 1] += force * length(pull.torque);
                });
            },
            problem);
        for (T &s : scale) s = select(large, tolerance / max(broadcast<T>(tolerance), unit * s), broadcast<T>(1.0));
    }

    // Largest residual, `weighted` by the factors and `plain`, and the sum of all residuals, which is not finite if one residual is not.
    void measure(const Problem<T> &problem, T &weighted, T &plain, T &sum) const {
        T worst{};
        auto add = [&](const T &r) {
            worst = max(worst, abs(r));
            sum += r;
        };
        for (const int32_t row : mechanism.equations) add(problem.residual[row]);
        weighted = worst;
        for (int k = 0; k < 6 * mechanism.num_bodies; ++k) add(problem.residual[k]);
        plain = worst;
        if (!some) {
            weighted = worst;
            return;
        }
        for (int k = 0; k < 6 * mechanism.num_bodies; ++k) weighted = max(weighted, abs(factor(k / 6, k % 6 / 3) * problem.residual[k]));
    }

private:
    const MechanismTable &mechanism;
    std::vector<T> scale;  // per body, the world last: the sum of magnitudes in its rows, then the factor

    template <class F>
    void each_damped(F &&f, const Problem<T> &problem) const {
        for (int j = 0; j < mechanism.num_joints; ++j)
            if (mechanism.joints[j].has_damper) f(mechanism.joints[j], problem.joints[j]);
    }
    template <class F>
    void each_tendon(F &&f, const Problem<T> &problem) const {
        for (int k = 0; k < mechanism.num_tendons; ++k) {
            const TendonTable &tendon = mechanism.tendons[k];
            if (tendon.damped) f(tendon, tendon_steepness(problem, tendon, problem.tendons[k]), problem.tendons[k]);
        }
    }
};

}  // namespace torchdojo
