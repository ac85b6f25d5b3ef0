// Nearest points of spheres, capsules, boxes and ellipsoids for any scalar S: T, or Dual over T. The derivations stand in
// torchdojo/geometry/distance.py and pairs.py.
#pragma once

#include "base/ellipsoid.hpp"

namespace torchdojo {
namespace geometry {

constexpr int numbers(int kind) { return shape_sizes[kind]; }  // count in the packed parameters

// A shape in space. Its extent is half the length of a capsule's segment along its z axis, half the edges of a box, or the semi-axes.
template <class S>
struct Solid {
    Vec3<S> position;
    Mat3<S> rotation;
    S radius, half[3];
};

// Signed distance, unit normal from b to a, and the nearest point of a.
template <class S>
struct Witness {
    S distance;
    Vec3<S> normal, point;
};

template <class T, class S>
struct Shapes {
    using M = Mask<T>;

    static S number(double x) { return S(broadcast<T>(x)); }
    static S clamp(const S &x, double low, double high) {
        return pick(x < number(low), number(low), pick(x > number(high), number(high), x));
    }
    static S pick(const M &m, const S &a, const S &b) { return select(m, a, b); }
    static Vec3<S> pick(const M &m, const Vec3<S> &a, const Vec3<S> &b) {
        return {pick(m, a.x, b.x), pick(m, a.y, b.y), pick(m, a.z, b.z)};
    }
    static S size(const S &x) { return pick(x < number(0), -x, x); }
    static S larger(const S &a, const S &b) { return pick(a > b, a, b); }

    static void separation(const Vec3<S> &difference, S &length, Vec3<S> &direction) {
        const S squared = dot(difference, difference), one = number(1), zero = number(0);
        const M apart = squared > number(coincident * coincident);
        const S root = sqrt(pick(apart, squared, one)), inverse = one / root;
        direction = pick(apart, inverse * difference, Vec3<S>{zero, zero, one});
        length = pick(apart, root, zero);
    }

    // s and t of the nearest points of segments center ± u, ± v; `difference` leads from the second center to the first.
    static void segments(const Vec3<S> &u, const Vec3<S> &v, const Vec3<S> &difference, S &s, S &t) {
        const S a = number(1 + parallel) * dot(u, u), e = number(1 + parallel) * dot(v, v);
        const S b = dot(u, v), c = dot(u, difference), f = dot(v, difference);
        const S first = clamp((b * f - c * e) / (a * e - b * b), -1, 1), second = (b * first + f) / e;
        t = clamp(second, -1, 1);
        const M inside = select_mask(second < t, M{}, negate(second > t));
        s = pick(inside, first, clamp((b * t - c) / a, -1, 1));
    }

    static void point_box(const Vec3<S> &point, const S *half, S &distance, Vec3<S> &normal) {
        const S zero = number(0), one = number(1);
        Vec3<S> beyond, outer, face{zero, zero, zero}, sign;
        for (int k = 0; k < 3; ++k) {
            beyond[k] = size(point[k]) - half[k];
            sign[k] = pick(point[k] < zero, number(-1), one);
            outer[k] = larger(beyond[k], zero);
        }
        const S squared = dot(outer, outer);
        const M outside = squared > zero;
        const S length = sqrt(pick(outside, squared, one)), inverse = one / length;
        const M y = beyond.y > beyond.x;
        S depth = pick(y, beyond.y, beyond.x);
        const M z = beyond.z > depth;
        depth = pick(z, beyond.z, depth);
        face.z = pick(z, one, zero);
        face.y = pick(z, zero, pick(y, one, zero));
        face.x = pick(z, zero, pick(y, zero, one));
        for (int k = 0; k < 3; ++k) normal[k] = sign[k] * pick(outside, outer[k] * inverse, face[k]);
        distance = pick(outside, length, depth);
    }

