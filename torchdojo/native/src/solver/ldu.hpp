// LDU factors of a block-sparse matrix, run from the table that `graph.py` writes (its layout is described at `Schedule` there).
//
// For each node i in elimination order, with later neighbors k:  D_i = L U in place (no pivoting; reciprocals of the pivots),
// Ubar_ik = D_i^-1 U_ik in place of U_ik, L_ki stays, and A_jk -= L_ji Ubar_ik for all pairs of later neighbors.
// Brüdigam, Janeva, Sosnowski and Hirche, "Linear-time contact and friction dynamics in maximal coordinates", algorithms 1-4.
// A pivot that is zero or NaN gives infinities or NaN in its own lane; callers check.
//
// Most blocks have kernels with the size compiled in, so that their accumulators stay in registers. These sizes are up to 6 on a side, and
// the 8 or 9 rows of joints with limits on two or three rotations. Other sizes and rare pairs take loops, since compiling all takes longer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/simd.hpp"

namespace torchdojo {

struct Schedule {
    struct Link {  // a later neighbor k of the node i that is eliminated
        int32_t size, upper, lower, row;
    };
    struct Step {
        int32_t size, diagonal, row, num_links;
        const Link *links;
        const int32_t *targets;  // num_links * num_links, row-major in (j, k)
        const Link *begin() const { return links; }
        const Link *end() const { return links + num_links; }
    };
    struct Range {
        int32_t offset, count;
    };

    int num_values, num_rows, max_size;
    std::vector<Step> steps;
    std::vector<std::vector<Range>> fresh;  // per step: values that no step before it touches

    explicit Schedule(const int32_t *table) : num_values(table[3]), num_rows(table[4]), max_size(table[5]) {
        steps.reserve(table[0]);
        links_.reserve(table[1]);  // the steps point into these, so they must not grow
        targets_.reserve(table[2]);
        const int num_nodes = *table;
        table += 6;
        for (int n = 0; n < num_nodes; ++n) {
            const int m = table[3];
            Step step{table[0], table[1], table[2], m, links_.data() + links_.size(), targets_.data() + targets_.size()};
            table += 4;
            for (int k = 0; k < m; ++k, table += 4) links_.push_back({table[0], table[1], table[2], table[3]});
            targets_.insert(targets_.end(), table, table + static_cast<int64_t>(m) * m);
            table += static_cast<int64_t>(m) * m;
            steps.push_back(step);
        }
        find_fresh();
    }
    // Length of a table according to its head.
    static int64_t length(const int32_t *table, int64_t available) {
        return available < 6 ? 6 : 6 + 4 * (int64_t(table[0]) + table[1]) + table[2];
    }
    Schedule(const Schedule &) = delete;  // the steps point into the vectors
    Schedule &operator=(const Schedule &) = delete;

private:
    std::vector<Link> links_;
    std::vector<int32_t> targets_;

