// Shortest paths around spheres and cylinders, for one environment (geometry/wrapping.py has the rules). S: double, or a Tangent of it.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/tangent.hpp"

namespace torchdojo::wrapping {

constexpr double smallest = 1e-15;  // [m], [1] lengths and determinants below do not count
constexpr int iterations = 30;  // most iterations of Newton's method, which starts at z = start_z, on the convex side of the root
constexpr double start_z = 1 - 1e-7, converged = 1e-14, pi = 3.14159265358979323846;

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
struct Flat {
    S x, y;
};
template <class S>
S dot(const Flat<S> &a, const Flat<S> &b) {
    return a.x * b.x + a.y * b.y;
}
template <class S>
S turned(const Flat<S> &a, const Flat<S> &b) {
    return a.x * b.y - a.y * b.x;
}
template <class S>
Flat<double> values(const Flat<S> &a) {
    return {value(a.x), value(a.y)};
}
inline double length(const Flat<double> &a) { return std::sqrt(dot(a, a)); }
template <class S>
double length(const Vec3<S> &a) {
    const Vec3<double> v = torchdojo::values(a);
    return std::sqrt(torchdojo::dot(v, v));
}

// share: the fraction of the segment a b that is nearest to the origin, also outside of the segment. square: its squared length.
struct Nearest {
    double share, square;
    Flat<double> point;

