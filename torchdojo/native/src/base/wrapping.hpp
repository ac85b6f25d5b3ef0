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
//
// A path around a circle of radius r leaves a straight way at the point r n with the direction u. The way from p to the circle has the length
// ρ, with p = r n − ρ u, and the way from the circle to q has q = r n + ρ u. As n·p = r and n·q = r stay,
//
//     u' = −n (n·p')/ρ,    u' = n (n·q')/ρ,
//
// and the length of the whole path changes by u_q·q' − u_p·p'.

// Derivatives of S.
template <class T>
TD_INLINE T slope_of(const T &) {
    return T{};
}
template <class T, class R>
TD_INLINE R slope_of(const Tangent<T, R> &x) {
    return x.d;
}
template <class S>
TD_INLINE auto slopes(const Vec3<S> &a) -> Vec3<decltype(slope_of(a.x))> {
    return {slope_of(a.x), slope_of(a.y), slope_of(a.z)};
}
// S of a value and a derivative.
template <class S, class T, class R>
TD_INLINE S with_slope(const T &value, const R &slope) {
    if constexpr (std::is_same_v<S, T>) return value;
    else return S(value, slope);
}
template <class S, class T, class R>
TD_INLINE Flat<S> with_slopes(const Flat<T> &values, const Flat<R> &slopes) {
    return {with_slope<S>(values.x, slopes.x), with_slope<S>(values.y, slopes.y)};
}
template <class A, class B>
TD_INLINE Product<A, B> along_flat(const Flat<A> &a, const Flat<B> &b) {
    return a.x * b.x + a.y * b.y;
}