    void find_fresh() {
        std::vector<char> touched(num_values);
        for (const Step &step : steps) {
            std::vector<Range> &ranges = fresh.emplace_back();
            auto touch = [&](int32_t offset, int32_t count) {
                if (touched[offset]) return;
                touched[offset] = 1;
                if (!ranges.empty() && ranges.back().offset + ranges.back().count == offset) ranges.back().count += count;
                else ranges.push_back({offset, count});
            };
            touch(step.diagonal, step.size * step.size);
            for (int j = 0; j < step.num_links; ++j) {
                const Link &link = step.links[j];
                touch(link.upper, step.size * link.size);
                touch(link.lower, link.size * step.size);
                for (int k = 0; k < step.num_links; ++k) touch(step.targets[j * step.num_links + k], link.size * step.links[k].size);
            }
        }
    }
};

namespace ldu {

constexpr int registers = pack_lanes == 8 ? 32 : 16;  // vector registers

// ---- kernels: a size of 0 among the template parameters means that the size comes at run time ----

// a (n x n) becomes its factors: unit L below the diagonal, U above the diagonal, and reciprocals of U's diagonal on the diagonal.
template <int N, class T>
inline void factor(T *__restrict a, int n) {
    if constexpr (N > 0) {
        T m[N * N];
#pragma GCC unroll 81
        for (int i = 0; i < N * N; ++i) m[i] = a[i];
#pragma GCC unroll 9
        for (int p = 0; p < N; ++p) {
            m[p * N + p] = inverse_of(m[p * N + p]);
#pragma GCC unroll 9
            for (int r = p + 1; r < N; ++r) {
                m[r * N + p] *= m[p * N + p];
#pragma GCC unroll 9
                for (int c = p + 1; c < N; ++c) m[r * N + c] -= m[r * N + p] * m[p * N + c];
            }
        }
#pragma GCC unroll 81
        for (int i = 0; i < N * N; ++i) a[i] = m[i];
    } else {
        for (int p = 0; p < n; ++p) {
            const T reciprocal = inverse_of(a[p * n + p]);
            a[p * n + p] = reciprocal;
            for (int r = p + 1; r < n; ++r) {
                const T l = a[r * n + p] * reciprocal;
                a[r * n + p] = l;
                for (int c = p + 1; c < n; ++c) a[r * n + c] -= l * a[p * n + c];
            }
        }
    }
}

// x <- D^-1 x for `C` neighboring columns of x, whose rows are `stride` apart.
template <int N, int C, class T, class R>
TD_INLINE void divide_columns(const T *__restrict d, R *__restrict x, int stride) {
    R v[N][C];
#pragma GCC unroll 9
    for (int r = 0; r < N; ++r) {
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) v[r][c] = x[r * stride + c];
#pragma GCC unroll 9
        for (int p = 0; p < r; ++p) {
#pragma GCC unroll 9
            for (int c = 0; c < C; ++c) v[r][c] -= d[r * N + p] * v[p][c];
        }
    }
#pragma GCC unroll 9
    for (int r = N - 1; r >= 0; --r) {
#pragma GCC unroll 9
        for (int p = r + 1; p < N; ++p) {
#pragma GCC unroll 9
            for (int c = 0; c < C; ++c) v[r][c] -= d[r * N + p] * v[p][c];
        }
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) x[r * stride + c] = v[r][c] *= d[r * N + r];
    }
}

// One environment has no lanes to fill a vector with, so neighbors in a row of a block fill it.
template <int W>
struct Run {
    typedef double type __attribute__((vector_size(8 * W), aligned(8), may_alias));
};
template <>
struct Run<1> {
    using type = double;
};
template <class T, class R>
constexpr bool in_runs = std::is_same<T, double>::value && std::is_same<R, double>::value;
constexpr int run_width(int columns) { return columns >= 8 && pack_lanes == 8 ? 8 : columns >= 4 ? 4 : columns >= 2 ? 2 : 1; }

// x <- D^-1 x for the columns of x from `begin` on.
template <int N, int C, int begin = 0>
TD_INLINE void divide_runs(const double *__restrict d, double *__restrict x) {
    constexpr int width = run_width(C - begin);
    using V = typename Run<width>::type;
    V v[N];
#pragma GCC unroll 9
    for (int r = 0; r < N; ++r) {
        v[r] = *reinterpret_cast<const V *>(x + r * C + begin);
#pragma GCC unroll 9
        for (int p = 0; p < r; ++p) v[r] -= d[r * N + p] * v[p];
    }
#pragma GCC unroll 9
    for (int r = N - 1; r >= 0; --r) {
#pragma GCC unroll 9
        for (int p = r + 1; p < N; ++p) v[r] -= d[r * N + p] * v[p];
        v[r] *= d[r * N + r];
        *reinterpret_cast<V *>(x + r * C + begin) = v[r];
    }
    if constexpr (begin + width < C) divide_runs<N, C, begin + width>(d, x);
}

// A (rows x C) -= L (rows x N) U (N x C), the columns from `begin` on.
template <int N, int C, int begin = 0>
TD_INLINE void subtract_runs(double *__restrict a, const double *__restrict l, const double *__restrict u, int rows) {
    constexpr int width = run_width(C - begin);
    using V = typename Run<width>::type;
    V v[N];
#pragma GCC unroll 9
    for (int p = 0; p < N; ++p) v[p] = *reinterpret_cast<const V *>(u + p * C + begin);
    for (int r = 0; r < rows; ++r) {
        V sum = *reinterpret_cast<const V *>(a + r * C + begin);
#pragma GCC unroll 9
        for (int p = 0; p < N; ++p) sum -= l[r * N + p] * v[p];
        *reinterpret_cast<V *>(a + r * C + begin) = sum;
    }
    if constexpr (begin + width < C) subtract_runs<N, C, begin + width>(a, l, u, rows);
}