    // Parameter s of the point of a segment that is nearest to a box.
    static S segment_box(const Vec3<S> &centre, const Vec3<S> &u, const S *half) {
        const S one = number(1), zero = number(0);
        S stops[8];
        for (int k = 0; k < 3; ++k) {
            const M crosses = size(u[k]) > number(coincident);
            const S slope = one / pick(crosses, u[k], one);
            stops[k] = pick(crosses, clamp((half[k] - centre[k]) * slope, -1, 1), one);
            stops[3 + k] = pick(crosses, clamp((-half[k] - centre[k]) * slope, -1, 1), one);
        }
        stops[6] = number(-1);
        stops[7] = one;
        for (int i = 1; i < 8; ++i)  // insertion sort, from the smallest
            for (int k = i; k > 0; --k) {
                const M swap = stops[k] < stops[k - 1];
                const S low = pick(swap, stops[k], stops[k - 1]);
                stops[k] = pick(swap, stops[k - 1], stops[k]);
                stops[k - 1] = low;
            }
        const S length = dot(u, u);
        S values[8];
        for (int i = 0; i < 8; ++i) {
            values[i] = number(parallel) * length * stops[i];
            for (int k = 0; k < 3; ++k) {
                const S p = centre[k] + stops[i] * u[k];
                const S clamped = pick(p < -half[k], -half[k], pick(p > half[k], half[k], p));
                values[i] = values[i] + u[k] * (p - clamped);
            }
        }
        // The sign changes in the interval whose first end is the last end below zero.
        S s0 = stops[0], s1 = stops[1], g0 = values[0], g1 = values[1];
        for (int i = 1; i < 7; ++i) {
            const M later = values[i] < zero;
            s0 = pick(later, stops[i], s0);
            g0 = pick(later, values[i], g0);
            s1 = pick(later, stops[i + 1], s1);
            g1 = pick(later, values[i + 1], g1);
        }
        const S rise = g1 - g0;
        const M between = select_mask(select_mask(g0 < zero, negate(g1 < zero), M{}), rise > zero, M{});
        const S s = s0 - pick(between, g0, zero) * (s1 - s0) / pick(between, rise, one);
        return pick(values[7] < zero, s1, s);
    }

    static Witness<S> of_points(const Vec3<S> &p, const Vec3<S> &q, const Solid<S> &a, const Solid<S> &b) {
        Witness<S> witness;
        S length;
        separation(p - q, length, witness.normal);
        witness.distance = length - a.radius - b.radius;
        witness.point = p - a.radius * witness.normal;
        return witness;
    }
    static Witness<S> ball_box(const Vec3<S> &centre, const Solid<S> &a, const Solid<S> &b) {
        Witness<S> witness;
        S distance;
        Vec3<S> local;
        point_box(transposed_times(b.rotation, centre - b.position), b.half, distance, local);
        witness.normal = b.rotation * local;
        witness.distance = distance - a.radius - b.radius;
        witness.point = centre - a.radius * witness.normal;
        return witness;
    }
    static Vec3<S> half_vector(const Solid<S> &a) { return a.half[0] * a.rotation.column(2); }

    static S rounded(const S &cosine) {
        const S x = size(cosine);
        return number(1 / (1 - 0.5 * flat)) * pick(x < number(flat), number(1 / (2 * flat)) * x * x, x - number(0.5 * flat));
    }

