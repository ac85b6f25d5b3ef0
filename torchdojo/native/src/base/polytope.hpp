// Convex polytopes with a radius, and ellipsoids, as cores of shapes (torchdojo/geometry/polytopes.py, which says why).
// S: double, or double with derivatives.
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

// A view of one polytope among the numbers of a mechanism (native/polytopes.py), with tables that `prepare` derives from them.
struct Polytope {
    static constexpr int ellipsoid_size = 12;
    static constexpr int edge_size = 13;  // ends, faces, inward directions in both, outward direction
    // Planes of merged faces are tilted by up to 4.5e-5 (SAME_PLANE of polytopes.py), so heights above them are off by this share of the
    // size at most.
    static constexpr double tilt = 1e-4;

    int vertices, faces, edges;
    double radius;
    const double *vertex, *face = nullptr, *edge = nullptr;
    double extent = 0, size = 0;  // radii of balls about the origin and about `center` that hold the core
    const double *ellipsoid = nullptr;  // rotation and semi-axes of an ellipsoid around the only corner; null: a polytope
    Vec3<double> center{0, 0, 0};
    std::vector<Pack> corners,
        planes;  // x, y, z of one corner per lane, then of the next corners; the same of normals and offsets of faces
    std::vector<double> length;  // lengths of edges
    struct Span {
        Vec3<double> start, along;
        double inverse_square;  // of its length
    };
    std::vector<Span> spans;  // edges from end to end
    Lists edges_of_face, edges_of_corner;  // edges_of_face: twice the edge, plus 1 where the face is its second one

    void prepare() {
        for (int i = 0; i < vertices; ++i) center = center + (1.0 / vertices) * corner(i);
        for (int i = 0; i < vertices; ++i) {
            extent = std::fmax(extent, std::sqrt(dot(corner(i), corner(i))));
            size = std::fmax(size, std::sqrt(dot(corner(i) - center, corner(i) - center)));
        }
        if (ellipsoid) {
            extent += longest_axis();
            size += longest_axis();
        }
        corners = side_by_side(vertex, vertices, 3);
        planes = side_by_side(face, faces, 4);
        std::vector<std::vector<int32_t>> of_face(faces), of_corner(vertices);
        for (int e = 0; e < edges; ++e) {
            const double *row = edge_row(e);
            const Vec3<double> along = corner(int(row[1])) - corner(int(row[0]));
            length.push_back(std::sqrt(dot(along, along)));
            spans.push_back({corner(int(row[0])), along, 1 / dot(along, along)});
            for (int k = 0; k < 2; ++k) {
                of_corner[int(row[k])].push_back(e);
                if (row[2 + k] >= 0) of_face[int(row[2 + k])].push_back(2 * e + k);
            }
        }
        edges_of_face = joined(of_face);
        edges_of_corner = joined(of_corner);
    }
    Vec3<double> corner(int i) const { return load3(vertex + 3 * i); }
    Vec3<double> normal(int f) const { return load3(face + 4 * f); }
    double offset(int f) const { return face[4 * f + 3]; }
    const double *edge_row(int e) const { return edge + edge_size * e; }

