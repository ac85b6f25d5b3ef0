// One environment at a time, and what lanes leave to that: the lower rungs of the ladder, and gradients of steps that were split.
#include "abi/worker_members.hpp"

namespace torchdojo {

template bool Recovery::solve(const Job &, const Options &, const double *, int64_t);
template bool Recovery::recover(const Job &, const Options &, const double *, int64_t);
template void SplitGradient::run(const GradientJob &, const Options &, const double *, int64_t);
template class Worker<double>;

}  // namespace torchdojo
