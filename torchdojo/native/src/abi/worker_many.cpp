// The worker for environments side by side in lanes.
#include "abi/worker_members.hpp"

template class torchdojo::Worker<torchdojo::Pack>;
