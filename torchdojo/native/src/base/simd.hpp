// The scalar types of the kernel: `double` for one environment, `Pack` for several side by side in one vector register.
//
// Everything else is a template on the scalar T and is written once. A comparison of scalars gives a Mask<T>; `select` chooses lane by
// lane. No operation mixes lanes, so a value in one lane (a NaN included) changes no bit of another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace torchdojo {

#if defined(__AVX512F__)
constexpr int pack_lanes = 8;
#else
constexpr int pack_lanes = 4;
#endif

typedef double Pack __attribute__((vector_size(8 * pack_lanes)));
typedef int64_t PackMask __attribute__((vector_size(8 * pack_lanes)));

// Half a Pack, for mechanisms whose numbers in all lanes of a Pack leave the second cache (`narrow` in step_api.cpp). Where registers have
// four lanes, it is the Pack itself.
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TD_NARROW 1
typedef double Narrow __attribute__((vector_size(32)));
typedef int64_t NarrowMask __attribute__((vector_size(32)));
#else
#define TD_NARROW 0
typedef Pack Narrow;
typedef PackMask NarrowMask;
#endif

template <class T>
struct Traits;

template <>
struct Traits<double> {
    static constexpr int lanes = 1;
    using Mask = bool;
};

template <>
struct Traits<Pack> {
    static constexpr int lanes = pack_lanes;
    using Mask = PackMask;
};

#if TD_NARROW
template <>
struct Traits<Narrow> {
    static constexpr int lanes = 4;
    using Mask = NarrowMask;
};
#endif

template <class T>
using Mask = typename Traits<T>::Mask;

template <class T>
constexpr int lanes = Traits<T>::lanes;

#define TD_INLINE inline __attribute__((always_inline))

template <class T>
TD_INLINE T broadcast(double x) {
    return x - T{};  // x + T{} would turn -0 into +0
}

TD_INLINE double get(double x, int) { return x; }
TD_INLINE double get(const Pack &x, int lane) { return x[lane]; }
TD_INLINE void set(double &x, int, double value) { x = value; }
TD_INLINE void set(Pack &x, int lane, double value) { x[lane] = value; }

TD_INLINE bool get_mask(bool m, int) { return m; }
TD_INLINE bool get_mask(const PackMask &m, int lane) { return m[lane] != 0; }
TD_INLINE void set_mask(bool &m, int, bool value) { m = value; }
TD_INLINE void set_mask(PackMask &m, int lane, bool value) { m[lane] = value ? -1 : 0; }

TD_INLINE bool any(bool m) { return m; }
TD_INLINE bool any(const PackMask &m) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)m, (__m512i)m) != 0;
#else
    int64_t all = 0;
    for (int i = 0; i < pack_lanes; ++i) all |= m[i];
    return all != 0;
#endif
}

TD_INLINE double select(bool m, double a, double b) { return m ? a : b; }
#if defined(__clang__) && defined(__AVX__) && !defined(__AVX512F__)
// Clang writes x = m ? a : x by masked stores, which cost rollouts on AMD a tenth. This instruction hides the choice.
TD_INLINE Pack select(const PackMask &m, const Pack &a, const Pack &b) {
    return (Pack)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)m);
}
#else
TD_INLINE Pack select(const PackMask &m, const Pack &a, const Pack &b) { return m ? a : b; }
#endif
TD_INLINE bool select_mask(bool m, bool a, bool b) { return m ? a : b; }
TD_INLINE PackMask select_mask(const PackMask &m, const PackMask &a, const PackMask &b) { return (m & a) | (~m & b); }
TD_INLINE bool negate(bool m) { return !m; }
TD_INLINE PackMask negate(const PackMask &m) { return ~m; }

#if TD_NARROW
TD_INLINE double get(const Narrow &x, int lane) { return x[lane]; }
TD_INLINE void set(Narrow &x, int lane, double value) { x[lane] = value; }
TD_INLINE bool get_mask(const NarrowMask &m, int lane) { return m[lane] != 0; }
TD_INLINE void set_mask(NarrowMask &m, int lane, bool value) { m[lane] = value ? -1 : 0; }
TD_INLINE bool any(const NarrowMask &m) { return _mm256_test_epi64_mask((__m256i)m, (__m256i)m) != 0; }
TD_INLINE Narrow select(const NarrowMask &m, const Narrow &a, const Narrow &b) { return m ? a : b; }
TD_INLINE NarrowMask select_mask(const NarrowMask &m, const NarrowMask &a, const NarrowMask &b) { return (m & a) | (~m & b); }
TD_INLINE NarrowMask negate(const NarrowMask &m) { return ~m; }
TD_INLINE Narrow sqrt(const Narrow &x) { return _mm256_sqrt_pd(x); }
#endif

template <class T>
TD_INLINE T max(const T &a, const T &b) {  // a NaN in b wins, as in std::max(b, a)
    return select(a > b, a, b);
}
template <class T>
TD_INLINE T min(const T &a, const T &b) {
    return select(a < b, a, b);
}
template <class T>
TD_INLINE T abs(const T &a) {
    return select(a < T{}, -a, a);
}

