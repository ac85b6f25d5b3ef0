// Vectors, matrices and unit quaternions (wxyz) over any scalar; two scalar types may be mixed (double with Pack).
#pragma once

#include "base/simd.hpp"

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
    p[0] = v.x;
    p[1] = v.y;
    p[2] = v.z;
}
template <class T>
TD_INLINE void add3(T *p, const Vec3<T> &v) {
    p[0] += v.x;
    p[1] += v.y;
    p[2] += v.z;
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

// block = [x]× and block += [x]×, in a matrix whose rows are `stride` apart.
template <class T>
TD_INLINE void store_skew(T *block, int stride, const Vec3<T> &x) {
    for (int k = 0; k < 3; ++k) block[k * (stride + 1)] = T{};
    block[1] = -x.z;
    block[2] = x.y;
    block[stride] = x.z;
    block[stride + 2] = -x.x;
    block[2 * stride] = -x.y;
    block[2 * stride + 1] = x.x;
}
template <class T>
TD_INLINE void add_skew(T *block, int stride, const Vec3<T> &x) {
    block[1] -= x.z;
    block[2] += x.y;
    block[stride] += x.z;
    block[stride + 2] -= x.x;
    block[2 * stride] -= x.y;
    block[2 * stride + 1] += x.x;
}

// a += x yᵀ, a += s I, a += [x]×
template <class T>
TD_INLINE void add_outer(Mat3<T> &a, const Vec3<T> &x, const Vec3<T> &y) {
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) a.m[3 * i + j] += x[i] * y[j];
}
template <class T>
TD_INLINE void add_diagonal(Mat3<T> &a, const T &s) {
    a.m[0] += s;
    a.m[4] += s;
    a.m[8] += s;
}
template <class T>
TD_INLINE void add_skew(Mat3<T> &a, const Vec3<T> &x) {
    add_skew(a.m, 3, x);
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
    return {{1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y), 2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z),
             2.0 * (y * z - w * x), 2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)}};
}
// R(q) v
template <class T>
TD_INLINE Vec3<T> rotate(const Quat<T> &q, const Vec3<T> &v) {
    const Vec3<T> t = 2.0 * cross(q.v, v);
    return v + q.w * t + cross(q.v, t);
}

// Inverse of a symmetric positive definite matrix.
template <class T>
TD_INLINE Mat3<T> symmetric_inverse(const Mat3<T> &a) {
    const Vec3<T> x = a.column(0), y = a.column(1), z = a.column(2);
    const Vec3<T> yz = cross(y, z), zx = cross(z, x), xy = cross(x, y);
    const T inverse = inverse_of(dot(x, yz));
    return {{inverse * yz.x, inverse * yz.y, inverse * yz.z, inverse * zx.x, inverse * zx.y, inverse * zx.z, inverse * xy.x, inverse * xy.y,
             inverse * xy.z}};
}

// atan2(s, c) for s, c >= 0, in lanes: reduced to |x| <= tan(π/8), then a rational approximation with the coefficients of Moshier's Cephes
// library, which has an error of 2e-16.
template <class T>
TD_INLINE T first_quadrant_angle(const T &s, const T &c) {
    const Mask<T> steep = s > c;
    const T small = select(steep, c, s), large = select(steep, s, c);
    const Mask<T> middle = small > 0.41421356237309503 * large;
    const T x = quotient(select(middle, small - large, small), select(middle, small + large, large)), z = x * x;
    const T p =
        (((-8.750608600031904122785e-1 * z - 1.615753718733365076637e1) * z - 7.500855792314704667340e1) * z - 1.228866684490136173410e2) *
            z -
        6.485021904942025371773e1;
    const T q = ((((z + 2.485846490142306297962e1) * z + 1.650270098316988542046e2) * z + 4.328810604912902668951e2) * z +
                 4.853903996359136964868e2) *
                    z +
                1.945506571482613964425e2;
    const T angle = select(middle, broadcast<T>(0.78539816339744830962), T{}) + (x + x * (z * quotient(p, q)));
    return select(steep, 1.57079632679489661923 - angle, angle);
}

// Axis times angle θ of the shorter of the rotations q and −q, and its changes. A small rotation φ in the body frame after the rotation
// changes θ by J_r⁻¹ φ; a small rotation φ before it changes θ by J_l⁻¹ φ, with
//     J_r⁻¹ = I + ½[θ]× + c [θ]×²,   J_l⁻¹ = I − ½[θ]× + c [θ]×²,   c = (1 − (|θ|/2) cot(|θ|/2)) / |θ|².
template <class T>
struct RotationVector {
    Vec3<T> theta;
    T curvature;
};

// θ per vector part of a unit quaternion (w, v), and the curvature, from w and |v|².
template <class T>
TD_INLINE void turn_scale(const T &w, const T &squared, T &scale, T &curvature) {
    const T sign = select(w < T{}, broadcast<T>(-1.0), broadcast<T>(1.0)), cosine = sign * w;
    const Mask<T> tiny = squared < broadcast<T>(1e-16), small = squared < broadcast<T>(1e-6);
    const T sine = root(select(tiny, broadcast<T>(1.0), squared)), angle = 2.0 * first_quadrant_angle(sine, cosine);
    const T size = select(tiny, 2.0 - (1.0 / 3.0) * squared, quotient(angle, sine));
    // The series is taken where 1 − (θ/2) cot(θ/2) would cancel; there θ² = 4 sin²(θ/2) to the order that counts.
    curvature = select(small, 1.0 / 12.0 + (1.0 / 180.0) * squared, quotient(1.0 - 0.5 * size * cosine, angle * angle));
    scale = sign * size;
}
template <class T>
TD_INLINE RotationVector<T> rotation_vector(const Quat<T> &q) {
    RotationVector<T> r;
    T scale;
    turn_scale(q.w, dot(q.v, q.v), scale, r.curvature);
    r.theta = scale * q.v;
    return r;
}

// J_r⁻ᵀ v = J_l⁻¹ v and J_l⁻ᵀ v = J_r⁻¹ v.
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> left_jacobian_inverse(const RotationVector<A> &r, const Vec3<B> &v) {
    const auto t = cross(r.theta, v);
    return v - 0.5 * t + r.curvature * cross(r.theta, t);
}
template <class A, class B>
TD_INLINE Vec3<Product<A, B>> right_jacobian_inverse(const RotationVector<A> &r, const Vec3<B> &v) {
    const auto t = cross(r.theta, v);
    return v + 0.5 * t + r.curvature * cross(r.theta, t);
}

}  // namespace torchdojo
