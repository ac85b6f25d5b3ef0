// Environments side by side in lanes.
#include "worker_members.hpp"

template class torchdojo::Worker<torchdojo::Pack>;
