// A value and its derivative along one direction. Values T and derivatives R may differ: one value with a direction in each lane.
#pragma once

#include <type_traits>

#include "base/math.hpp"

namespace torchdojo {

template <class T, class R>
struct Tangent {
    T v;
    R d;

    Tangent() = default;
    TD_INLINE Tangent(const T &value) : v(value), d{} {}
    TD_INLINE Tangent(const T &value, const R &derivative) : v(value), d(derivative) {}
};

template <class T, class R>
TD_INLINE T value(const Tangent<T, R> &a) {
    return a.v;
}
TD_INLINE double value(double a) { return a; }
TD_INLINE Pack value(const Pack &a) { return a; }
#if TD_NARROW
TD_INLINE Narrow value(const Narrow &a) { return a; }
#endif
template <class S>
TD_INLINE auto values(const Vec3<S> &a) -> Vec3<decltype(value(a.x))> {
    return {value(a.x), value(a.y), value(a.z)};
}

template <class T, class R>
TD_INLINE Tangent<T, R> operator-(const Tangent<T, R> &a) {
    return {-a.v, -a.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator+(const Tangent<T, R> &a, const Tangent<T, R> &b) {
    return {a.v + b.v, a.d + b.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator-(const Tangent<T, R> &a, const Tangent<T, R> &b) {
    return {a.v - b.v, a.d - b.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator+(const Tangent<T, R> &a, const T &b) {
    return {a.v + b, a.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator-(const Tangent<T, R> &a, const T &b) {
    return {a.v - b, a.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator*(const Tangent<T, R> &a, const Tangent<T, R> &b) {
    return {a.v * b.v, a.v * b.d + b.v * a.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator/(const Tangent<T, R> &a, const Tangent<T, R> &b) {
    const T inverse = 1.0 / b.v, ratio = a.v * inverse;
    return {ratio, inverse * (a.d - ratio * b.d)};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator*(const T &a, const Tangent<T, R> &b) {
    return {a * b.v, a * b.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> operator*(const Tangent<T, R> &a, const T &b) {
    return {a.v * b, a.d * b};
}
template <class T, class R, class = std::enable_if_t<!std::is_same_v<T, double>>>
TD_INLINE Tangent<T, R> operator*(double a, const Tangent<T, R> &b) {
    return {a * b.v, a * b.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> select(const Mask<T> &m, const Tangent<T, R> &a, const Tangent<T, R> &b) {
    if constexpr (lanes<T> == lanes<R>) return {select(m, a.v, b.v), select(m, a.d, b.d)};
    else return m ? a : b;
}
// √x, with the derivative zero at zero.
template <class T, class R>
TD_INLINE Tangent<T, R> sqrt(const Tangent<T, R> &a) {
    const T root = sqrt(a.v);
    return {root, select(root > T{}, 0.5 / root, T{}) * a.d};
}

// These agree with `root` and `inverse_of` of scalars.
template <class T, class R>
TD_INLINE Tangent<T, R> root(const Tangent<T, R> &a) {
    const T root_ = root(a.v);
    return {root_, (0.5 * inverse_of(root_)) * a.d};
}
template <class T, class R>
TD_INLINE Tangent<T, R> inverse_of(const Tangent<T, R> &a) {
    const T inverse = inverse_of(a.v);
    return {inverse, -(inverse * inverse) * a.d};
}

}  // namespace torchdojo
