// Numbers of several environments, side by side in the lanes of a scalar, and back.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/simd.hpp"

namespace torchdojo {

// Asks for numbers that are read soon. They come from memory, and waiting for them takes as long as a tenth of a gradient's arithmetic.
TD_INLINE void fetch(const double *from, int64_t count) {
    for (int64_t k = 0; k < count; k += 8) __builtin_prefetch(from + k);
}

#if defined(__AVX512F__)
// Rows become columns.
TD_INLINE void transpose(Pack (&r)[8]) {
    Pack pairs[8], fours[8];
    for (int k = 0; k < 4; ++k) {
        pairs[2 * k] = _mm512_unpacklo_pd(r[2 * k], r[2 * k + 1]);
        pairs[2 * k + 1] = _mm512_unpackhi_pd(r[2 * k], r[2 * k + 1]);
    }
    for (const int k : {0, 4})
        for (const int i : {0, 1}) {
            fours[k + i] = _mm512_shuffle_f64x2(pairs[k + i], pairs[k + i + 2], 0x88);
            fours[k + i + 2] = _mm512_shuffle_f64x2(pairs[k + i], pairs[k + i + 2], 0xdd);
        }
    for (const int k : {0, 1, 2, 3}) {
        r[k] = _mm512_shuffle_f64x2(fours[k], fours[k + 4], 0x88);
        r[k + 4] = _mm512_shuffle_f64x2(fours[k], fours[k + 4], 0xdd);
    }
}
#endif

// One lane of to[k] becomes from[k], and back.
template <class T>
TD_INLINE void put_lane(T *to, int lane, const double *from, int count) {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) set(to[k], lane, from[k]);
}
template <class T>
TD_INLINE void take_lane(const T *from, int lane, double *to, int count) {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) to[k] = get(from[k], lane);
}

// Lane j of to[k] becomes from[j][k].
template <class T>
inline void interleave(const double *const *from, size_t count, T *to) {
    size_t k = 0;
#if defined(__AVX512F__)
    if constexpr (lanes<T> == 8)
        for (; k + 8 <= count; k += 8) {
            Pack rows[8];
            for (int lane = 0; lane < 8; ++lane) rows[lane] = _mm512_loadu_pd(from[lane] + k);
            transpose(rows);
            for (int i = 0; i < 8; ++i) to[k + i] = rows[i];
        }
#endif
    for (; k < count; ++k) {
        T value{};
#pragma GCC unroll 8
        for (int lane = 0; lane < lanes<T>; ++lane) set(value, lane, from[lane][k]);
        to[k] = value;
    }
}

// to[j][k] becomes lane j of from[k], for the first `used` lanes.
template <class T>
inline void separate(const T *from, size_t count, double *const *to, int used) {
    size_t k = 0;
#if defined(__AVX512F__)
    if constexpr (lanes<T> == 8)
        for (; k + 8 <= count; k += 8) {
            Pack rows[8];
            for (int i = 0; i < 8; ++i) rows[i] = from[k + i];
            transpose(rows);
            for (int lane = 0; lane < used; ++lane) _mm512_storeu_pd(to[lane] + k, rows[lane]);
        }
#endif
    for (; k < count; ++k)
        for (int lane = 0; lane < used; ++lane) to[lane][k] = get(from[k], lane);
}

}  // namespace torchdojo
