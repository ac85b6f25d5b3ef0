// The C interface of ldu.hpp for `torchdojo/native/ldu.py`: batches of matrices with one pattern, any number of right-hand sides.
//
// Environments are taken `pack_lanes` at a time. Their factors stay interleaved, num_values Packs per group; the environments left over
// follow one after the other as plain numbers. So factors take batch * num_values numbers in all, in memory aligned as a Pack is.

#include <algorithm>
#include <new>

#include "solver/ldu.hpp"

namespace torchdojo {
TD_LDU()
}

using namespace torchdojo;

namespace {

// One array of packs per thread, reused by all its groups.
struct Packs {
    explicit Packs(int64_t count) : data(new (std::align_val_t{sizeof(Pack)}) Pack[count]) {}
    ~Packs() { operator delete[](data, std::align_val_t{sizeof(Pack)}); }
    Packs(const Packs &) = delete;
    Packs &operator=(const Packs &) = delete;
    Pack *const data;
};

// Lane l of packs[i] is rows[l * stride + i].
void interleave(const double *rows, int64_t stride, int count, Pack *packs) {
    double *to = reinterpret_cast<double *>(packs);
    for (int i = 0; i < count; ++i)
        for (int l = 0; l < pack_lanes; ++l) to[i * pack_lanes + l] = rows[l * stride + i];
}

void separate(const Pack *packs, int64_t stride, int count, double *rows) {
    const double *from = reinterpret_cast<const double *>(packs);
    for (int l = 0; l < pack_lanes; ++l)
        for (int i = 0; i < count; ++i) rows[l * stride + i] = from[i * pack_lanes + l];
}

template <class T, class R>
void solve_one(const Schedule &schedule, const T *factors, R *x, bool transposed) {
    if (transposed) ldu_solve_transposed(schedule, factors, x);
    else ldu_solve(schedule, factors, x);
}

// x: (batch, columns, num_rows) numbers, in place
void solve(const Schedule &schedule, const double *factors, double *x, int64_t batch, int64_t columns, int threads, bool transposed) {
    const int rows = schedule.num_rows;
    const int64_t groups = batch / pack_lanes, packed = groups * pack_lanes;
    const int64_t bundles = columns / pack_lanes;  // of right-hand sides of one environment
#pragma omp parallel num_threads(threads) if (threads > 1 && batch * columns > pack_lanes)
    {
        Packs scratch(rows);
#pragma omp for collapse(2) nowait
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t column = 0; column < columns; ++column) {
                double *here = x + (group * pack_lanes * columns + column) * rows;
                interleave(here, columns * rows, rows, scratch.data);
                solve_one(schedule, reinterpret_cast<const Pack *>(factors) + group * schedule.num_values, scratch.data, transposed);
                separate(scratch.data, columns * rows, rows, here);
            }
#pragma omp for collapse(2) nowait
        for (int64_t e = packed; e < batch; ++e)
            for (int64_t bundle = 0; bundle < bundles; ++bundle) {
                double *here = x + (e * columns + bundle * pack_lanes) * rows;
                interleave(here, rows, rows, scratch.data);
                solve_one(schedule, factors + e * schedule.num_values, scratch.data, transposed);
                separate(scratch.data, rows, rows, here);
            }
#pragma omp for collapse(2)
        for (int64_t e = packed; e < batch; ++e)
            for (int64_t column = bundles * pack_lanes; column < columns; ++column)
                solve_one(schedule, factors + e * schedule.num_values, x + (e * columns + column) * rows, transposed);
    }
}

}  // namespace

extern "C" {

void *td_ldu_create(const int32_t *table) { return new Schedule(table); }

void td_ldu_destroy(void *schedule) { delete static_cast<Schedule *>(schedule); }

// values: (batch, num_values) numbers; factors: as many, in the order above
void td_ldu_factor(const void *handle, const double *values, double *factors, int64_t batch, int threads) {
    const Schedule &schedule = *static_cast<const Schedule *>(handle);
    const int64_t count = schedule.num_values, groups = batch / pack_lanes;
#pragma omp parallel for num_threads(threads) if (threads > 1 && groups > 1)
    for (int64_t group = 0; group < groups; ++group) {
        Pack *here = reinterpret_cast<Pack *>(factors) + group * count;
        interleave(values + group * pack_lanes * count, count, schedule.num_values, here);
        ldu_factor(schedule, here);
    }
    for (int64_t e = groups * pack_lanes; e < batch; ++e) {
        std::copy_n(values + e * count, count, factors + e * count);
        ldu_factor(schedule, factors + e * count);
    }
}

void td_ldu_solve(const void *handle, const double *factors, double *x, int64_t batch, int64_t columns, int threads) {
    solve(*static_cast<const Schedule *>(handle), factors, x, batch, columns, threads, false);
}

void td_ldu_solve_transposed(const void *handle, const double *factors, double *x, int64_t batch, int64_t columns, int threads) {
    solve(*static_cast<const Schedule *>(handle), factors, x, batch, columns, threads, true);
}
}
