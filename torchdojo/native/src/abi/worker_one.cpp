// One environment at a time, and what lanes leave to that: the lower rungs of the ladder, and gradients of steps that were split.
#include "abi/worker_members.hpp"

namespace torchdojo {

bool Recovery::solve(const Job &job, const Options &options, const double *shared, int64_t depth) {
    SingleJob feed{&job};
    stepper.run(feed, options, shared);
    return feed.solved || (*job.status == max_iterations && recover(job, options, shared, depth));
}

bool Recovery::recover(const Job &job, const Options &options, const double *shared, int64_t depth) {
    if (continuation(job, options, shared)) return *job.status = success, true;
    return depth < options.max_halvings && halve(job, options, shared, depth);
}

void SplitGradient::run(const GradientJob &job, const Options &options, const double *shared, int64_t depth) {
    const int nz = state_size * mechanism.num_bodies, nu = mechanism.num_inputs, nf = 6 * mechanism.num_bodies;
    std::fill_n(job.grad_z, nz, 0.0);
    if (job.grad_u) std::fill_n(job.grad_u, nu, 0.0);
    if (job.grad_wrench) std::fill_n(job.grad_wrench, nf, 0.0);
    // Levels of `recovery` are overwritten by deeper ones of its own only, so what is needed here is copied.
    if (!recovery.run_halves(job.step, options, shared, depth, recovery.halves(depth))) return;
    const Recovery::Halves level = recovery.halves(depth);
    std::vector<double> middle(nz), u(nu), wrench(nf);
    for (int which = 1; which >= 0; --which) {
        Recovery::Halves copy = level;
        GradientJob half{Recovery::half_job(job.step, copy, which),
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

void SplitGradient::flush() { gradient.flush(); }

template class Worker<double>;

}  // namespace torchdojo