    Nearest(const Flat<double> &a, const Flat<double> &b, bool within) {
        const Flat<double> way{b.x - a.x, b.y - a.y};
        square = dot(way, way);
        share = -dot(way, a) / std::max(square, smallest);
        const double s = within ? std::min(std::max(share, 0.0), 1.0) : share;
        point = {a.x + s * way.x, a.y + s * way.y};
    }
};

template <class S>
struct Path {
    bool wraps = false;
    Flat<S> first, second;
    S arc = S(0.0);
};

// Around a circle outside of it.
template <class S>
Path<S> around(const Flat<S> &a, const Flat<S> &b, double radius, const Flat<double> *side) {
    const Flat<double> p = values(a), q = values(b);
    const Nearest nearest(p, q, true);
    const bool blocked = dot(nearest.point, nearest.point) <= radius * radius;
    bool forced = false;
    if (side) {
        const Flat<double> away{-side->x, -side->y};
        const double sign = turned(p, q);
        forced = sign * turned(p, away) >= 0.0 && sign * turned(away, q) >= 0.0;
    }
    Path<S> path;
    path.wraps = dot(p, p) >= radius * radius && dot(q, q) >= radius * radius && nearest.square >= smallest && (blocked || forced);
    if (!path.wraps) return path;
    const S swept = turned(a, b), between = angle_of(absolute(swept), dot(a, b));
    S arc = forced ? S(2.0 * pi) - between : between;
    const double way = (value(swept) < 0.0) != forced ? -1.0 : 1.0;
    const auto touch = [&](const Flat<S> &point, double sign) {
        const S square = dot(point, point), over = square - S(radius * radius);
        const S root = value(over) > 0.0 ? sqrt(over) : S(0.0);  // a point on the circle itself is its own tangent point
        const S share = S(radius) / (S(radius * radius) + root * root);
        arc = arc - angle_of(root, S(radius));
        return Flat<S>{share * (radius * point.x - sign * (root * point.y)), share * (radius * point.y + sign * (root * point.x))};
    };
    path.first = touch(a, way);
    path.second = touch(b, -way);
    path.arc = radius * arc;
    return path;
}

// Touching a circle from inside.
template <class S>
Path<S> inside(const Flat<S> &a, const Flat<S> &b, double radius) {
    const Flat<double> p = values(a), q = values(b);
    const Nearest nearest(p, q, false);
    const bool cuts =
        nearest.square > smallest && nearest.share > 0.0 && nearest.share < 1.0 && dot(nearest.point, nearest.point) <= radius * radius;
    const bool opposite = dot(p, q) < (smallest - 1.0) * length(p) * length(q);
    Path<S> path;
    path.wraps = length(p) > radius && length(q) > radius && !cuts && !opposite;
    if (!path.wraps) return path;
    const S sizes[2] = {sqrt(dot(a, a)), sqrt(dot(b, b))}, ratios[2] = {S(radius) / sizes[0], S(radius) / sizes[1]};
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
        const S error = arc_sine(z * ratios[0]) + arc_sine(z * ratios[1]) - S(2.0 * std::asin(z)) + angle,
                root = S(z) - (1.0 / slope(z)) * error;
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
    path.first = path.second = {radius * direction.x, radius * direction.y};
    return path;
}

template <class S>
struct Wrapped {
    bool wraps = false;
    Vec3<S> first, second;  // points at which the path meets and leaves the surface
    S arc = S(0.0);
};

// The path between two points around a sphere, or a cylinder along the third axis of `frame` (surface to world).
template <class S>
Wrapped<S> wrap(const Vec3<S> &start, const Vec3<S> &end, const Vec3<S> &center, const Mat3<S> &frame, double radius, bool cylinder,
                const Vec3<S> *side) {
    Wrapped<S> result;
    const Vec3<S> p[2] = {transposed_times(frame, start - center), transposed_times(frame, end - center)};
    if (!(length(p[0]) > smallest && length(p[1]) > smallest && radius > smallest)) return result;
    Vec3<S> x{S(1.0), S(0.0), S(0.0)}, y{S(0.0), S(1.0), S(0.0)};
    if (!cylinder) {
        const auto unit = [](const Vec3<S> &v) {
            const S size = sqrt(torchdojo::dot(v, v));
            return Vec3<S>{v.x / size, v.y / size, v.z / size};
        };
        x = unit(p[0]);
        Vec3<S> normal = cross(x, p[1]);
        if (length(normal) <= smallest * std::max(length(p[1]), smallest)) {
            Vec3<S> across{S(0.0), S(0.0), S(0.0)};
            int least = 0;
            for (int i = 1; i < 3; ++i)
                if (std::fabs(value(x[i])) < std::fabs(value(x[least]))) least = i;
            across[least] = S(1.0);
            normal = cross(x, across);
        }
        y = unit(cross(normal, x));
    }
    const auto flat = [&](const Vec3<S> &v) { return Flat<S>{torchdojo::dot(v, x), torchdojo::dot(v, y)}; };
    const Flat<S> a = flat(p[0]), b = flat(p[1]);
    Path<S> path;
    if (side) {
        const Vec3<S> s = transposed_times(frame, *side - center);
        const Flat<double> beside = values(flat(s));
        path = length(s) < radius ? inside(a, b, radius) : around(a, b, radius, &beside);
    } else {
        path = around<S>(a, b, radius, nullptr);
    }
    if (!path.wraps) return result;
    Vec3<S> points[2] = {path.first.x * x + path.first.y * y, path.second.x * x + path.second.y * y};
    S arc = path.arc;
    if (cylinder) {
        // The string is a straight line on the surface rolled out, so its height grows with the length in the plane.
        const auto size = [](const S &u, const S &v) { return sqrt(u * u + v * v); };
        const S ways[2] = {size(p[0].x - points[0].x, p[0].y - points[0].y), size(p[1].x - points[1].x, p[1].y - points[1].y)};
        const S rise = (p[1].z - p[0].z) / (ways[0] + arc + ways[1]);
        points[0].z = p[0].z + rise * ways[0];
        points[1].z = p[0].z + rise * (ways[0] + arc);
        arc = arc * sqrt(S(1.0) + rise * rise);
    }
    result.wraps = true;
    result.arc = arc;
    result.first = center + frame * points[0];
    result.second = center + frame * points[1];
    return result;
}

}  // namespace torchdojo::wrapping
