// The worker for rollouts and their gradients in half the lanes.
#include "abi/worker_members.hpp"

#if TD_NARROW
namespace torchdojo {

template Worker<Narrow>::Worker(const MechanismTable &);
template Worker<Narrow>::~Worker();
template void Worker<Narrow>::forward(const Options &, const TdRollout &, int64_t, int64_t, const PartCall *);
template void Worker<Narrow>::backward(const Options &, double, const TdRollout &, const TdGradient &, double *, int64_t, int64_t);

}  // namespace torchdojo
#endif
