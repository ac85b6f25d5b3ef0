// What the C ABI asks for on a block of environments, with scalars T: `double` for one environment at a time, `Pack` for several in lanes.
//
// worker_one.cpp and worker_many.cpp compile the two side by side, which takes a third off the wait for the first step.
#pragma once

#include <memory>

#include "gradient/impacts.hpp"
#include "solver/solver.hpp"

namespace torchdojo {

struct TdOptions {
    double kappa, grad_kappa, residual_tol, path_tol;
    int64_t max_iterations, min_iterations, max_halvings, warm_iterations, threads;
    int64_t gradient_mode;            // number in the order of `GradientMode`
};

// N environments, T steps. Strides are in numbers; a stride of zero shares the array. Arrays are contiguous otherwise.
struct TdRollout {
    int64_t environments, steps;
    const double *parameters;         // (N or 1, P)
    int64_t parameter_stride;
    const double *z0;                 // (N, 13 nb)
    int64_t z0_stride;
    const double *u;                  // (N, T, nu), or null
    const double *wrench;             // (N, 6 nb), or null
    const double *warm;               // (N, n), or null
    const double *grad_kappa;         // (N,), or null: that of the options
    double *z;                        // (N, T, 13 nb), environments `z_stride` apart
    int64_t z_stride;
    double *impulses;                 // (N, T, ni)
    double *w;                        // (N, T, n), or (N, n) where w_steps is 1: the last solution only
    int64_t w_steps;
    int64_t *status, *iterations, *substeps;  // (N, T)
};

struct TdGradient {
    const double *grad_z;             // (N, T, 13 nb) of the states after each step, environments `grad_z_stride` apart
    int64_t grad_z_stride;
    const double *grad_impulses;      // (N, T, ni), or null
    double *grad_z0;                  // (N, 13 nb)
    double *grad_u;                   // (N, T, nu), or null
    double *grad_wrench;              // (N, 6 nb), or null
    double *grad_parameters;          // (N, P), or (P) where parameters are shared, or null: added to what is there
    const TdImpacts *impacts;         // or null
};

// Any number of threads may call it at once.
template <class T>
class Worker {
public:
    explicit Worker(const MechanismTable &m);
    ~Worker();

    // All of them: environments first … last, with parameters and `grad_kappa` as the ABI has them.
    void forward(const Options &options, const TdRollout &r, int64_t first, int64_t last);
    // grad_parameters: as in TdGradient, but shared ones for these environments alone.
    void backward(const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g, double *grad_parameters, int64_t first,
                  int64_t last);
    void near_limit(const Options &options, const TdRollout &r, double *to, int64_t first, int64_t last);
    void jacobian(const Options &options, double grad_kappa, const TdRollout &r, double *out, int64_t first, int64_t last);
    void minimal_jacobian(const Options &options, double grad_kappa, const TdRollout &r, const double *q, const double *qd, double *out,
                          int64_t first, int64_t last);
    void states(const double *parameters, int64_t stride, const double *q, const double *qd, double *z, int64_t first, int64_t last);

private:
    struct Pools;
    const MechanismTable &mechanism;
    const std::unique_ptr<Pools> pools;
};

}  // namespace torchdojo