// x <- D^-1 x, x (n x columns)
template <int N, int C, class T, class R>
inline void divide(const T *__restrict d, R *__restrict x, int n, int columns) {
    if constexpr (N > 0 && C > 1 && in_runs<T, R>) {
        divide_runs<N, C>(d, x);
    } else if constexpr (N > 0 && C > 0) {
        // 6 x 3 accumulators and a row of D fit 32 registers, 6 x 2 fit 16.
        constexpr int width = registers > 16 && (C % 3 == 0 || C == 5) ? 3 : C > 1 ? 2 : 1;
#pragma GCC unroll 4
        for (int c = 0; c + width <= C; c += width) divide_columns<N, width>(d, x + c, C);
        if constexpr (C % width != 0) divide_columns<N, C % width>(d, x + C - C % width, C);
    } else {
        if constexpr (N > 0) n = N;
        for (int r = 0; r < n; ++r) {
            for (int p = 0; p < r; ++p)
                for (int c = 0; c < columns; ++c) x[r * columns + c] -= d[r * n + p] * x[p * columns + c];
        }
        for (int r = n - 1; r >= 0; --r) {
            for (int p = r + 1; p < n; ++p)
                for (int c = 0; c < columns; ++c) x[r * columns + c] -= d[r * n + p] * x[p * columns + c];
            for (int c = 0; c < columns; ++c) x[r * columns + c] *= d[r * n + r];
        }
    }
}

// x <- D^-T x
template <int N, class T, class R>
inline void divide_transposed(const T *__restrict d, R *__restrict x, int n) {
    if constexpr (N > 0) n = N;
#pragma GCC unroll 9
    for (int r = 0; r < n; ++r) {
#pragma GCC unroll 9
        for (int p = 0; p < r; ++p) x[r] -= d[p * n + r] * x[p];
        x[r] *= d[r * n + r];
    }
#pragma GCC unroll 9
    for (int r = n - 1; r >= 0; --r) {
#pragma GCC unroll 9
        for (int p = r + 1; p < n; ++p) x[r] -= d[p * n + r] * x[p];
    }
}

// M rows and C columns of A, whose rows are `stride` apart.
template <int M, int N, int C, class T>
TD_INLINE void subtract_rows(T *__restrict a, const T *__restrict l, const T *__restrict u, int stride) {
    T sum[M][C];
#pragma GCC unroll 2
    for (int r = 0; r < M; ++r)
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) sum[r][c] = a[r * stride + c];
#pragma GCC unroll 9
    for (int p = 0; p < N; ++p)
#pragma GCC unroll 2
        for (int r = 0; r < M; ++r)
#pragma GCC unroll 9
            for (int c = 0; c < C; ++c) sum[r][c] -= l[r * N + p] * u[p * stride + c];
#pragma GCC unroll 2
    for (int r = 0; r < M; ++r)
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) a[r * stride + c] = sum[r][c];
}

// A (rows x columns) -= L (rows x n) U (n x columns)
template <int N, int C, class T>
inline void subtract(T *__restrict a, const T *__restrict l, const T *__restrict u, int rows, int n, int columns) {
    if constexpr (N > 0 && C > 1 && in_runs<T, T>) {
        subtract_runs<N, C>(a, l, u, rows);
    } else if constexpr (N > 0 && C > 0) {
        // Two rows of up to 6 columns fit 16 registers.
        constexpr int width = registers > 16 || C <= 6 ? C : (C + 1) / 2;
        int r = 0;
        for (; r + 2 <= rows; r += 2) {
            subtract_rows<2, N, width>(a + r * C, l + r * N, u, C);
            if constexpr (width < C) subtract_rows<2, N, C - width>(a + r * C + width, l + r * N, u + width, C);
        }
        if (r < rows) subtract_rows<1, N, C>(a + r * C, l + r * N, u, C);
    } else {
        for (int r = 0; r < rows; ++r)
            for (int p = 0; p < n; ++p) {
                const T factor = l[r * n + p];
                for (int c = 0; c < columns; ++c) a[r * columns + c] -= factor * u[p * columns + c];
            }
    }
}

// y (rows) -= A (rows x n) x
template <int N, class T, class R>
TD_INLINE void subtract_product(R *__restrict y, const T *__restrict a, const R *__restrict x, int rows, int n) {
    if constexpr (N > 0) {
        R v[N];
#pragma GCC unroll 9
        for (int p = 0; p < N; ++p) v[p] = x[p];
        for (int r = 0; r < rows; ++r) {
            R sum = y[r];
#pragma GCC unroll 9
            for (int p = 0; p < N; ++p) sum -= a[r * N + p] * v[p];
            y[r] = sum;
        }
    } else {
        for (int r = 0; r < rows; ++r) {
            R sum = y[r];
            for (int p = 0; p < n; ++p) sum -= a[r * n + p] * x[p];
            y[r] = sum;
        }
    }
}

