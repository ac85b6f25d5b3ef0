// What impacts add to the backward pass of a step, around that of the step itself (solver/impacts.py, which derives it):
//
//   dz⁺ = Φ(−τ) D (Φ(τ) dz + f⁻ dτ) − f⁺ dτ,   dτ = slope · dz,   Φ(τ): x += τ v, φ += τ ω
//
// so, for a gradient g of z⁺:   y = Dᵀ Φ(−τ)ᵀ g,   grad_z = Φ(τ)ᵀ y + slope (f⁻ · y − f⁺ · g),   body by body, with one dτ for all bodies of
// a component. Gradients of quaternions g_q are ambient: that of φ is ½ vec(q̄ ⊗ g_q).
#pragma once

#include "mechanism.hpp"

namespace torchdojo {

// K of the steps of a rollout of N environments and T steps, with nb bodies.
struct TdImpacts {
    const int64_t *index;             // (N, T): which of the K, or −1
    const double *time;               // τ (K, nb)
    const double *before, *after;     // f⁻ and f⁺ (K, 13 nb)
    const double *slope;              // (K, 13 nb)
    const int64_t *component;         // (K, nb): the first body of each body's component
    double *by_time;                  // (K, nb): gradients of τ, in the places of these first bodies
};

class Impact {
public:
    Impact(const TdImpacts &impacts, int64_t k, int num_bodies)
        : nb(num_bodies), time(impacts.time + k * nb), before(impacts.before + k * state_size * nb),
          after(impacts.after + k * state_size * nb), slope(impacts.slope + k * state_size * nb), component(impacts.component + k * nb),
          by_time(impacts.by_time + k * nb) {}

    // g of z_next becomes Φ(−τ)ᵀ g.
    void enter(const double *z_next, double *g) const {
        std::fill_n(by_time, nb, 0.0);
        for (int b = 0; b < nb; ++b) by_time[component[b]] -= product(after, g, b);
        for (int b = 0; b < nb; ++b) drift(z_next, g, b, -time[b]);
    }

    // y becomes the gradient of z.
    void leave(const double *z, double *y) const {
        for (int b = 0; b < nb; ++b) by_time[component[b]] += product(before, y, b);
        for (int b = 0; b < nb; ++b) {
            drift(z, y, b, time[b]);
            for (int k = state_size * b; k < state_size * (b + 1); ++k) y[k] += slope[k] * by_time[component[b]];
        }
    }

private:
    const int nb;
    const double *time, *before, *after, *slope;
    const int64_t *component;
    double *by_time;

    static double product(const double *rate, const double *g, int b) {
        double sum = 0.0;
        for (int k = state_size * b; k < state_size * (b + 1); ++k) sum += rate[k] * g[k];
        return sum;
    }

    static void drift(const double *z, double *g, int b, double time) {
        const int at = state_size * b;
        const Vec3<double> turn = (0.5 * time) * (conjugate(load4(z + at + 6)) * load4(g + at + 6)).v;
        for (int k = 0; k < 3; ++k) g[at + 3 + k] += time * g[at + k], g[at + 10 + k] += turn[k];
    }
};

}  // namespace torchdojo
