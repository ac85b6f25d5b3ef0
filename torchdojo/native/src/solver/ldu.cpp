// The factors and solves of ldu.hpp, compiled once and beside the other files.
#include "solver/ldu.hpp"

namespace torchdojo {
TD_LDU()
}
