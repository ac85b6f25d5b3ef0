// Convex polytopes with a radius, and the near terms of two of them (torchdojo/geometry/polytopes.py and near_terms.py, which say why).
// S: double, or double with derivatives.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dual.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo {

// A view of one polytope among the numbers of a mechanism (native/polytopes.py).
struct Polytope {
    static constexpr int edge_size = 13;  // ends, faces, inward directions in both, outward direction

    int vertices, faces, edges;
    double radius;
    const double *vertex, *face = nullptr, *edge = nullptr;
    double extent = 0;  // `bound`, kept

    double bound() const {
        double square = 0;
        for (int i = 0; i < vertices; ++i) square = std::fmax(square, dot(corner(i), corner(i)));
        return std::sqrt(square);
    }
    Vec3<double> corner(int i) const { return load3(vertex + 3 * i); }
    Vec3<double> normal(int f) const { return load3(face + 4 * f); }
    double offset(int f) const { return face[4 * f + 3]; }
    const double *edge_row(int e) const { return edge + edge_size * e; }
};

template <class S>
struct NearTerm {
    S gap, weight;
    Vec3<S> normal, point;
    double raw = 0;  // of crossings: the gap of the lines of both edges, before it is blended
};

TD_INLINE double value_of(double x) { return x; }
TD_INLINE double value_of(const Dual<double> &x) { return x.v; }
template <class S>
TD_INLINE Vec3<S> constant_of(const Vec3<double> &a) {
    return {S(a.x), S(a.y), S(a.z)};
}
TD_INLINE double root_of(double x) { return std::sqrt(x); }
TD_INLINE Dual<double> root_of(const Dual<double> &x) { return sqrt(x); }

// 1 below 0, 0 above 1, C² between.
template <class S>
S fade(const S &t) {
    if (value_of(t) <= 0) return S(1.0);
    if (value_of(t) >= 1) return S(0.0);
    return 1.0 - t * t * t * (t * (6.0 * t - 15.0) + 10.0);
}

// The feature of a polytope that is nearest to a point: a corner, with the direction of its edge or zero; a face; or neither (−1).
struct Feature {
    int corner = 0, face = -1;
    Vec3<double> direction{0, 0, 0};
};

inline Feature nearest_feature(const Polytope &core, const Vec3<double> &p) {
    Feature f;
    double least = std::numeric_limits<double>::infinity();
    for (int e = 0; e < core.edges; ++e) {
        const double *row = core.edge_row(e);
        const Vec3<double> start = core.corner(int(row[0])), along = core.corner(int(row[1])) - start, from = p - start;
        const double square = dot(along, along), t = std::fmin(std::fmax(dot(from, along) / square, 0.0), 1.0);
        const Vec3<double> apart = from - t * along;
        const double distance = dot(apart, apart);
        if (!(distance < least)) continue;
        least = distance;
        f.corner = int(t < 1 ? row[0] : row[1]);
        f.direction = t > 0 && t < 1 ? (1 / std::sqrt(square)) * along : Vec3<double>{0, 0, 0};
    }
    if (!core.faces) return f;
    int face = 0;
    double top = -std::numeric_limits<double>::infinity();
    for (int k = 0; k < core.faces; ++k) {
        const double height = dot(core.normal(k), p) - core.offset(k);
        if (height > top) top = height, face = k;
    }
    bool over = true;  // on the inner side of all edges of the face
    for (int e = 0; e < core.edges && top > 0 && over; ++e) {
        const double *row = core.edge_row(e);
        for (int k = 0; k < 2; ++k)
            if (int(row[2 + k]) == face && dot(p - core.corner(int(row[0])), load3(row + 4 + 3 * k)) < 0) over = false;
    }
    if (over) f.face = face;
    return f;
}

// Signed distance of a point from the core, and its gradient.
template <class S>
S point_distance(const Polytope &core, const Vec3<S> &p, Vec3<S> &normal) {
    const Feature f = nearest_feature(core, {value_of(p.x), value_of(p.y), value_of(p.z)});
    if (f.face >= 0) {
        normal = constant_of<S>(core.normal(f.face));
        return dot(normal, p) - core.offset(f.face);
    }
    const Vec3<S> offset = p - constant_of<S>(core.corner(f.corner)), direction = constant_of<S>(f.direction);
    const Vec3<S> across = offset - dot(offset, direction) * direction;
    const S square = dot(across, across);
    if (!(value_of(square) > 0)) {
        normal = constant_of<S>({0, 0, 0});
        return S(0.0);
    }
    const S length = root_of(square);
    normal = (S(1.0) / length) * across;
    return length;
}

