// The worker for one environment at a time. Lanes leave the lower rungs of the ladder and the derivatives of split steps to this worker.
#include "abi/worker_members.hpp"

namespace torchdojo {

template bool Recovery::solve(const Job &, const Options &, const double *, int64_t);
template bool Recovery::recover(const Job &, const Options &, const double *, int64_t);
template void SplitGradient::run(const GradientJob &, const Options &, const double *, int64_t);
template void SplitJacobian::run(const GradientJob &, double *, const Options &, const double *, int64_t);
template void Feedback::apply(const TdFeedback &, const double *, int64_t, int64_t, int64_t, const double *);
template class Worker<double>;

}  // namespace torchdojo