// y (columns) -= A^T x, A (n x columns)
template <int C, class T, class R>
TD_INLINE void subtract_product_transposed(R *__restrict y, const T *__restrict a, const R *__restrict x, int n, int columns) {
    if constexpr (C > 0) {
        R sum[C];
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) sum[c] = y[c];
        for (int p = 0; p < n; ++p) {
            const R v = x[p];
#pragma GCC unroll 9
            for (int c = 0; c < C; ++c) sum[c] -= a[p * C + c] * v;
        }
#pragma GCC unroll 9
        for (int c = 0; c < C; ++c) y[c] = sum[c];
    } else {
        for (int p = 0; p < n; ++p)
            for (int c = 0; c < columns; ++c) y[c] -= a[p * columns + c] * x[p];
    }
}

// ---- from sizes at run time to kernels: `f` gets a compile-time size as a type, 0 for sizes without kernels ----

template <int N>
struct Size {
    static constexpr int value = N;
};

template <class F>
TD_INLINE void with_size(int size, F &&f) {
    switch (size) {
        case 1: return f(Size<1>{});
        case 2: return f(Size<2>{});
        case 3: return f(Size<3>{});
        case 4: return f(Size<4>{});
        case 5: return f(Size<5>{});
        case 6: return f(Size<6>{});
        case 8: return f(Size<8>{});
        case 9: return f(Size<9>{});
        default: return f(Size<0>{});
    }
}

template <int N, class T>
void eliminate(const Schedule::Step &step, T *__restrict values) {
    const int n = N > 0 ? N : step.size, m = step.num_links;
    T *d = values + step.diagonal;
    factor<N>(d, n);
    for (int k = 0; k < m; ++k) {
        const Schedule::Link link = step.links[k];
        T *upper = values + link.upper;
        const int32_t *target = step.targets + k;
        with_size(link.size, [&](auto columns) {
            constexpr int wanted = decltype(columns)::value, C = N == 6 || wanted == 6 || (N < 6) == (wanted < 6) ? wanted : 0;
            divide<N, C>(d, upper, n, link.size);
            for (int j = 0; j < m; ++j, target += m) {
                const Schedule::Link other = step.links[j];
                subtract<N, C>(values + *target, values + other.lower, upper, other.size, n, link.size);
            }
        });
    }
}

template <class R>
TD_INLINE bool is_zero(const R *x, int size) {
    Mask<R> other{};
    for (int k = 0; k < size; ++k) other |= x[k] != R{};
    return !any(other);
}

}  // namespace ldu

// Factors in place; `values` has num_values elements, laid out by graph.py.
template <class T>
void ldu_factor(const Schedule &schedule, T *values) {
    for (const Schedule::Step &step : schedule.steps)
        ldu::with_size(step.size, [&](auto size) { ldu::eliminate<decltype(size)::value>(step, values); });
}

// Factors into other memory and leaves the matrix as it is. Blocks are copied when they are needed, so that they are in the cache then.
template <class T>
void ldu_factor(const Schedule &schedule, const T *matrix, T *values) {
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
        for (const Schedule::Range &range : schedule.fresh[i]) std::copy_n(matrix + range.offset, range.count, values + range.offset);
        const Schedule::Step &step = schedule.steps[i];
        ldu::with_size(step.size, [&](auto size) { ldu::eliminate<decltype(size)::value>(step, values); });
    }
}

namespace ldu {

// First half of x <- A^-1 x, for one node.
template <int N, class T, class R>
TD_INLINE void substitute(const Schedule::Step &step, const T *values, R *x) {
    R *x_node = x + step.row;
    divide<N, N ? 1 : 0>(values + step.diagonal, x_node, step.size, 1);
    for (const Schedule::Link link : step) subtract_product<N>(x + link.row, values + link.lower, x_node, link.size, step.size);
}

// Second half, all nodes.
template <class T, class R>
void substitute_back(const Schedule &schedule, const T *values, R *x) {
    for (auto step = schedule.steps.rbegin(); step != schedule.steps.rend(); ++step) {
        for (const Schedule::Link link : *step)
            with_size(link.size, [&](auto size) {
                subtract_product<decltype(size)::value>(x + step->row, values + link.upper, x + link.row, step->size, link.size);
            });
    }
}

}  // namespace ldu