// A path in the plane, in lanes that wrap. Of both ends: normals where it touches the circle, directions of the straight ways, and their lengths.
template <class T>
struct Path {
    Mask<T> wraps;
    Flat<T> normals[2], directions[2];
    T ways[2], arc;
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

// Around a circle outside of it, from p to q. side: null, or where the path has to pass.
template <class T>
TD_INLINE Path<T> around(const Flat<T> &p, const Flat<T> &q, const T &radius, const Flat<T> *side) {
    const T none{}, one = broadcast<T>(1.0), square = radius * radius;
    const Flat<T> way{q.x - p.x, q.y - p.y};
    const T length = dot(way, way), along = -dot(way, p), swept = turned(p, q);
    const T squares[2] = {dot(p, p), dot(q, q)};
    // The segment meets the circle between its ends, or at one of them.
    const Mask<T> beside = select_mask(along > none, along < length, Mask<T>{});
    const Mask<T> blocked = select_mask(beside, swept * swept <= square * length, select(along > none, squares[1], squares[0]) <= square);
    Mask<T> forced{};
    if (side) {
        const Flat<T> away{-side->x, -side->y};
        forced = select_mask(swept * turned(p, away) >= none, swept * turned(away, q) >= none, Mask<T>{});
    }
    const Mask<T> outside = select_mask(min(squares[0], squares[1]) >= square, length >= broadcast<T>(smallest), Mask<T>{});
    Path<T> path{};
    path.wraps = select_mask(blocked, outside, select_mask(forced, outside, Mask<T>{}));
    if (!any(path.wraps)) return path;
    const T shorter = select(swept < none, -one, one), turning = select(forced, -shorter, shorter);
    const auto touch = [&](int end, const Flat<T> &point, const T &direction) {
        const T over = squares[end] - square;
        const Mask<T> apart = over > none;  // a point on the circle itself is its own tangent point
        const T way = select(apart, root(select(apart, over, one)), none), inverse = inverse_of(square + way * way);
        const T out = radius * inverse, across = direction * way * inverse, sign = select(apart, turning, none);
        const Flat<T> normal{out * point.x - across * point.y, out * point.y + across * point.x};
        path.ways[end] = way;
        path.normals[end] = normal;
        path.directions[end] = {-(sign * normal.y), sign * normal.x};
    };
    touch(0, p, turning);
    touch(1, q, -turning);
    path.arc = radius * wound_angle(dot(p, q), abs(swept), forced, radius, path.ways);
    return path;
}

// Paths that touch the circle from inside, in the lanes `within`. moved: how the point of contact moves there.
template <class S, class T, class R>
__attribute__((noinline)) void touch_inside(const Flat<S> &a, const Flat<S> &b, const T &radius, const Mask<T> &within, Path<T> &path,
                                            Flat<R> &moved) {
    const auto lane_of = [](const S &x, int lane) {
        if constexpr (std::is_same_v<S, T>) return get(x, lane);
        else if constexpr (lanes<T> == lanes<R>) return Tangent<double, double>(get(x.v, lane), get(x.d, lane));
        else return x;  // one value, whose derivatives are in lanes
    };
    for (int lane = 0; lane < lanes<T>; ++lane) {
        if (!get_mask(within, lane)) continue;
        using L = decltype(lane_of(S(), 0));
        const Flat<L> ends[2] = {{lane_of(a.x, lane), lane_of(a.y, lane)}, {lane_of(b.x, lane), lane_of(b.y, lane)}};
        const Touch<L> touch = inside<L>(ends[0], ends[1], get(radius, lane));
        set_mask(path.wraps, lane, touch.touches);
        if (!touch.touches) continue;
        const Flat<double> point = values(touch.point);
        for (int i = 0; i < 2; ++i) {
            const Flat<double> end = values(ends[i]), way{point.x - end.x, point.y - end.y};
            const double size = length(way), scale = size > smallest ? (i ? -1.0 : 1.0) / size : 0.0;
            set(path.ways[i], lane, size);
            set(path.directions[i].x, lane, scale * way.x);
            set(path.directions[i].y, lane, scale * way.y);
            set(path.normals[i].x, lane, point.x / get(radius, lane));
            set(path.normals[i].y, lane, point.y / get(radius, lane));
        }
        set(path.arc, lane, 0.0);
        if constexpr (!std::is_same_v<S, T>) {
            if constexpr (lanes<T> == lanes<R>) {
                set(moved.x, lane, touch.point.x.d);
                set(moved.y, lane, touch.point.y.d);
            } else {
                moved = {touch.point.x.d, touch.point.y.d};
            }
        }
    }
}

// Orthonormal axes x, y of the plane of two vectors, x along a, with inverse_size = 1/|a|. Any plane through a where both are parallel.
template <class T>
TD_INLINE void plane_of(const Vec3<T> &a, const Vec3<T> &b, Vec3<T> &x, Vec3<T> &y, T &inverse_size) {
    inverse_size = inverse_of(root(torchdojo::dot(a, a)));
    x = inverse_size * a;
    Vec3<T> normal = cross(x, b);
    const T least = broadcast<T>(smallest * smallest);
    const Mask<T> parallel = torchdojo::dot(normal, normal) <= least * max(torchdojo::dot(b, b), least);
    if (any(parallel)) {
        const T one = broadcast<T>(1.0), sizes[3] = {abs(x.x), abs(x.y), abs(x.z)};
        const Mask<T> first = select_mask(sizes[0] <= sizes[1], sizes[0] <= sizes[2], Mask<T>{});
        const T along_x = select(first, one, T{}), along_y = select(first, T{}, select(sizes[1] <= sizes[2], one, T{}));
        const Vec3<T> spare = cross(x, Vec3<T>{along_x, along_y, one - along_x - along_y});
        for (int i = 0; i < 3; ++i) normal[i] = select(parallel, spare[i], normal[i]);
    }
    y = cross(normal, x);
    y = inverse_of(root(torchdojo::dot(y, y))) * y;
}

// A path whose ends move.
template <class S>
struct MovingPath {
    Flat<S> normals[2], directions[2];
    S ways[2], arc;
};

// ends: in the plane, and how they move. touch: how the point of contact moves in the lanes `within`, which touch the circle from inside.
template <class S, class T, class R>
TD_INLINE MovingPath<S> moving(const Path<T> &path, const T &radius, const Flat<T> *ends, const Flat<R> *moved, const Mask<T> &within,
                               const Flat<R> &touch) {
    MovingPath<S> to;
    if constexpr (std::is_same_v<S, T>) {
        for (int i = 0; i < 2; ++i) {
            to.normals[i] = path.normals[i];
            to.directions[i] = path.directions[i];
            to.ways[i] = path.ways[i];
        }
        to.arc = path.arc;
    } else {
        R bent{};
        for (int i = 0; i < 2; ++i) {
            const Flat<T> &n = path.normals[i], &u = path.directions[i];
            const T sign = broadcast<T>(i ? 1.0 : -1.0), least = broadcast<T>(smallest);
            const T inverse = select(path.ways[i] > least, inverse_of(max(path.ways[i], least)), T{});
            const R turn = (sign * inverse) * along_flat(n, moved[i]), stretched = inverse * along_flat(ends[i], moved[i]);
            to.normals[i] = {S(n.x, -(turn * u.x)), S(n.y, -(turn * u.y))};
            to.directions[i] = {S(u.x, turn * n.x), S(u.y, turn * n.y)};
            to.ways[i] = S(path.ways[i], stretched);
            bent = bent + sign * along_flat(u, moved[i]) - stretched;
        }
        to.arc = S(path.arc, bent);
        if (!any(within)) return to;
        for (int i = 0; i < 2; ++i) {
            const Flat<T> &n = path.normals[i], &u = path.directions[i];
            const T sign = broadcast<T>(i ? 1.0 : -1.0), least = broadcast<T>(smallest), per_radius = inverse_of(radius);
            const T inverse = select(path.ways[i] > least, inverse_of(max(path.ways[i], least)), T{});
            const Flat<R> way{sign * (moved[i].x - touch.x), sign * (moved[i].y - touch.y)};
            const R stretched = along_flat(u, way);
            const auto choose = [&](S &to, const S &inner) { to = select(within, inner, to); };
            choose(to.normals[i].x, S(n.x, per_radius * touch.x));
            choose(to.normals[i].y, S(n.y, per_radius * touch.y));
            choose(to.directions[i].x, S(u.x, inverse * (way.x - stretched * u.x)));
            choose(to.directions[i].y, S(u.y, inverse * (way.y - stretched * u.y)));
            choose(to.ways[i], S(path.ways[i], stretched));
        }
        to.arc = select(within, S(path.arc), to.arc);
    }
    return to;
}

// A path in axes of the surface: its length, the directions of the straight ways at its start and its end, and the derivative of the length by
// the radius, times the radius. In lanes that wrap.
template <class S, class T>
struct Wrapped {
    Mask<T> wraps;
    Vec3<S> along, away;
    S length, by_radius;
};

// The path between two points around a sphere, or a cylinder along the third axis, at the origin. side: null, or the side site.
template <class S, class T>
TD_INLINE Wrapped<S, T> wrap(const Vec3<S> &start, const Vec3<S> &end, const T &radius, bool cylinder, const Vec3<T> *side) {
    const T none{}, one = broadcast<T>(1.0);
    const Vec3<T> p = values(start), q = values(end);
    const auto moved_start = slopes(start), moved_end = slopes(end);
    using R = std::decay_t<decltype(moved_start.x)>;
    Vec3<T> x{one, none, none}, y{none, one, none};
    T inverse_size{};
    if (!cylinder) plane_of(p, q, x, y, inverse_size);
    const auto flat = [&](const auto &v) {
        using V = std::decay_t<decltype(v.x)>;
        return cylinder ? Flat<V>{v.x, v.y} : Flat<V>{torchdojo::dot(x, v), torchdojo::dot(y, v)};
    };
    const Flat<T> ends[2] = {flat(p), flat(q)};
    const Flat<R> moved[2] = {flat(moved_start), flat(moved_end)};
    Flat<T> beside;
    if (side) beside = flat(*side);
    Path<T> path = around<T>(ends[0], ends[1], radius, side ? &beside : nullptr);
    Mask<T> within{};
    Flat<R> touch{};
    if (side) {
        within = torchdojo::dot(*side, *side) < radius * radius;
        if (any(within)) touch_inside<S>(with_slopes<S>(ends[0], moved[0]), with_slopes<S>(ends[1], moved[1]), radius, within, path, touch);
    }
    Wrapped<S, T> result;
    const T least = min(min(torchdojo::dot(p, p), torchdojo::dot(q, q)), radius * radius);
    result.wraps = select_mask(least > broadcast<T>(smallest * smallest), path.wraps, Mask<T>{});
    if (!any(result.wraps)) return result;
    const MovingPath<S> own = moving<S>(path, radius, ends, moved, within, touch);
    const Flat<S> *u = own.directions;
    result.length = own.ways[0] + own.arc + own.ways[1];
    result.by_radius = radius * (dot(own.normals[0], u[0]) - dot(own.normals[1], u[1])) + own.arc;
    if (cylinder) {
        // The string is a straight line on the surface rolled out, so its height grows with the length in the plane.
        const S rise = (end.z - start.z) * inverse_of(result.length), stretch = root(rise * rise + one), cosine = inverse_of(stretch);
        result.along = {cosine * u[0].x, cosine * u[0].y, cosine * rise};
        result.away = {cosine * u[1].x, cosine * u[1].y, cosine * rise};
        result.length = stretch * result.length;
        result.by_radius = cosine * result.by_radius;
        return result;
    }
    Vec3<S> *const directions[2] = {&result.along, &result.away};
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 3; ++k) (*directions[i])[k] = u[i].x * x[k] + u[i].y * y[k];
    if constexpr (!std::is_same_v<S, T>) {
        // The normal m of the plane stays across p and q: m'·p = −m·p'.
        const Vec3<T> m = cross(x, y);
        const T &b = ends[1].y, floor = broadcast<T>(smallest);
        const T inverse = select(b > floor, inverse_of(max(b, floor)), none);
        const R turn_x = -(inverse_size * torchdojo::dot(m, moved_start));
        const R turn_y = -(inverse * (torchdojo::dot(m, moved_end) + ends[1].x * turn_x));
        for (int i = 0; i < 2; ++i) {
            const R out = path.directions[i].x * turn_x + path.directions[i].y * turn_y;
            for (int k = 0; k < 3; ++k) (*directions[i])[k].d = (*directions[i])[k].d - out * m[k];
        }
    }
    return result;
}

}  // namespace torchdojo::wrapping
