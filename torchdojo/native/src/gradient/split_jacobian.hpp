// Jacobians of split steps, one environment at a time: products of the Jacobians of their substeps.
#pragma once

#include "gradient/jacobian.hpp"
#include "solver/recovery.hpp"

namespace torchdojo {

// The Jacobian of a step in two halves with a held input. With z' between the halves, ∂z⁺/∂z = A₂ A₁ and ∂z⁺/∂u = A₂ B₁ + B₂. Both
// halves are solved again, as `SplitGradient` does.
class SplitJacobian {
public:
    explicit SplitJacobian(const MechanismTable &m) : mechanism(m), gradient(m), jacobian(m), recovery(m) {}

    // Writes (12 nb, 12 nb + nu); zeros where no halves are found. Step: GradientJob. A template, because worker_one.cpp alone compiles it.
    template <class Step>
    void run(const Step &job, double *out, const Options &options, const double *shared, int64_t depth = 0);

private:
    const MechanismTable &mechanism;
    StepGradient<double> gradient;
    StepJacobian<double> jacobian;
    Recovery recovery;
};

template <class Step>
void SplitJacobian::run(const Step &job, double *out, const Options &options, const double *shared, int64_t depth) {
    const size_t size = size_t(tangent_size) * mechanism.num_bodies, columns = size + mechanism.num_inputs;
    std::fill_n(out, size * columns, 0.0);
    const Halves *split = recovery.split_again(job.step, options, shared, depth);
    if (!split) return;
    Halves level = *split;  // the next split step overwrites it
    std::vector<double> parts[2];
    for (int which = 0; which < 2; ++which) {
        parts[which].resize(size * columns);
        Step half{};
        half.step = level.half(which);
        half.w = half.step.w;
        half.grad_kappa = job.grad_kappa;
        double *to = parts[which].data();
        if (level.substeps[which] > 1) run(half, to, options, shared, depth + 1);
        else jacobian.run(&half, 1, &to, options, shared, gradient);
    }
    for (size_t row = 0; row < size; ++row) {
        const double *second = &parts[1][row * columns];
        double *to = out + row * columns;
        std::copy(second + size, second + columns, to + size);
        for (size_t k = 0; k < size; ++k) {
            if (second[k] == 0.0) continue;  // bodies that do not touch each other
            const double *first = &parts[0][k * columns];
            for (size_t c = 0; c < columns; ++c) to[c] += second[k] * first[c];
        }
    }
}

extern template void SplitJacobian::run(const GradientJob &, double *, const Options &, const double *, int64_t);

}  // namespace torchdojo
