// The backward pass of split steps, one environment at a time.
#pragma once

#include "gradient/gradient.hpp"
#include "solver/recovery.hpp"

namespace torchdojo {

// Gradients of a step split in two. Both halves are solved again, to the same bits, and then differentiated in turn.
class SplitGradient {
public:
    explicit SplitGradient(const MechanismTable &m) : mechanism(m), gradient(m), recovery(m) {}

    // Step: GradientJob. A template, because worker_one.cpp alone compiles it.
    template <class Step>
    void run(const Step &job, const Options &options, const double *shared, int64_t depth = 0);
    void flush() { gradient.flush(); }

private:
    const MechanismTable &mechanism;
    StepGradient<double> gradient;
    Recovery recovery;
};

template <class Step>
void SplitGradient::run(const Step &job, const Options &options, const double *shared, int64_t depth) {
    const int nz = state_size * mechanism.num_bodies, nu = mechanism.num_inputs, nf = 6 * mechanism.num_bodies;
    std::fill_n(job.grad_z, nz, 0.0);
    if (job.grad_u) std::fill_n(job.grad_u, nu, 0.0);
    if (job.grad_wrench) std::fill_n(job.grad_wrench, nf, 0.0);
    const Halves *split = recovery.split_again(job.step, options, shared, depth);
    if (!split) return;
    const Halves level = *split;  // the next split step overwrites it
    std::vector<double> middle(nz), u(nu), wrench(nf);
    for (int which = 1; which >= 0; --which) {
        Halves copy = level;
        Step half{copy.half(which),
                  which ? level.second.data() : level.first.data(),
                  which ? job.grad_z_next : middle.data(),
                  job.grad_impulses,
                  nullptr,
                  u.data(),
                  wrench.data(),
                  job.grad_parameters,
                  job.grad_kappa,
                  nullptr};
        std::vector<double> z(nz);
        half.grad_z = z.data();
        if (level.substeps[which] > 1) run(half, options, shared, depth + 1);
        else gradient.run(&half, 1, options, shared);
        middle = z;
        if (job.grad_u)
            for (int k = 0; k < nu; ++k) job.grad_u[k] += u[k];
        if (job.grad_wrench)
            for (int k = 0; k < nf; ++k) job.grad_wrench[k] += wrench[k];
    }
    std::copy(middle.begin(), middle.end(), job.grad_z);
}

extern template void SplitGradient::run(const GradientJob &, const Options &, const double *, int64_t);

}  // namespace torchdojo