enum TermKind { no_term = -1, corner_term = 0, other_corner_term = 1, crossing_term = 2 };

// Corner i of a against b: gap, normal from b to a, and point on a.
template <class S>
NearTerm<S> corner_gap(const Polytope &a, const Polytope &b, const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb, const Mat3<S> &Rb,
                       int i) {
    NearTerm<S> r;
    const Vec3<S> place = xa + Ra * constant_of<S>(a.corner(i));
    Vec3<S> local;
    r.gap = point_distance(b, transposed_times(Rb, place - xb), local) - (a.radius + b.radius);
    r.normal = Rb * local;
    r.point = place - S(a.radius) * r.normal;
    r.weight = S(1.0);
    return r;
}

template <class S>
NearTerm<S> crossing_gap(const Polytope &a, const Polytope &b, const Vec3<S> *x, const Mat3<S> *R, int i, int j) {
    namespace c = constant::near_terms;
    const double *ea = a.edge_row(i), *eb = b.edge_row(j);
    const Vec3<double> start_a = a.corner(int(ea[0])), start_b = b.corner(int(eb[0]));
    const Vec3<S> u = R[0] * constant_of<S>(a.corner(int(ea[1])) - start_a), v = R[1] * constant_of<S>(b.corner(int(eb[1])) - start_b);
    const Vec3<S> from_a = x[0] + R[0] * constant_of<S>(start_a), apart = from_a - x[1] - R[1] * constant_of<S>(start_b);
    const S uu = dot(u, u), vv = dot(v, v), uv = dot(u, v), ud = dot(u, apart), vd = dot(v, apart);
    const Vec3<S> across = cross(u, v);
    const S square = dot(across, across), sine2 = square / (uu * vv);
    NearTerm<S> r;
    if (!(value_of(sine2) > c::parallel_low * c::parallel_low)) {
        r.gap = S(2 * c::reach), r.weight = S(0.0), r.normal = constant_of<S>({0, 0, 1}), r.point = from_a;
        return r;
    }
    const Vec3<S> axis = (S(1.0) / root_of(square)) * across;
    const S s = (uv * vd - vv * ud) / square, t = (uu * vd - uv * ud) / square;
    const bool lone = !a.faces && !b.faces;
    const Vec3<S> outward = lone ? apart : R[1] * constant_of<S>(load3(eb + 10)) - R[0] * constant_of<S>(load3(ea + 10));
    r.normal = value_of(dot(axis, outward)) < 0 ? -axis : axis;
    const S gap = dot(r.normal, apart) - (a.radius + b.radius);
    const S length_a = S(1 / c::ends) * root_of(uu), length_b = S(1 / c::ends) * root_of(vv);
    S keep = fade(-(length_a * s)) * fade(length_a * (s - 1.0)) * fade(-(length_b * t)) * fade(length_b * (t - 1.0));
    const double low = c::parallel_low * c::parallel_low, high = c::parallel_high * c::parallel_high;
    keep = keep * fade(S(1 / (high - low)) * (high - sine2));
    const Vec3<S> in_a = transposed_times(R[0], r.normal), in_b = transposed_times(R[1], r.normal);
    for (int k = 0; k < 2; ++k) {
        const S leaves_a = -dot(constant_of<S>(load3(ea + 4 + 3 * k)), in_a), leaves_b = dot(constant_of<S>(load3(eb + 4 + 3 * k)), in_b);
        keep = keep * fade(S(1 / (c::cone_high - c::cone_low)) * (leaves_a - c::cone_low));
        keep = keep * fade(S(1 / (c::cone_high - c::cone_low)) * (leaves_b - c::cone_low));
    }
    r.raw = value_of(gap);
    r.gap = keep * gap + (1.0 - keep) * S(2 * c::reach);
    r.weight = keep;
    r.point = from_a + s * u - S(a.radius) * r.normal;
    return r;
}