    Mat3<double> rotation() const { return load33(ellipsoid); }
    Vec3<double> semi_axes() const { return load3(ellipsoid + 9); }
    double longest_axis() const { return std::fmax(std::fmax(ellipsoid[9], ellipsoid[10]), ellipsoid[11]); }
    double shortest_axis() const { return std::fmin(std::fmin(ellipsoid[9], ellipsoid[10]), ellipsoid[11]); }
    // From the center of the ellipsoid to its point with this normal, which may have any length.
    Vec3<double> end(const Vec3<double> &normal) const {
        const Mat3<double> R = rotation();
        const Vec3<double> axes = semi_axes(), local = transposed_times(R, normal);
        const Vec3<double> along{axes.x * local.x, axes.y * local.y, axes.z * local.z};
        const double length = std::sqrt(dot(along, along));
        if (!(length > 0)) return {0, 0, 0};
        return (1 / length) * (R * Vec3<double>{axes.x * along.x, axes.y * along.y, axes.z * along.z});
    }

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

// The largest of some numbers, and its index. Of equal numbers the first counts.
struct Peak {
    double height = -std::numeric_limits<double>::infinity();
    int index = 0;
};

// height(block): the numbers of one block of packs.
template <class F>
TD_INLINE Peak highest(int blocks, F &&height) {
    Pack top = broadcast<Pack>(-std::numeric_limits<double>::infinity());
    PackMask block = {};
    for (int i = 0; i < blocks; ++i) {
        const Pack heights = height(i);
        const PackMask above = heights > top;
        top = above ? heights : top;
        block = above ? PackMask{} + int64_t(i) : block;
    }
    Peak peak;
    for (int k = 0; k < pack_lanes; ++k) {
        const int index = int(block[k]) * pack_lanes + k;
        if (top[k] > peak.height || (top[k] == peak.height && index < peak.index)) {
            peak.height = top[k];
            peak.index = index;
        }
    }
    return peak;
}
TD_INLINE Pack corner_height(const Polytope &core, int block, const Vec3<double> &direction) {
    const Pack *corner = &core.corners[3 * block];
    return corner[0] * direction.x + corner[1] * direction.y + corner[2] * direction.z;
}
// The corner that is farthest along a direction.
inline int support(const Polytope &core, const Vec3<double> &direction) {
    if (core.vertices == 1) return 0;
    const int blocks = int(core.corners.size()) / 3;
    return std::min(highest(blocks, [&](int i) { return corner_height(core, i, direction); }).index, core.vertices - 1);
}
TD_INLINE Pack plane_height(const Polytope &core, int block, const Vec3<double> &p) {
    const Pack *plane = &core.planes[4 * block];
    return plane[0] * p.x + plane[1] * p.y + plane[2] * p.z - plane[3];
}

TD_INLINE double value_of(double x) { return x; }
TD_INLINE double value_of(const Dual<double> &x) { return x.v; }
template <class S>
TD_INLINE Vec3<S> constant_of(const Vec3<double> &a) {
    return {S(a.x), S(a.y), S(a.z)};
}
TD_INLINE double root_of(double x) { return std::sqrt(x); }
TD_INLINE Dual<double> root_of(const Dual<double> &x) { return sqrt(x); }

// The feature of a polytope that is nearest to a point: a face, or where `face` is −1 a corner, with the direction of its edge or zero.
struct Feature {
    int corner = 0, face = -1;
    Vec3<double> direction{0, 0, 0};
};

// An edge is nearest where a face on one of its sides is seen from the point, or the core has no faces.
inline Feature nearest_feature(const Polytope &core, const Vec3<double> &p) {
    Feature feature;
    double least = std::numeric_limits<double>::infinity(), place = 0.0;
    int nearest = core.edges;
    // Without branches and divisions: points pass from one edge to another one at any time.
    const auto look_at = [&](int e) {
        const Polytope::Span &span = core.spans[e];
        const Vec3<double> from = p - span.start;
        const double t = std::min(std::max(dot(from, span.along) * span.inverse_square, 0.0), 1.0);
        const Vec3<double> apart = from - t * span.along;
        const double distance = dot(apart, apart);
        const bool nearer = distance < least || (distance == least && e < nearest);
        least = nearer ? distance : least;
        nearest = nearer ? e : nearest;
        place = nearer ? t : place;
    };
    const auto found = [&] {
        if (nearest == core.edges) return feature;  // not a number
        const double *row = core.edge_row(nearest);
        feature.corner = int(place < 1 ? row[0] : row[1]);
        if (place > 0 && place < 1) feature.direction = (1 / core.length[nearest]) * core.spans[nearest].along;
        return feature;
    };
    if (!core.faces) {
        for (int e = 0; e < core.edges; ++e) look_at(e);
        return found();
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
        feature.face = top.index;
        return feature;
    }
    const double seen = -Polytope::tilt * core.size;
    for (int i = 0; i < blocks; ++i) {
        const PackMask above = plane_height(core, i, p) > seen;
        if (!any(above)) continue;
        for (int k = 0; k < pack_lanes && i * pack_lanes + k < core.faces; ++k)
            if (above[k])
                for (const int32_t side : core.edges_of_face[i * pack_lanes + k]) look_at(side / 2);
    }
    return found();
}

// Signed distance of a point from the core, and its gradient.
template <class S>
S point_distance(const Polytope &core, const Vec3<S> &p, Vec3<S> &normal) {
    const Feature feature = nearest_feature(core, {value_of(p.x), value_of(p.y), value_of(p.z)});
    if (feature.face >= 0) {
        normal = constant_of<S>(core.normal(feature.face));
        return dot(normal, p) - core.offset(feature.face);
    }
    const Vec3<S> offset = p - constant_of<S>(core.corner(feature.corner)), direction = constant_of<S>(feature.direction);
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

}  // namespace torchdojo
