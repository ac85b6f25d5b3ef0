// The lanes whose transposed system (adjoint.hpp) is solved with too few digits, and the matrix against which their solution is refined.
//
// A pressed contact adds B K C to a block of masses: if the largest of the added entries is G times the mass in its place, the factors lose
// the last log₁₀ G digits of the solution. The table has the largest change of a gradient by refinement, relative to its largest entry. The
// environments come from tests/native/test_parity*.py and scripts/bench_cases.py (spheres10), with contacts of spheres and half-spaces and
// kappa from 1e-4 to 1e-8:
//     G        1       1e2     1e3     3e3     1e4     1e5     1e6     1e7     1e8
//     change   8e-14   3e-13   4e-13   2e-12   5e-12   3e-11   2e-10   9e-10   2e-8
// With contacts between bodies, limits and frictions of joints the loss does not follow G: two bodies pressed together lose 2e-9 at 1e4.
// The regularization of loops exceeds rounding. These are always refined, and so is the hard limit κ → 0. Where many right-hand sides share
// a matrix, pressed contacts are left out of the matrix instead: capacitance.hpp.
#pragma once

#include "solver/solver.hpp"

namespace torchdojo {

namespace constant {
constexpr double refined_gain = 1e4;  // G, beyond which solutions are refined
constexpr double pressed_gain = 1e2;  // G of the contacts that are left out of the matrix where solutions need refinement
}  // namespace constant

template <class T>
class Refinement {
public:
    explicit Refinement(const MechanismTable &m)
        : mechanism(m), always(m.has_loops || m.num_pairs || m.num_joint_cones), matrix(m.schedule.num_values) {
        auto change = [&](int32_t offset, int32_t count) { changed.push_back({offset, count}); };
        for (const ContactTable &contact : m.contacts) {
            change(m.bodies[contact.body].diagonal, block);
            if (other_body(m, contact) == m.num_bodies) continue;
            const PairTable &pair = m.pairs[contact.pair];
            for (const int32_t offset : {m.bodies[pair.other].diagonal, pair.body_other, pair.other_body}) change(offset, block);
        }
        for (const JointTable &joint : m.joints) {
            if (!joint.num_cones) continue;
            change(joint.joint_child, 6 * joint.size);
            if (joint.parent < m.num_bodies) change(joint.joint_parent, 6 * joint.size);
        }
        for (const MultiplierTable &multiplier : m.multipliers)
            if (m.has_loops) change(multiplier.diagonal, 1);
        std::sort(changed.begin(), changed.end(), [](const auto &a, const auto &b) { return a.offset < b.offset; });
        auto same = [](const auto &a, const auto &b) { return a.offset == b.offset; };
        changed.erase(std::unique(changed.begin(), changed.end(), same), changed.end());
        int size = 0;
        for (const Schedule::Range &range : changed) size += range.count;
        before.resize(size);
    }

    Mask<T> needed{};  // lanes that need refinement; a lane does not depend on the others
    std::vector<T> matrix;  // neither condensed nor regularized; filled if any lane needs it

    // Condenses the matrix just linearized, and determines the lanes that need refinement: all lanes if `all`.
    void condense(Problem<T> &problem, bool all) {
        const Mask<T> everywhere = negate(Mask<T>{});
        each_changed([&](T *values, T *kept, int count) { std::copy_n(values, count, kept); }, problem.values);
        condense_step(problem);
        needed = all || always ? everywhere : Mask<T>{};
        if (!any(needed))  // only blocks of masses have changed
            each_changed([&](const T *values, const T *masses, int) { needed |= exceeds(values, masses, constant::refined_gain); },
                         problem.values);
        Stepper<T>::regularize(mechanism, problem);
    }

    void factor(Problem<T> &problem) {
        if (!any(needed)) return ldu_factor(mechanism.schedule, problem.values.data());
        matrix.swap(problem.values);
        ldu_factor(mechanism.schedule, matrix.data(), problem.values.data());
        each_changed([&](T *values, const T *kept, int count) { std::copy_n(kept, count, values); }, matrix);
    }

    // Whether only contacts of spheres and half-spaces need refinement.
    bool only_contacts() const { return !always && !mechanism.num_couples && !mechanism.has_pyramids(); }

    // Calls f(offset of the block in the matrix, the block before it was condensed) for bodies of one environment that may be left out.
    template <class F>
    void each_pressed(const Problem<T> &problem, F &&f) const {
        const T *kept = before.data();
        for (const Schedule::Range &range : changed) {
            if (any(exceeds(&problem.values[range.offset], kept, constant::pressed_gain))) f(range.offset, kept);
            kept += range.count;
        }
    }

private:
    static constexpr int block = 36;
    const MechanismTable &mechanism;
    const bool always;
    std::vector<Schedule::Range> changed;  // values that `condense` and `regularize` add to
    std::vector<T> before;  // these values before they are added to

    // Lanes in which a block of masses has gained that much.
    static Mask<T> exceeds(const T *values, const T *masses, double gain) {
        Mask<T> any{};
        for (int k = 0; k < block; k += 7) any |= abs(values[k]) > gain * abs(masses[k]);
        return any;
    }

    template <class F>
    void each_changed(F &&f, std::vector<T> &values) {
        T *kept = before.data();
        for (const Schedule::Range &range : changed) {
            f(&values[range.offset], kept, range.count);
            kept += range.count;
        }
    }
};

}  // namespace torchdojo