// Whether the shapes have the features of a term. Numbers written in place are not checked before.
inline bool has_term(const Polytope &a, const Polytope &b, const int *term) {
    const auto within = [](int i, int count) { return i >= 0 && i < count; };
    if (term[0] == corner_term) return within(term[1], a.vertices);
    if (term[0] == other_corner_term) return within(term[1], b.vertices);
    return term[0] == crossing_term && within(term[1], a.edges) && within(term[2], b.edges);
}

// A term of two polytopes at poses x, R of a, then b. fading: whether its impulse fades with the gap.
template <class S>
NearTerm<S> near_term(const Polytope &a, const Polytope &b, const Vec3<S> *x, const Mat3<S> *R, const int *term, bool fading) {
    constexpr double reach = constant::near_terms::reach;
    NearTerm<S> r;
    if (!has_term(a, b, term)) {
        r.gap = S(2 * reach), r.weight = S(0.0), r.normal = constant_of<S>({0, 0, 1}), r.point = x[0];
    } else if (term[0] == corner_term) {
        r = corner_gap(a, b, x[0], R[0], x[1], R[1], term[1]);
    } else if (term[0] == other_corner_term) {
        r = corner_gap(b, a, x[1], R[1], x[0], R[0], term[1]);
        r.point = r.point - r.gap * r.normal;
        r.normal = -r.normal;
    } else {
        r = crossing_gap(a, b, x, R, term[1], term[2]);
    }
    if (fading) r.weight = r.weight * fade(S(2 / reach) * r.gap - 1.0);
    return r;
}

// The nearest terms of a pair with gaps below `reach`, up to `capacity` of them, the nearest first; (kind, feature, feature) of each.
// Returns how many there are.
inline int64_t near_terms(const Polytope &a, const Polytope &b, const Vec3<double> *x, const Mat3<double> *R, double reach,
                          int64_t capacity, double *terms, double *gaps) {
    const double radius = a.radius + b.radius;
    int64_t found = 0;
    auto add = [&](int kind, int i, int j) {
        const int term[3] = {kind, i, j};
        const NearTerm<double> at = near_term<double>(a, b, x, R, term, false);
        // Lines of edges that are past each other belong to no nearest points, unless the cores overlap a little.
        if (!(at.gap < reach) || (kind == crossing_term && (!(at.weight > 0) || at.raw < -constant::near_terms::past * radius))) return;
        int64_t place = std::min(found++, capacity);
        for (; place > 0 && gaps[place - 1] > at.gap; --place)
            if (place < capacity) gaps[place] = gaps[place - 1], std::copy_n(terms + 3 * (place - 1), 3, terms + 3 * place);
        if (place >= capacity) return;
        gaps[place] = at.gap;
        for (int k = 0; k < 3; ++k) terms[3 * place + k] = term[k];
    };
    const Vec3<double> apart = x[0] - x[1];
    const double bound = a.extent + b.extent + radius + reach;
    if (dot(apart, apart) > bound * bound) return 0;
    for (int i = 0; i < a.vertices; ++i) add(corner_term, i, 0);
    for (int i = 0; i < b.vertices && a.vertices + b.vertices > 2; ++i) add(other_corner_term, i, 0);
    for (int i = 0; i < a.edges; ++i) {
        const double *ea = a.edge_row(i);
        const Vec3<double> a0 = a.corner(int(ea[0])), a1 = a.corner(int(ea[1])), u = a1 - a0;
        const Vec3<double> middle = x[0] + R[0] * (0.5 * (a0 + a1));
        const double half = 0.5 * std::sqrt(dot(u, u)) + radius + reach;
        for (int j = 0; j < b.edges; ++j) {
            const double *eb = b.edge_row(j);
            const Vec3<double> b0 = b.corner(int(eb[0])), b1 = b.corner(int(eb[1])), v = b1 - b0;
            const Vec3<double> between = middle - x[1] - R[1] * (0.5 * (b0 + b1));
            const double most = half + 0.5 * std::sqrt(dot(v, v));
            if (dot(between, between) <= most * most) add(crossing_term, i, j);
        }
    }
    return found;
}

}  // namespace torchdojo
