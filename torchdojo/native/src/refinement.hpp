// Where the transposed system (adjoint.hpp) is solved with fewer digits than are wanted, and the matrix against which its solution is refined.
//
// A pressed contact adds B K C to a block of masses: if the largest of the added entries is G times the mass in its place, the factors lose
// the last log₁₀ G digits of what they solve for. Measured without refinement, as the largest change of a gradient by refinement relative to
// its largest entry, over the environments of tests/native/test_parity*.py and of scripts/bench_cases.py (spheres10) with contacts of spheres
// and half-spaces, kappa 1e-4 … 1e-8:
//     G        1       1e2     1e3     3e3     1e4     1e5     1e6     1e7     1e8
//     change   8e-14   3e-13   2e-13   1e-12   5e-12   3e-11   2e-10   9e-10   2e-8
// With contacts between bodies, limits and frictions of joints the loss does not follow G (two bodies pressed together at G = 1e4: 2e-9; limits
// next to armature: 1e-10 at 50), and loops are regularized by more than rounding: these are always refined, and so is the limit κ → 0.
#pragma once

#include "cone.hpp"

namespace torchdojo {

namespace constant {
constexpr double refined_gain = 1e4;  // G, beyond which solutions are refined
}

template <class T>
class Refinement {
public:
    explicit Refinement(const MechanismTable &m)
        : always(m.has_loops || m.num_pairs || m.num_joint_cones), matrix(m.schedule.num_values) {
        for (const ContactTable &contact : m.contacts) blocks.push_back(m.bodies[contact.body].diagonal);
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
        masses.resize(size * blocks.size());
    }

    // Condense the cones of `problem`, which have just been linearized.
    void condense(Problem<T> &problem, bool all) {
        T *values = problem.values.data();
        needed = all || always ? negate(Mask<T>{}) : Mask<T>{};
        if (all || always) {
            matrix = problem.values;
            return problem.condense();
        }
        for (size_t i = 0; i < blocks.size(); ++i) std::copy_n(values + blocks[i], size, &masses[size * i]);
        problem.condense();
        for (size_t i = 0; i < blocks.size(); ++i)
            for (int k = 0; k < size; k += 7) {
                const T &mass = masses[size * i + k], &sum = values[blocks[i] + k];
                needed = select_mask(abs(sum) > constant::refined_gain * abs(mass), negate(Mask<T>{}), needed);
            }
        if (!any(needed)) return;
        matrix = problem.values;
        for (size_t i = 0; i < blocks.size(); ++i) std::copy_n(&masses[size * i], size, &matrix[blocks[i]]);
    }

    Mask<T> needed{};                 // in which lanes; a lane is refined or not whatever the others are
    const bool always;
    std::vector<T> matrix;            // neither condensed nor regularized, where any lane needs it

private:
    static constexpr int size = 36;
    std::vector<int32_t> blocks;      // of bodies with contacts
    std::vector<T> masses;            // those blocks before they are condensed
};

}  // namespace torchdojo
