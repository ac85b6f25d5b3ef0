// Convex polytopes with a radius, and the near terms of two of them (torchdojo/geometry/polytopes.py and near_terms.py, which say why).
// S: double, or double with derivatives. `near_search.hpp` finds the terms of a pair.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/dual.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo {

// Lists of numbers, one list behind the other.
struct Lists {
    std::vector<int32_t> first{0}, member;

    struct Range {
        const int32_t *from, *to;
        const int32_t *begin() const { return from; }
        const int32_t *end() const { return to; }
    };
    Range operator[](int i) const { return {member.data() + first[i], member.data() + first[i + 1]}; }
};

// A view of one polytope among the numbers of a mechanism (native/polytopes.py), with what `prepare` derives from them.
struct Polytope {
    static constexpr int edge_size = 13;  // ends, faces, inward directions in both, outward direction
    // Planes of merged faces are tilted by up to 4.5e-5 (SAME_PLANE of polytopes.py), so heights above them are off by this share of the
    // size at most.
    static constexpr double tilt = 1e-4;

    int vertices, faces, edges;
    double radius;
    const double *vertex, *face = nullptr, *edge = nullptr;
    double extent = 0, size = 0;  // radii of balls about the origin and about `center` that hold the core
    Vec3<double> center{0, 0, 0};
    std::vector<Pack> corners, planes;  // x, y, z of as many corners as there are lanes, then of the next; normals and offsets of faces
    std::vector<double> length;  // of edges
    Lists edges_of_face, edges_of_corner;  // of a face: twice the edge, plus which side of it the face is

    void prepare() {
        for (int i = 0; i < vertices; ++i) center = center + (1.0 / vertices) * corner(i);
        for (int i = 0; i < vertices; ++i) {
            extent = std::fmax(extent, std::sqrt(dot(corner(i), corner(i))));
            size = std::fmax(size, std::sqrt(dot(corner(i) - center, corner(i) - center)));
        }
        corners = side_by_side(vertex, vertices, 3), planes = side_by_side(face, faces, 4);
        std::vector<std::vector<int32_t>> of_face(faces), of_corner(vertices);
        for (int e = 0; e < edges; ++e) {
            const double *row = edge_row(e);
            const Vec3<double> along = corner(int(row[1])) - corner(int(row[0]));
            length.push_back(std::sqrt(dot(along, along)));
            for (int k = 0; k < 2; ++k) {
                of_corner[int(row[k])].push_back(e);
                if (row[2 + k] >= 0) of_face[int(row[2 + k])].push_back(2 * e + k);
            }
        }
        edges_of_face = joined(of_face), edges_of_corner = joined(of_corner);
    }
    Vec3<double> corner(int i) const { return load3(vertex + 3 * i); }
    Vec3<double> normal(int f) const { return load3(face + 4 * f); }
    double offset(int f) const { return face[4 * f + 3]; }
    const double *edge_row(int e) const { return edge + edge_size * e; }

private:
    // Rows of numbers as packs, the last row once more in the lanes that are left.
    static std::vector<Pack> side_by_side(const double *rows, int count, int width) {
        std::vector<Pack> packs(size_t((count + pack_lanes - 1) / pack_lanes * width));
        for (int i = 0; i < int(packs.size()) / width * pack_lanes; ++i)
            for (int k = 0; k < width; ++k) packs[i / pack_lanes * width + k][i % pack_lanes] = rows[width * std::min(i, count - 1) + k];
        return packs;
    }
    static Lists joined(const std::vector<std::vector<int32_t>> &lists) {
        Lists all;
        for (const std::vector<int32_t> &list : lists) {
            all.member.insert(all.member.end(), list.begin(), list.end());
            all.first.push_back(int32_t(all.member.size()));
        }
        return all;
    }
};

// The largest of some numbers, and which it is: the first of several.
struct Peak {
    double height = -std::numeric_limits<double>::infinity();
    int index = 0;
};

// height(block, lane 0 …): numbers of one block of packs after the other.
template <class F>
TD_INLINE Peak highest(int blocks, F &&height) {
    Pack top = broadcast<Pack>(-std::numeric_limits<double>::infinity());
    PackMask block = {};
    for (int i = 0; i < blocks; ++i) {
        const Pack own = height(i);
        const PackMask above = own > top;
        top = above ? own : top, block = above ? PackMask{} + int64_t(i) : block;
    }
    Peak peak;
    for (int k = 0; k < pack_lanes; ++k) {
        const int index = int(block[k]) * pack_lanes + k;
        if (top[k] > peak.height || (top[k] == peak.height && index < peak.index)) peak.height = top[k], peak.index = index;
    }
    return peak;
}
TD_INLINE Pack plane_height(const Polytope &core, int block, const Vec3<double> &p) {
    const Pack *plane = &core.planes[4 * block];
    return plane[0] * p.x + plane[1] * p.y + plane[2] * p.z - plane[3];
}

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

// An edge is nearest where a face on one of its sides is seen from the point, or the core has no faces.
inline Feature nearest_feature(const Polytope &core, const Vec3<double> &p) {
    Feature f;
    double least = std::numeric_limits<double>::infinity();
    int nearest = core.edges;
    const auto look_at = [&](int e) {
        const double *row = core.edge_row(e);
        const Vec3<double> start = core.corner(int(row[0])), along = core.corner(int(row[1])) - start, from = p - start;
        const double place = dot(from, along) / dot(along, along), t = place < 0 ? 0.0 : place > 1 ? 1.0 : place;
        const Vec3<double> apart = from - t * along;
        const double distance = dot(apart, apart);
        if (!(distance < least || (distance == least && e < nearest))) return;
        least = distance, nearest = e;
        f.corner = int(t < 1 ? row[0] : row[1]);
        f.direction = t > 0 && t < 1 ? (1 / core.length[e]) * along : Vec3<double>{0, 0, 0};
    };
    if (!core.faces) {
        for (int e = 0; e < core.edges; ++e) look_at(e);
        return f;
    }
    const int blocks = int(core.planes.size()) / 4;
    const Peak top = highest(blocks, [&](int i) { return plane_height(core, i, p); });
    bool over = true;  // on the inner side of all edges of the face
    if (top.height > 0)
        for (const int32_t side : core.edges_of_face[top.index]) {
            const double *row = core.edge_row(side / 2);
            if (dot(p - core.corner(int(row[0])), load3(row + 4 + 3 * (side % 2))) < 0) {
                over = false;
                break;
            }
        }
    if (over) {
        f.face = top.index;
        return f;
    }
    const double seen = -Polytope::tilt * core.size;
    for (int i = 0; i < blocks; ++i) {
        const PackMask above = plane_height(core, i, p) > seen;
        if (!any(above)) continue;
        for (int k = 0; k < pack_lanes && i * pack_lanes + k < core.faces; ++k)
            if (above[k])
                for (const int32_t side : core.edges_of_face[i * pack_lanes + k]) look_at(side / 2);
    }
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

}  // namespace torchdojo