// x <- A^-1 x in place; x has num_rows elements. T = R, or T = double and R = Pack for one right-hand side per lane.
template <class T, class R>
void ldu_solve(const Schedule &schedule, const T *values, R *x) {
    for (const Schedule::Step &step : schedule.steps)
        ldu::with_size(step.size, [&](auto size) { ldu::substitute<decltype(size)::value>(step, values, x); });
    ldu::substitute_back(schedule, values, x);
}

// Factors and solves at once, so that large matrices pass through the cache once less.
template <class T>
void ldu_factor_and_solve(const Schedule &schedule, T *values, T *x) {
    for (const Schedule::Step &step : schedule.steps)
        ldu::with_size(step.size, [&](auto size) {
            ldu::eliminate<decltype(size)::value>(step, values);
            ldu::substitute<decltype(size)::value>(step, values, x);
        });
    ldu::substitute_back(schedule, values, x);
}

// x <- A^-T x in place. If `sparse`, most of x is zero, as in a column of the identity, and stays zero on the way up the graph.
template <class T, class R>
void ldu_solve_transposed(const Schedule &schedule, const T *values, R *x, bool sparse = false) {
    for (const Schedule::Step &step : schedule.steps) {
        if (sparse && ldu::is_zero(x + step.row, step.size)) continue;
        for (const Schedule::Link link : step) {
            ldu::with_size(link.size, [&](auto size) {
                constexpr int C = decltype(size)::value;
                ldu::subtract_product_transposed<C>(x + link.row, values + link.upper, x + step.row, step.size, link.size);
            });
        }
    }
    for (auto step = schedule.steps.rbegin(); step != schedule.steps.rend(); ++step) {
        ldu::with_size(step->size, [&](auto size) {
            constexpr int N = decltype(size)::value;
            R *x_node = x + step->row;
            for (const Schedule::Link link : *step)
                ldu::subtract_product_transposed<N>(x_node, values + link.lower, x + link.row, link.size, step->size);
            ldu::divide_transposed<N>(values + step->diagonal, x_node, step->size);
        });
    }
}

// y -= A^T x for a matrix that is laid out but not factored.
template <class T, class R>
void ldu_subtract_transposed_product(const Schedule &schedule, const T *values, const R *x, R *y) {
    for (const Schedule::Step &step : schedule.steps) {
        const R *x_node = x + step.row;
        ldu::with_size(step.size, [&](auto size) {
            constexpr int N = decltype(size)::value;
            ldu::subtract_product_transposed<N>(y + step.row, values + step.diagonal, x_node, step.size, step.size);
            for (const Schedule::Link link : step)
                ldu::subtract_product_transposed<N>(y + step.row, values + link.lower, x + link.row, link.size, step.size);
        });
        for (const Schedule::Link link : step) {
            ldu::with_size(link.size, [&](auto size) {
                ldu::subtract_product_transposed<decltype(size)::value>(y + link.row, values + link.upper, x_node, step.size, link.size);
            });
        }
    }
}

// Compiled once, in ldu.cpp. T: of the matrix, R: of right-hand sides.
#define TD_LDU_FACTOR(EXTERN, T)                                          \
    EXTERN template void ldu_factor<T>(const Schedule &, T *);            \
    EXTERN template void ldu_factor<T>(const Schedule &, const T *, T *); \
    EXTERN template void ldu_factor_and_solve<T>(const Schedule &, T *, T *);
#define TD_LDU_SOLVE(EXTERN, T, R)                                                           \
    EXTERN template void ldu_solve<T, R>(const Schedule &, const T *, R *);                  \
    EXTERN template void ldu_solve_transposed<T, R>(const Schedule &, const T *, R *, bool); \
    EXTERN template void ldu_subtract_transposed_product<T, R>(const Schedule &, const T *, const R *, R *);
#define TD_LDU(EXTERN)            \
    TD_LDU_FACTOR(EXTERN, double) \
    TD_LDU_FACTOR(EXTERN, Pack) TD_LDU_SOLVE(EXTERN, double, double) TD_LDU_SOLVE(EXTERN, double, Pack) TD_LDU_SOLVE(EXTERN, Pack, Pack)

TD_LDU(extern)

}  // namespace torchdojo
