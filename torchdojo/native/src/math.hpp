// Vectors, matrices and unit quaternions (wxyz) over any scalar; two scalar types may be mixed (double with Pack).
#pragma once

#include "simd.hpp"

namespace torchdojo {

template <class A, class B>
using Product = decltype(A() * B());

template <class T>
struct Vec3 {
    T x, y, z;
    TD_INLINE T &operator[](int i) { return i == 0 ? x : i == 1 ? y : z; }
    TD_INLINE const T &operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
};

template <class T>
TD_INLINE Vec3<T> load3(const T *p) {
    return {p[0], p[1], p[2]};
}
template <class T>
TD_INLINE void store3(T *p, const Vec3<T> &v) {
    p[0] = v.x, p[1] = v.y, p[2] = v.z;
}
template <class T>
TD_INLINE void add3(T *p, const Vec3<T> &v) {
    p[0] += v.x, p[1] += v.y, p[2] += v.z;
}

template <class A, class B>
TD_INLINE Vec3<Product<A, B>> operator+(const Vec3<A> &a, const Vec3<B> &b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z};
}
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> operator-(const Vec3<A> &a, const Vec3<B> &b) {
    return {a.x - b.x, a.y - b.y, a.z - b.z};
}
template <class A>
TD_INLINE Vec3<A> operator-(const Vec3<A> &a) {
    return {-a.x, -a.y, -a.z};
}
template <class S, class A>
TD_INLINE Vec3<Product<S, A>> operator*(const S &s, const Vec3<A> &a) {
    return {s * a.x, s * a.y, s * a.z};
}
template <class A, class B>
TD_INLINE Product<A, B> dot(const Vec3<A> &a, const Vec3<B> &b) {
    return a.x * b.x + a.y * b.y + a.z * b.z;
}
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> cross(const Vec3<A> &a, const Vec3<B> &b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

template <class T>
struct Mat3 {
    T m[9];  // row-major
    TD_INLINE Vec3<T> row(int i) const { return {m[3 * i], m[3 * i + 1], m[3 * i + 2]}; }
    TD_INLINE Vec3<T> column(int i) const { return {m[i], m[3 + i], m[6 + i]}; }
};

template <class T>
TD_INLINE Mat3<T> load33(const T *p) {
    Mat3<T> r;
    for (int i = 0; i < 9; ++i) r.m[i] = p[i];
    return r;
}

// A v
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> operator*(const Mat3<A> &a, const Vec3<B> &v) {
    return {a.m[0] * v.x + a.m[1] * v.y + a.m[2] * v.z, a.m[3] * v.x + a.m[4] * v.y + a.m[5] * v.z,
            a.m[6] * v.x + a.m[7] * v.y + a.m[8] * v.z};
}
// Aᵀ v
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> transposed_times(const Mat3<A> &a, const Vec3<B> &v) {
    return {a.m[0] * v.x + a.m[3] * v.y + a.m[6] * v.z, a.m[1] * v.x + a.m[4] * v.y + a.m[7] * v.z,
            a.m[2] * v.x + a.m[5] * v.y + a.m[8] * v.z};
}
template <class T>
TD_INLINE Mat3<T> operator*(const Mat3<T> &a, const Mat3<T> &b) {
    Mat3<T> r;
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) r.m[3 * i + j] = a.m[3 * i] * b.m[j] + a.m[3 * i + 1] * b.m[3 + j] + a.m[3 * i + 2] * b.m[6 + j];
    return r;
}

template <class T>
struct Quat {
    T w;
    Vec3<T> v;
};

template <class T>
TD_INLINE Quat<T> load4(const T *p) {
    return {p[0], {p[1], p[2], p[3]}};
}
template <class T>
TD_INLINE Quat<T> conjugate(const Quat<T> &q) {
    return {q.w, -q.v};
}
template <class A, class B>
TD_INLINE Quat<Product<A, B>> operator*(const Quat<A> &p, const Quat<B> &q) {
    return {p.w * q.w - dot(p.v, q.v), p.w * q.v + q.w * p.v + cross(p.v, q.v)};
}
template <class T>
TD_INLINE Mat3<T> rotation_matrix(const Quat<T> &q) {
    const T x = q.v.x, y = q.v.y, z = q.v.z, w = q.w;
    return {{1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y), 2.0 * (x * y + w * z),
             1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x), 2.0 * (x * z - w * y), 2.0 * (y * z + w * x),
             1.0 - 2.0 * (x * x + y * y)}};
}

// Axis times angle of the shorter of the rotations q and −q.
template <class T>
TD_INLINE Vec3<T> rotation_vector(const Quat<T> &q) {
    const T sign = select(q.w < T{}, broadcast<T>(-1.0), broadcast<T>(1.0));
    const Vec3<T> u = sign * q.v;
    const T squared = dot(u, u);
    const Mask<T> small = squared < broadcast<T>(1e-16);
    const T sine = sqrt(select(small, broadcast<T>(1.0), squared));
    const T angle = each_lane<T>([](double s, double c) { return std::atan2(s, c); }, sine, sign * q.w);
    return select(small, 2.0 - squared / 3.0, 2.0 * angle / sine) * u;
}

// The rotation vector θ changes by J_r⁻¹ φ when its rotation is followed by a small rotation φ in its own (body) frame, and by J_l⁻¹ φ when
// preceded by one:   J_r⁻¹ = I + ½[θ]× + c [θ]×²,   J_l⁻¹ = I − ½[θ]× + c [θ]×²,   c = 1/θ² − (1 + cos θ) / (2 θ sin θ).
template <class T>
TD_INLINE T rotation_vector_curvature(const Vec3<T> &theta) {
    const T squared = dot(theta, theta);
    const Mask<T> small = squared < broadcast<T>(1e-6);
    const T safe = select(small, broadcast<T>(1.0), squared);
    const T angle = sqrt(safe);
    const T half_cotangent = each_lane<T>([](double a) { return 0.5 * a / std::tan(0.5 * a); }, angle);
    return select(small, 1.0 / 12.0 + squared / 720.0, (1.0 - half_cotangent) / safe);
}
// J_r⁻ᵀ v = J_l⁻¹ v and J_l⁻ᵀ v = J_r⁻¹ v.
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> left_jacobian_inverse(const Vec3<A> &theta, const A &curvature, const Vec3<B> &v) {
    const auto t = cross(theta, v);
    return v - 0.5 * t + curvature * cross(theta, t);
}
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> right_jacobian_inverse(const Vec3<A> &theta, const A &curvature, const Vec3<B> &v) {
    const auto t = cross(theta, v);
    return v + 0.5 * t + curvature * cross(theta, t);
}

}  // namespace torchdojo
