// Shortest paths around spheres and cylinders, in all lanes at once (geometry/wrapping.py has the rules). T: a scalar. S: T, or a Tangent of it.
// Paths that touch a circle from inside need a root, and are taken lane by lane.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/tangent.hpp"

namespace torchdojo::wrapping {

constexpr double smallest = 1e-15;  // [m], [1] lengths and determinants below do not count
constexpr int iterations = 30;  // most iterations of Newton's method, which starts at z = start_z, on the convex side of the root
constexpr double start_z = 1 - 1e-7;
constexpr double converged = 1e-14;
constexpr double pi = 3.14159265358979323846;

template <class S>
struct Flat {
    S x, y;
};
template <class S>
TD_INLINE S dot(const Flat<S> &a, const Flat<S> &b) {
    return a.x * b.x + a.y * b.y;
}
template <class S>
TD_INLINE S turned(const Flat<S> &a, const Flat<S> &b) {
    return a.x * b.y - a.y * b.x;
}
template <class S>
TD_INLINE auto values(const Flat<S> &a) -> Flat<decltype(value(a.x))> {
    return {value(a.x), value(a.y)};
}

// -- one lane, touching a circle from inside; S: double, or a Tangent of it ----------------------------------------------------------

inline double absolute(double a) { return std::fabs(a); }
inline double angle_of(double y, double x) { return std::atan2(y, x); }
inline double arc_sine(double a) { return std::asin(a); }
inline void turn_of(double a, double &c, double &s) {
    c = std::cos(a);
    s = std::sin(a);
}
template <class R>
Tangent<double, R> absolute(const Tangent<double, R> &a) {
    return a.v < 0.0 ? -a : a;
}
template <class R>
Tangent<double, R> angle_of(const Tangent<double, R> &y, const Tangent<double, R> &x) {
    const double inverse = 1.0 / (x.v * x.v + y.v * y.v);
    return {std::atan2(y.v, x.v), inverse * (x.v * y.d - y.v * x.d)};
}
template <class R>
Tangent<double, R> arc_sine(const Tangent<double, R> &a) {
    return {std::asin(a.v), (1.0 / std::sqrt(1.0 - a.v * a.v)) * a.d};
}
template <class R>
void turn_of(const Tangent<double, R> &a, Tangent<double, R> &c, Tangent<double, R> &s) {
    const double cosine = std::cos(a.v), sine = std::sin(a.v);
    c = {cosine, -sine * a.d};
    s = {sine, cosine * a.d};
}

template <class S>
struct Touch {
    bool touches = false;
    Flat<S> point;
};

inline double length(const Flat<double> &a) { return std::sqrt(dot(a, a)); }

template <class S>
Touch<S> inside(const Flat<S> &a, const Flat<S> &b, double radius) {
    const Flat<double> p = values(a), q = values(b);
    const Flat<double> way{q.x - p.x, q.y - p.y};
    const double square = dot(way, way), share = -dot(way, p) / std::max(square, smallest);
    const Flat<double> nearest{p.x + share * way.x, p.y + share * way.y};
    const bool cuts = square > smallest && share > 0.0 && share < 1.0 && dot(nearest, nearest) <= radius * radius;
    const bool opposite = dot(p, q) < (smallest - 1.0) * length(p) * length(q);
    Touch<S> path;
    path.touches = length(p) > radius && length(q) > radius && !cuts && !opposite;
    if (!path.touches) return path;
    const S sizes[2] = {sqrt(dot(a, a)), sqrt(dot(b, b))};
    const S ratios[2] = {S(radius) / sizes[0], S(radius) / sizes[1]};
    const S swept = turned(a, b), angle = angle_of(absolute(swept), dot(a, b));
    const double k[2] = {value(ratios[0]), value(ratios[1])}, angle_value = value(angle);
    const auto equation = [&](double z) { return std::asin(k[0] * z) + std::asin(k[1] * z) - 2.0 * std::asin(z) + angle_value; };
    const auto slope = [&](double z) {
        return k[0] / std::sqrt(1.0 - k[0] * k[0] * z * z) + k[1] / std::sqrt(1.0 - k[1] * k[1] * z * z) - 2.0 / std::sqrt(1.0 - z * z);
    };
    double z = start_z;
    Flat<S> direction;
    if (equation(z) <= 0.0 && angle_value > smallest) {
        for (int i = 0; i < iterations; ++i) {
            const double error = equation(z);
            if (!(std::fabs(error) > converged)) break;
            z = std::min(std::max(z - error / slope(z), 0.0), start_z);
        }
        // One more step with derivatives: the implicit function theorem.
        const S error = arc_sine(z * ratios[0]) + arc_sine(z * ratios[1]) - S(2.0 * std::asin(z)) + angle;
        const S root = S(z) - (1.0 / slope(z)) * error;
        const bool swap = value(swept) > 0.0;
        const Flat<S> base = swap ? a : b;
        const S lead = arc_sine(root) - arc_sine((swap ? ratios[0] : ratios[1]) * root), size = swap ? sizes[0] : sizes[1];
        S c, s;
        turn_of(lead, c, s);
        const S x = base.x / size, y = base.y / size;
        direction = {c * x - s * y, s * x + c * y};
    } else {  // without a root, the string touches half way between the directions of both points
        const Flat<S> half{a.x + b.x, a.y + b.y};
        const S size = sqrt(dot(half, half));
        direction = value(size) > smallest ? Flat<S>{half.x / size, half.y / size} : half;
    }
    path.point = {radius * direction.x, radius * direction.y};
    return path;
}

// -- all lanes ------------------------------------------------------------------------------------------------------------------------

template <class T>
double lane_of(const T &x, int lane) {
    return get(x, lane);
}
// Where the value is shared by the lanes of the derivative, there is one path.
template <class T, class R>
auto lane_of(const Tangent<T, R> &x, int lane) {
    if constexpr (lanes<T> == lanes<R>) return Tangent<double, double>(get(x.v, lane), get(x.d, lane));
    else return x;
}
template <class T>
void set_lane(T &to, int lane, double x) {
    set(to, lane, x);
}
template <class T, class R, class L>
void set_lane(Tangent<T, R> &to, int lane, const L &x) {
    if constexpr (lanes<T> == lanes<R>) {
        set(to.v, lane, x.v);
        set(to.d, lane, x.d);
    } else {
        to = x;
    }
}

// A path in the plane: points of contact, the arc, and the lengths of the straight ways to its ends, in lanes that wrap.
template <class S, class T>
struct Path {
    Mask<T> wraps;
    Flat<S> first, second;
    S arc, ways[2];
};

// The angle from 0 to 2π of a path around a circle: the angle between the ends, or, where it is `forced`, the one on the other side, less those
// of both tangents. ways: lengths of the tangents. All three are turns of one complex number.
template <class T>
TD_INLINE T wound_angle(const T &cosine, const T &sine, const Mask<T> &forced, const T &radius, const T *ways) {
    T c = cosine, s = select(forced, -sine, sine);
    for (int i = 0; i < 2; ++i) {
        const T c_before = c;
        c = c_before * radius + s * ways[i];
        s = s * radius - c_before * ways[i];
    }
    const T acute = first_quadrant_angle(abs(s), abs(c)), half = select(c < T{}, pi - acute, acute);
    // Rounding may turn an arc of no length a little below zero, and an arc of π a little beyond it.
    const Mask<T> beyond = select_mask(forced, s < T{}, select_mask(c < T{}, s < T{}, Mask<T>{}));
    return select(s < T{}, -half, half) + select(beyond, broadcast<T>(2.0 * pi), T{});
}

// Around a circle outside of it. side: null, or where the path has to pass.
template <class S, class T>
TD_INLINE Path<S, T> around(const Flat<S> &a, const Flat<S> &b, const T &radius, const Flat<T> *side) {
    const T none{}, one = broadcast<T>(1.0), square = radius * radius, least = broadcast<T>(smallest);
    const Flat<T> p = values(a), q = values(b), way{q.x - p.x, q.y - p.y};
    const T length = dot(way, way), share = min(max(-dot(way, p) * inverse_of(max(length, least)), none), one);
    const Flat<T> nearest{p.x + share * way.x, p.y + share * way.y};
    const T sign = turned(p, q);
    Mask<T> forced{};
    if (side) {
        const Flat<T> away{-side->x, -side->y};
        forced = select_mask(sign * turned(p, away) >= none, sign * turned(away, q) >= none, Mask<T>{});
    }
    const Mask<T> outside = select_mask(dot(p, p) >= square, dot(q, q) >= square, Mask<T>{});
    Path<S, T> path{};
    path.wraps = select_mask(dot(nearest, nearest) <= square, outside, select_mask(forced, outside, Mask<T>{}));
    path.wraps = select_mask(length >= least, path.wraps, Mask<T>{});
    if (!any(path.wraps)) return path;
    const T turning = select(sign < none, -one, one), along = select(forced, -turning, turning);
    T shares[2];
    const auto touch = [&](int end, const Flat<S> &point, const T &direction) {
        const S over = dot(point, point) - square;
        const Mask<T> apart = value(over) > none;  // a point on the circle itself is its own tangent point
        const S root_ = select(apart, root(select(apart, over, S(one))), S(none));
        const S part = radius * inverse_of(root_ * root_ + square), across = direction * (part * root_);
        path.ways[end] = root_;
        shares[end] = value(part);
        const S out = radius * part;
        return Flat<S>{out * point.x - across * point.y, out * point.y + across * point.x};
    };
    path.first = touch(0, a, along);
    path.second = touch(1, b, -along);
    const T lengths[2] = {value(path.ways[0]), value(path.ways[1])};
    const T cosine = dot(p, q), angle = wound_angle(cosine, abs(sign), forced, radius, lengths);
    if constexpr (std::is_same_v<S, T>) {
        path.arc = radius * angle;
    } else {
        const S swept = turned(a, b), flat = dot(a, b);
        const T scale = along * inverse_of(sign * sign + cosine * cosine);
        const auto between = scale * (cosine * swept.d - sign * flat.d);
        path.arc = {radius * angle, radius * (between - shares[0] * path.ways[0].d - shares[1] * path.ways[1].d)};
    }
    return path;
}

// The same with a side inside of the circle, in the lanes `within`.
template <class S, class T>
__attribute__((noinline)) void touch_inside(const Flat<S> &a, const Flat<S> &b, const T &radius, const Mask<T> &within, Path<S, T> &path) {
    for (int lane = 0; lane < lanes<T>; ++lane) {
        if (!get_mask(within, lane)) continue;
        using L = decltype(lane_of(S(), 0));
        const Flat<L> start{lane_of(a.x, lane), lane_of(a.y, lane)}, end{lane_of(b.x, lane), lane_of(b.y, lane)};
        const Touch<L> touch = inside<L>(start, end, get(radius, lane));
        set_mask(path.wraps, lane, touch.touches);
        if (!touch.touches) continue;
        for (Flat<S> *point : {&path.first, &path.second}) {
            set_lane(point->x, lane, touch.point.x);
            set_lane(point->y, lane, touch.point.y);
        }
        const auto distance = [&](const Flat<L> &end) {
            const Flat<L> way{end.x - touch.point.x, end.y - touch.point.y};
            return L(sqrt(dot(way, way)));
        };
        set_lane(path.arc, lane, L(0.0));
        set_lane(path.ways[0], lane, distance(start));
        set_lane(path.ways[1], lane, distance(end));
    }
}

// Orthonormal axes of the plane of two vectors, the first one along a. Any plane through a where both are parallel.
template <class T, class S>
TD_INLINE void plane_of(const Vec3<S> &a, const Vec3<S> &b, Vec3<S> &x, Vec3<S> &y) {
    const auto unit = [](const Vec3<S> &v) { return inverse_of(root(torchdojo::dot(v, v))) * v; };
    x = unit(a);
    Vec3<S> normal = cross(x, b);
    const Vec3<T> n = torchdojo::values(normal), other = torchdojo::values(b);
    const T least = broadcast<T>(smallest * smallest);
    const Mask<T> parallel = torchdojo::dot(n, n) <= smallest * smallest * max(torchdojo::dot(other, other), least);
    if (any(parallel)) {
        const T one = broadcast<T>(1.0), sizes[3] = {abs(value(x.x)), abs(value(x.y)), abs(value(x.z))};
        const Mask<T> first = select_mask(sizes[0] <= sizes[1], sizes[0] <= sizes[2], Mask<T>{});
        const T along_x = select(first, one, T{}), along_y = select(first, T{}, select(sizes[1] <= sizes[2], one, T{}));
        const Vec3<S> spare = cross(x, Vec3<S>{S(along_x), S(along_y), S(one - along_x - along_y)});
        for (int i = 0; i < 3; ++i) normal[i] = select(parallel, spare[i], normal[i]);
    }
    y = unit(cross(normal, x));
}

// A path in the frame of the surface: points at which it meets and leaves the surface, and the length on it, in lanes that wrap.
template <class S, class T>
struct Wrapped {
    Mask<T> wraps;
    Vec3<S> first, second;
    S arc;
};

// The path between two points around a sphere, or a cylinder along the third axis, at the origin. side: null, or the side site.
template <class S, class T>
TD_INLINE Wrapped<S, T> wrap(const Vec3<S> &start, const Vec3<S> &end, const T &radius, bool cylinder, const Vec3<T> *side) {
    const S none = S(T{}), one = S(broadcast<T>(1.0));
    Vec3<S> x{one, none, none}, y{none, one, none};
    Flat<S> a{start.x, start.y}, b{end.x, end.y};
    Flat<T> beside;
    if (side) beside = {side->x, side->y};
    if (!cylinder) {
        plane_of<T>(start, end, x, y);
        a = {torchdojo::dot(start, x), none};
        b = {torchdojo::dot(end, x), torchdojo::dot(end, y)};
        if (side) beside = {torchdojo::dot(*side, torchdojo::values(x)), torchdojo::dot(*side, torchdojo::values(y))};
    }
    Path<S, T> path = around<S, T>(a, b, radius, side ? &beside : nullptr);
    if (side) {
        const Mask<T> within = torchdojo::dot(*side, *side) < radius * radius;
        if (any(within)) touch_inside(a, b, radius, within, path);
    }
    const Vec3<T> p = torchdojo::values(start), q = torchdojo::values(end);
    const T least = min(min(torchdojo::dot(p, p), torchdojo::dot(q, q)), radius * radius);
    Wrapped<S, T> result;
    result.wraps = select_mask(least > broadcast<T>(smallest * smallest), path.wraps, Mask<T>{});
    if (!any(result.wraps)) return result;
    result.arc = path.arc;
    if (cylinder) {
        // The string is a straight line on the surface rolled out, so its height grows with the length in the plane.
        const S rise = (end.z - start.z) * inverse_of(path.ways[0] + path.arc + path.ways[1]);
        result.first = {path.first.x, path.first.y, start.z + rise * path.ways[0]};
        result.second = {path.second.x, path.second.y, start.z + rise * (path.ways[0] + path.arc)};
        result.arc = path.arc * root(one + rise * rise);
    } else {
        result.first = path.first.x * x + path.first.y * y;
        result.second = path.second.x * x + path.second.y * y;
    }
    return result;
}

}  // namespace torchdojo::wrapping
