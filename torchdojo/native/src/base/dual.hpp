// Forward derivatives: a value and its derivatives by the poses of two bodies (x, φ of each), or by the numbers of a shape. The geometry of
// contacts between shapes uses them, since derivatives by hand would be long.
#pragma once

#include <type_traits>

#include "base/math.hpp"

namespace torchdojo {

constexpr int dual_size = 12;

template <class T>
struct Dual {
    T v;
    T d[dual_size];

    Dual() = default;
    TD_INLINE Dual(const T &value) : v(value) {
        for (int k = 0; k < dual_size; ++k) d[k] = T{};
    }
};

template <class T>
TD_INLINE T value(const T &a) {
    return a;
}
template <class T>
TD_INLINE T value(const Dual<T> &a) {
    return a.v;
}
template <class T>
TD_INLINE Vec3<T> value(const Vec3<Dual<T>> &a) {
    return {a.x.v, a.y.v, a.z.v};
}

template <class T, class F, class G>
TD_INLINE Dual<T> make_dual(const F &value, const G &derivative) {
    Dual<T> r;
    r.v = value;
    for (int k = 0; k < dual_size; ++k) r.d[k] = derivative(k);
    return r;
}
template <class T>
using NotDouble = std::enable_if_t<!std::is_same_v<T, double>>;

template <class T>
TD_INLINE Dual<T> operator-(const Dual<T> &a) {
    return make_dual<T>(-a.v, [&](int k) { return -a.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator+(const Dual<T> &a, const Dual<T> &b) {
    return make_dual<T>(a.v + b.v, [&](int k) { return a.d[k] + b.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator-(const Dual<T> &a, const Dual<T> &b) {
    return make_dual<T>(a.v - b.v, [&](int k) { return a.d[k] - b.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator*(const Dual<T> &a, const Dual<T> &b) {
    return make_dual<T>(a.v * b.v, [&](int k) { return a.v * b.d[k] + b.v * a.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator/(const Dual<T> &a, const Dual<T> &b) {
    const T inverse = 1.0 / b.v, value = a.v * inverse;
    return make_dual<T>(value, [&](int k) { return inverse * (a.d[k] - value * b.d[k]); });
}
template <class T>
TD_INLINE Dual<T> operator*(const T &a, const Dual<T> &b) {
    return make_dual<T>(a * b.v, [&](int k) { return a * b.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator*(const Dual<T> &a, const T &b) {
    return b * a;
}
template <class T, class = NotDouble<T>>
TD_INLINE Dual<T> operator*(double a, const Dual<T> &b) {
    return make_dual<T>(a * b.v, [&](int k) { return a * b.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator-(double a, const Dual<T> &b) {
    return make_dual<T>(a - b.v, [&](int k) { return -b.d[k]; });
}
template <class T>
TD_INLINE Dual<T> operator-(const Dual<T> &a, const T &b) {
    Dual<T> r = a;
    r.v -= b;
    return r;
}
template <class T>
TD_INLINE Dual<T> operator+(const Dual<T> &a, const T &b) {
    Dual<T> r = a;
    r.v += b;
    return r;
}
template <class T>
TD_INLINE auto operator<(const Dual<T> &a, const Dual<T> &b) {
    return a.v < b.v;
}
template <class T>
TD_INLINE auto operator>(const Dual<T> &a, const Dual<T> &b) {
    return a.v > b.v;
}
template <class T>
TD_INLINE Dual<T> select(const Mask<T> &m, const Dual<T> &a, const Dual<T> &b) {
    return make_dual<T>(select(m, a.v, b.v), [&](int k) { return select(m, a.d[k], b.d[k]); });
}
template <class T>
TD_INLINE Dual<T> sqrt(const Dual<T> &a) {
    const T root = sqrt(a.v), scale = 0.5 / root;
    return make_dual<T>(root, [&](int k) { return scale * a.d[k]; });
}

template <class S, class T>
TD_INLINE Vec3<S> lift(const Vec3<T> &a) {
    return {S(a.x), S(a.y), S(a.z)};
}
template <class S, class T>
TD_INLINE Mat3<S> lift(const Mat3<T> &a) {
    Mat3<S> result;
    for (int k = 0; k < 9; ++k) result.m[k] = S(a.m[k]);
    return result;
}
// A pose whose derivatives, by displacements in the world frame and rotations in the body frame, are numbers `first` to `first` + 5.
template <class T>
void seed(const Vec3<T> &place, const Mat3<T> &rotation, int first, Vec3<Dual<T>> &x, Mat3<Dual<T>> &R) {
    x = lift<Dual<T>>(place);
    R = lift<Dual<T>>(rotation);
    for (int k = 0; k < 3; ++k) {
        x[k].d[first + k] = broadcast<T>(1.0);
        const int i = (k + 1) % 3, j = (k + 2) % 3;  // R [e_k]×: column i becomes column j, column j minus column i
        for (int row = 0; row < 3; ++row) {
            R.m[3 * row + i].d[first + 3 + k] = rotation.m[3 * row + j];
            R.m[3 * row + j].d[first + 3 + k] = -rotation.m[3 * row + i];
        }
    }
}

}  // namespace torchdojo