TD_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
TD_INLINE Pack sqrt(const Pack &x) {
#if defined(__AVX512F__)
    return _mm512_sqrt_pd(x);  // compilers turn a loop into two halves
#else
    Pack r;
    for (int i = 0; i < pack_lanes; ++i) r[i] = __builtin_sqrt(x[i]);
    return r;
#endif
}

// a/b and √x for b and x between 1e-290 and 1e290, to the last bit or the next one; zero and infinity give NaN. Registers of 512 bits wait 16
// and 24 cycles for the divider. These functions take a third of that time.
TD_INLINE double quotient(double a, double b) { return a / b; }
TD_INLINE double root(double x) { return __builtin_sqrt(x); }
#if defined(__AVX512F__)
TD_INLINE Pack quotient(const Pack &a, const Pack &b) {
    const __m512d one = _mm512_set1_pd(1.0);
    __m512d r = _mm512_rcp14_pd(b);
    const __m512d e = _mm512_fnmadd_pd(b, r, one);  // 2⁻¹⁴, and then its cube
    r = _mm512_fmadd_pd(r, _mm512_fmadd_pd(e, e, e), r);
    const __m512d q = _mm512_mul_pd(a, r);
    return (Pack)_mm512_fmadd_pd(_mm512_fnmadd_pd(b, q, a), r, q);
}
TD_INLINE Pack root(const Pack &x) {
    const __m512d one = _mm512_set1_pd(1.0), half = _mm512_set1_pd(0.5);
    __m512d r = _mm512_rsqrt14_pd(x);
    const __m512d e = _mm512_fnmadd_pd(_mm512_mul_pd(x, r), r, one);
    r = _mm512_fmadd_pd(_mm512_mul_pd(r, e), _mm512_fmadd_pd(e, _mm512_set1_pd(0.375), half), r);
    const __m512d s = _mm512_mul_pd(x, r);
    return (Pack)_mm512_fmadd_pd(_mm512_fnmadd_pd(s, s, x), _mm512_mul_pd(half, r), s);
}
#if TD_NARROW
TD_INLINE Narrow quotient(const Narrow &a, const Narrow &b) {
    const __m256d one = _mm256_set1_pd(1.0);
    __m256d r = _mm256_rcp14_pd(b);
    const __m256d e = _mm256_fnmadd_pd(b, r, one);
    r = _mm256_fmadd_pd(r, _mm256_fmadd_pd(e, e, e), r);
    const __m256d q = _mm256_mul_pd(a, r);
    return (Narrow)_mm256_fmadd_pd(_mm256_fnmadd_pd(b, q, a), r, q);
}
TD_INLINE Narrow root(const Narrow &x) {
    const __m256d one = _mm256_set1_pd(1.0), half = _mm256_set1_pd(0.5);
    __m256d r = _mm256_rsqrt14_pd(x);
    const __m256d e = _mm256_fnmadd_pd(_mm256_mul_pd(x, r), r, one);
    r = _mm256_fmadd_pd(_mm256_mul_pd(r, e), _mm256_fmadd_pd(e, _mm256_set1_pd(0.375), half), r);
    const __m256d s = _mm256_mul_pd(x, r);
    return (Narrow)_mm256_fmadd_pd(_mm256_fnmadd_pd(s, s, x), _mm256_mul_pd(half, r), s);
}
#endif
#else
TD_INLINE Pack quotient(const Pack &a, const Pack &b) { return a / b; }
TD_INLINE Pack root(const Pack &x) { return sqrt(x); }
#endif
template <class T>
TD_INLINE T inverse_of(const T &x) {
    return quotient(broadcast<T>(1.0), x);
}

template <class T, class F>
TD_INLINE T each_lane(F &&function, const T &a) {
    T r = a;
    for (int i = 0; i < lanes<T>; ++i) set(r, i, function(get(a, i)));
    return r;
}
template <class T, class F>
TD_INLINE T each_lane(F &&function, const T &a, const T &b) {
    T r = a;
    for (int i = 0; i < lanes<T>; ++i) set(r, i, function(get(a, i), get(b, i)));
    return r;
}

template <class T>
TD_INLINE Mask<T> finite(const T &x) {  // false for infinities and NaN
    return abs(x) <= broadcast<T>(std::numeric_limits<double>::max());
}

// Whether all of `count` numbers are finite. Their bits are compared, in a loop without branches, for which compilers have vectors.
inline bool all_finite(const double *values, int count) {
    constexpr uint64_t exponent = 0x7ff0000000000000;
    uint64_t beyond = 0;
    for (int k = 0; k < count; ++k) {
        uint64_t bits;
        std::memcpy(&bits, values + k, sizeof bits);
        beyond |= (bits & exponent) == exponent;
    }
    return !beyond;
}

}  // namespace torchdojo
