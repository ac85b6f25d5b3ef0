// A step in two halves with a held input: one level of a split step, and split steps in the lanes of a rollout.
#pragma once

#include <memory>

#include "solver/solver.hpp"

namespace torchdojo {

// A step and its halves: the state between them, and their solutions.
struct Halves {
    std::vector<double> z, z_end, impulses, first, second;
    int64_t status[2], iterations[2], substeps[2];
    Job whole{};

    explicit Halves(const MechanismTable &m)
        : z(state_size * m.num_bodies), z_end(z), impulses(2 * m.num_impulses), first(m.num_unknowns), second(first) {}

    // The first half starts from the warm start of the step, and the second one from the solution of the first. Both halves of a step
    // whose attempts have failed share the iterations that are left to it. Halves of a step that is too fast have as many each.
    Job half(int which) {
        Job half = whole;
        half.warm = which ? first.data() : whole.warm;
        half.timestep_factor = 0.5 * whole.timestep_factor;
        half.z = which ? z.data() : whole.z;
        half.z_next = which ? z_end.data() : z.data();
        half.w = which ? second.data() : first.data();
        half.impulses = impulses.data() + which * (impulses.size() / 2);
        half.status = &status[which];
        half.iterations = &iterations[which];
        half.substeps = &substeps[which];
        half.spent = whole.spent + *whole.iterations + (which && *whole.status != too_fast ? iterations[0] : 0);
        if (!which) iterations[1] = 0;
        return half;
    }

    // Puts the results of both halves together.
    void finish(const MechanismTable &m, bool solved) {
        const Job &job = whole;
        *job.iterations += iterations[0] + iterations[1];
        *job.status = solved ? success : max_iterations;
        if (!solved) return keep_state(m, job);
        *job.substeps = substeps[0] + substeps[1];
        std::copy(z_end.begin(), z_end.end(), job.z_next);
        std::copy(second.begin(), second.end(), job.w);
        for (int k = 0; k < m.num_impulses; ++k) job.impulses[k] = impulses[k] + impulses[m.num_impulses + k];
    }
};

// Steps that are too fast for their timestep. Their halves run in the lane of the step, one after the other, and may split again.
template <class T>
class SplitSteps {
public:
    explicit SplitSteps(const MechanismTable &m) : mechanism(m) {}

    int64_t depth(int lane) const { return depths[lane]; }

    // The next half of a split step of this lane, if there is one.
    bool next(int lane, Job &job) {
        if (!depths[lane]) return false;
        Level &level = *levels[lane][depths[lane] - 1];
        job = level.halves.half(level.which);
        return true;
    }

    void begin(int lane, const Job &job) {
        const size_t depth = depths[lane]++;
        if (levels[lane].size() == depth) levels[lane].emplace_back(std::make_unique<Level>(mechanism));
        levels[lane][depth]->halves.whole = job;
        levels[lane][depth]->which = 0;
    }

    // Ends a whole step or a half: a second half, or a failed one, ends its step, too. Returns the whole step if it has ended, or null.
    const Job *finish(int lane, const Job &job, bool solved) {
        const Job *whole = &job;
        for (; depths[lane]; --depths[lane]) {
            Level &level = *levels[lane][depths[lane] - 1];
            if (solved && !level.which) {
                level.which = 1;
                return nullptr;
            }
            level.halves.finish(mechanism, solved);
            whole = &level.halves.whole;
        }
        return whole;
    }

private:
    struct Level {
        Halves halves;
        int which = 0;
        explicit Level(const MechanismTable &m) : halves(m) {}
    };
    const MechanismTable &mechanism;
    std::vector<std::unique_ptr<Level>> levels[lanes<T>];
    int64_t depths[lanes<T>]{};
};

}  // namespace torchdojo
