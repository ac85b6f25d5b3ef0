// The factors and solves of ldu.hpp on batches of matrices of one pattern, for block_ldu.py.
//
// Environments are taken `pack_lanes` at a time, so that their factors are interleaved; those left over are plain numbers. Right-hand sides
// of these are taken `pack_lanes` at a time, then one by one. So all three kinds of scalars of the kernel have their turn.
#include <vector>

#include "solver/ldu.hpp"

using namespace torchdojo;

namespace {

// Lane l of packs[i] is rows[l * stride + i].
std::vector<Pack> interleave(const double *rows, int64_t stride, int count) {
    std::vector<Pack> packs(count);
    for (int i = 0; i < count; ++i)
        for (int l = 0; l < pack_lanes; ++l) set(packs[i], l, rows[l * stride + i]);
    return packs;
}

void separate(const std::vector<Pack> &packs, int64_t stride, double *rows) {
    for (size_t i = 0; i < packs.size(); ++i)
        for (int l = 0; l < pack_lanes; ++l) rows[l * stride + i] = get(packs[i], l);
}

template <class T, class R>
void solve(const Schedule &schedule, const T *factors, R *x, bool transposed) {
    transposed ? ldu_solve_transposed(schedule, factors, x) : ldu_solve(schedule, factors, x);
}

}  // namespace

extern "C" {

// values: (batch, num_values); x: (batch, columns, num_rows), in place
void solve_blocks(const int32_t *table, const double *values, double *x, int64_t batch, int64_t columns, bool transposed) {
    const Schedule schedule(table);
    const int rows = schedule.num_rows;
    const int64_t count = schedule.num_values;
    int64_t e = 0;
    for (; e + pack_lanes <= batch; e += pack_lanes) {
        std::vector<Pack> factors = interleave(values + e * count, count, count);
        ldu_factor(schedule, factors.data());
        for (int64_t column = 0; column < columns; ++column) {
            double *here = x + (e * columns + column) * rows;
            std::vector<Pack> packs = interleave(here, columns * rows, rows);
            solve(schedule, factors.data(), packs.data(), transposed);
            separate(packs, columns * rows, here);
        }
    }
    for (; e < batch; ++e) {
        std::vector<double> factors(values + e * count, values + (e + 1) * count);
        ldu_factor(schedule, factors.data());
        int64_t column = 0;
        for (; column + pack_lanes <= columns; column += pack_lanes) {
            double *here = x + (e * columns + column) * rows;
            std::vector<Pack> packs = interleave(here, rows, rows);
            solve(schedule, factors.data(), packs.data(), transposed);
            separate(packs, rows, here);
        }
        for (; column < columns; ++column) solve(schedule, factors.data(), x + (e * columns + column) * rows, transposed);
    }
}
}