    static Witness<S> box_box(const Solid<S> &a, const Solid<S> &b) {
        const S one = number(1), zero = number(0);
        const Vec3<S> difference = a.position - b.position;
        Vec3<S> edge_a[3], edge_b[3];
        S sum_a = zero, sum_b = zero;
        for (int k = 0; k < 3; ++k) {
            edge_a[k] = a.rotation.column(k);
            edge_b[k] = b.rotation.column(k);
            sum_a = sum_a + a.half[k];
            sum_b = sum_b + b.half[k];
        }
        const M smaller = sum_a < sum_b, never{};
        Vec3<S> normal = edge_a[0], own_a = edge_a[0], own_b = edge_b[0];
        S best = zero, gap = zero, length_a = zero, length_b = zero;
        M of_a = negate(never), crossing{};
        auto consider = [&](int i, Vec3<S> axis, const M &real, const Vec3<S> &ea, const Vec3<S> &eb, const S &la, const S &lb) {
            const S along = dot(axis, difference);
            axis = pick(along < zero, -axis, axis);
            S separated = size(along);
            for (int k = 0; k < 3; ++k)
                separated = separated - a.half[k] * rounded(dot(axis, edge_a[k])) - b.half[k] * rounded(dot(axis, edge_b[k]));
            const S less = number(i < 6 ? 0.5 * prefer_faces : prefer_faces);
            const M handicap = i < 3 ? smaller : i < 6 ? negate(smaller) : negate(never);
            const S value = separated - pick(handicap, less, zero);
            const M take = i ? select_mask(real, value > best, never) : negate(never);
            best = pick(take, value, best);
            gap = pick(take, separated, gap);
            normal = pick(take, axis, normal);
            own_a = pick(take, ea, own_a);
            own_b = pick(take, eb, own_b);
            length_a = pick(take, la, length_a);
            length_b = pick(take, lb, length_b);
            of_a = select_mask(take, i < 3 ? negate(never) : never, of_a);
            crossing = select_mask(take, i < 6 ? never : negate(never), crossing);
        };
        for (int k = 0; k < 3; ++k) consider(k, edge_a[k], negate(never), edge_a[0], edge_b[0], a.half[0], b.half[0]);
        for (int k = 0; k < 3; ++k) consider(3 + k, edge_b[k], negate(never), edge_a[0], edge_b[0], a.half[0], b.half[0]);
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j) {
                const Vec3<S> across = cross(edge_a[i], edge_b[j]);
                const S squared = dot(across, across);
                const M real = squared > number(parallel_edges);
                const S inverse = one / sqrt(pick(real, squared, one));
                consider(6 + 3 * i + j, inverse * across, real, edge_a[i], edge_b[j], a.half[i], b.half[j]);
            }
        Witness<S> witness;
        witness.normal = normal;
        witness.distance = gap - a.radius - b.radius;
        Vec3<S> on_a = a.position - a.radius * normal, on_b = b.position + b.radius * normal;
        for (int k = 0; k < 3; ++k) {
            on_a = on_a - (clamp(number(1 / flat) * dot(normal, edge_a[k]), -1, 1) * a.half[k]) * edge_a[k];
            on_b = on_b + (clamp(number(1 / flat) * dot(normal, edge_b[k]), -1, 1) * b.half[k]) * edge_b[k];
        }
        S s, t;
        segments(pick(crossing, length_a, one) * own_a, pick(crossing, length_b, one) * own_b, on_a - on_b, s, t);
        witness.point = pick(of_a, on_b + witness.distance * normal, on_a);
        witness.point = pick(crossing, on_a + (s * length_a) * own_a, witness.point);
        return witness;
    }

    // One copy for all that ask: it is large.
    static __attribute__((noinline)) Witness<S> nearest(int kind_a, int kind_b, const Solid<S> &a, const Solid<S> &b) {
        if (kind_a > kind_b) {
            Witness<S> witness = nearest(kind_b, kind_a, b, a);
            witness.point = witness.point - witness.distance * witness.normal;
            witness.normal = -witness.normal;
            return witness;
        }
        if (kind_b == ellipsoid) return ellipsoid_nearest<T, S, Shapes, Shapes<T, T>>(kind_a, a, b);
        if (kind_b == sphere) return of_points(a.position, b.position, a, b);
        if (kind_a == sphere && kind_b == capsule) {
            const Vec3<S> u = half_vector(b);
            return of_points(a.position, b.position + clamp(dot(u, a.position - b.position) / dot(u, u), -1, 1) * u, a, b);
        }
        if (kind_b == capsule) {
            const Vec3<S> u = half_vector(a), v = half_vector(b);
            S s, t;
            segments(u, v, a.position - b.position, s, t);
            return of_points(a.position + s * u, b.position + t * v, a, b);
        }
        if (kind_a == sphere) return ball_box(a.position, a, b);
        if (kind_a == capsule) {
            const Vec3<S> u = half_vector(a);
            const S s = segment_box(transposed_times(b.rotation, a.position - b.position), transposed_times(b.rotation, u), b.half);
            return ball_box(a.position + s * u, a, b);
        }
        return box_box(a, b);
    }
};

}  // namespace geometry
}  // namespace torchdojo
