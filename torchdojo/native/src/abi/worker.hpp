// The work behind the C ABI for a block of environments. The scalar T is `double` for one environment at a time, `Pack` for several in
// lanes.
//
// worker_one.cpp and worker_many.cpp compile the two at the same time, which shortens the build by a third. worker_narrow.cpp has rollouts
// and their gradients in half the lanes.
#pragma once

#include <memory>

#include "gradient/impacts.hpp"
#include "solver/solver.hpp"

namespace torchdojo {

// Any number of threads may call it at once.
template <class T>
class Worker {
public:
    explicit Worker(const MechanismTable &m);
    ~Worker();

    // All functions work on environments first … last; parameters and `grad_kappa` are laid out as in the ABI.
    // part: what a part of a mechanism has beside the rollout.
    void forward(const Options &options, const TdRollout &r, int64_t first, int64_t last, const PartCall *part = nullptr);
    // grad_parameters: as in TdGradient, but a gradient of shared parameters counts these environments alone.
    void backward(const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g, double *grad_parameters,
                  int64_t first, int64_t last);
    void near_limit(const Options &options, const TdRollout &r, double *to, int64_t first, int64_t last);
    void jacobian(const Options &options, double grad_kappa, const TdRollout &r, double *out, int64_t first, int64_t last);
    void minimal_jacobian(const Options &options, double grad_kappa, const TdRollout &r, const double *x, double *out, int64_t first,
                          int64_t last);
    void map(const TdMap &map, int64_t first, int64_t last);
    void sense(const TdSensors &sensors, int64_t first, int64_t last);

private:
    struct Pools;
    const MechanismTable &mechanism;
    const std::unique_ptr<Pools> pools;
};

}  // namespace torchdojo
