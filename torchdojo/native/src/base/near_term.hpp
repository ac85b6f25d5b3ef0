// The near terms of two cores (torchdojo/geometry/near_terms.py, which says why). `near_search.hpp` finds the terms of a pair.
#pragma once

#include "base/near_ellipsoid.hpp"

namespace torchdojo {

template <class S>
struct NearTerm {
    S gap, weight;
    Vec3<S> normal, point;
    double raw = 0;  // for crossings: gap of the lines of both edges, before it is blended
};

// 1 below 0, 0 above 1, C² between.
template <class S>
S fade(const S &t) {
    if (value_of(t) <= 0) return S(1.0);
    if (value_of(t) >= 1) return S(0.0);
    return 1.0 - t * t * t * (t * (6.0 * t - 15.0) + 10.0);
}

enum TermKind { no_term = -1, corner_term = 0, other_corner_term = 1, crossing_term = 2 };

// Poses of two bodies, and by which of them terms have derivatives: those of `seed`, of body i from number 6 i on.
struct TwoPoses {
    Vec3<double> x[2];
    Mat3<double> R[2];
    bool moves[2] = {false, false};

    template <class S>
    void put(Vec3<S> *x_seeded, Mat3<S> *R_seeded) const {
        for (int i = 0; i < 2; ++i) {
            if constexpr (!std::is_same_v<S, double>) {
                if (moves[i]) {
                    seed(x[i], R[i], 6 * i, x_seeded[i], R_seeded[i]);
                    continue;
                }
            }
            x_seeded[i] = lift<S>(x[i]);
            R_seeded[i] = lift<S>(R[i]);
        }
    }
};

// Puts the derivatives of a vector by the pose of body i, by x and by φ. They are columns.
inline void put_columns(Vec3<Dual<double>> &to, int i, const Mat3<double> &by_x, const Mat3<double> &by_turn) {
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k) {
            to[r].d[6 * i + k] = by_x.m[3 * r + k];
            to[r].d[6 * i + 3 + k] = by_turn.m[3 * r + k];
        }
}
// −R [v]×, by which R v changes where R turns by φ in its own frame.
inline Mat3<double> times_skew(const Mat3<double> &R, const Vec3<double> &v) {
    Mat3<double> result;
    for (int r = 0; r < 3; ++r) {
        const Vec3<double> row = cross(v, R.row(r));
        for (int k = 0; k < 3; ++k) result.m[3 * r + k] = row[k];
    }
    return result;
}

// Corner i of body `one` against the other one: gap, normal from the other body, and point on the first one. The derivatives of the corner's
// place in the frame of the other body are simple, and all others follow from it.
template <class S>
NearTerm<S> corner_gap(const Polytope &a, const Polytope &b, const TwoPoses &poses, int one, int i) {
    const int two = 1 - one;
    const Mat3<double> &Ra = poses.R[one], &Rb = poses.R[two];
    const Vec3<double> corner = a.corner(i), at = poses.x[one] + Ra * corner, seen = transposed_times(Rb, at - poses.x[two]);
    const double radii = a.radius + b.radius;
    NearTerm<S> result;
    result.weight = S(1.0);
    if constexpr (std::is_same_v<S, double>) {
        Vec3<double> local;
        result.gap = point_distance(b, seen, local) - radii;
        result.normal = Rb * local;
        result.point = at - a.radius * result.normal;
    } else {
        static const Mat3<double> identity = {{1, 0, 0, 0, 1, 0, 0, 0, 1}};
        Vec3<S> place = lift<S>(seen), point = lift<S>(at), local;
        Mat3<double> back, away;
        for (int r = 0; r < 3; ++r)
            for (int k = 0; k < 3; ++k) away.m[3 * r + k] = -(back.m[3 * r + k] = Rb.m[3 * k + r]);
        if (poses.moves[one]) {
            const Mat3<double> swing = times_skew(Ra, corner);
            put_columns(point, one, identity, swing);
            put_columns(place, one, back, back * swing);
        }
        if (poses.moves[two]) put_columns(place, two, away, {{0, -seen.z, seen.y, seen.z, 0, -seen.x, -seen.y, seen.x, 0}});
        result.gap = point_distance(b, place, local) - radii;
        for (int r = 0; r < 3; ++r) result.normal[r] = Rb.m[3 * r] * local.x + Rb.m[3 * r + 1] * local.y + Rb.m[3 * r + 2] * local.z;
        if (poses.moves[two]) {
            const Mat3<double> turned = times_skew(Rb, value(local));
            for (int r = 0; r < 3; ++r)
                for (int k = 0; k < 3; ++k) result.normal[r].d[6 * two + 3 + k] += turned.m[3 * r + k];
        }
        result.point = point - a.radius * result.normal;
    }
    return result;
}

template <class S>
NearTerm<S> crossing_gap(const Polytope &a, const Polytope &b, const Vec3<S> *x, const Mat3<S> *R, int i, int j) {
    namespace bounds = constant::near_terms;
    const double *ea = a.edge_row(i), *eb = b.edge_row(j);
    const Vec3<double> start_a = a.corner(int(ea[0])), start_b = b.corner(int(eb[0]));
    const Vec3<S> u = R[0] * constant_of<S>(a.corner(int(ea[1])) - start_a), v = R[1] * constant_of<S>(b.corner(int(eb[1])) - start_b);
    const Vec3<S> from_a = x[0] + R[0] * constant_of<S>(start_a), apart = from_a - x[1] - R[1] * constant_of<S>(start_b);
    const S uu = dot(u, u), vv = dot(v, v), uv = dot(u, v), ud = dot(u, apart), vd = dot(v, apart);
    const Vec3<S> across = cross(u, v);
    const S square = dot(across, across), sine2 = square / (uu * vv);
    NearTerm<S> result;
    if (!(value_of(sine2) > bounds::parallel_low * bounds::parallel_low)) {
        result.gap = S(2 * bounds::reach);
        result.weight = S(0.0);
        result.normal = constant_of<S>({0, 0, 1});
        result.point = from_a;
        return result;
    }
    const Vec3<S> axis = (S(1.0) / root_of(square)) * across;
    const S s = (uv * vd - vv * ud) / square, t = (uu * vd - uv * ud) / square;
    const bool lone = !a.faces && !b.faces;
    const Vec3<S> outward = lone ? apart : R[1] * constant_of<S>(load3(eb + 10)) - R[0] * constant_of<S>(load3(ea + 10));
    result.normal = value_of(dot(axis, outward)) < 0 ? -axis : axis;
    const S gap = dot(result.normal, apart) - (a.radius + b.radius);
    const S length_a = S(1 / bounds::ends) * root_of(uu), length_b = S(1 / bounds::ends) * root_of(vv);
    S keep = fade(-(length_a * s)) * fade(length_a * (s - 1.0)) * fade(-(length_b * t)) * fade(length_b * (t - 1.0));
    const double low = bounds::parallel_low * bounds::parallel_low, high = bounds::parallel_high * bounds::parallel_high;
    keep = keep * fade(S(1 / (high - low)) * (high - sine2));
    const Vec3<S> in_a = transposed_times(R[0], result.normal), in_b = transposed_times(R[1], result.normal);
    for (int k = 0; k < 2; ++k) {
        const S leaves_a = -dot(constant_of<S>(load3(ea + 4 + 3 * k)), in_a), leaves_b = dot(constant_of<S>(load3(eb + 4 + 3 * k)), in_b);
        keep = keep * fade(S(1 / (bounds::cone_high - bounds::cone_low)) * (leaves_a - bounds::cone_low));
        keep = keep * fade(S(1 / (bounds::cone_high - bounds::cone_low)) * (leaves_b - bounds::cone_low));
    }
    result.raw = value_of(gap);
    result.gap = keep * gap + (1.0 - keep) * S(2 * bounds::reach);
    result.weight = keep;
    result.point = from_a + s * u - S(a.radius) * result.normal;
    return result;
}

// The nearest points of two cores, at least one of which is an ellipsoid.
template <class S>
__attribute__((noinline)) NearTerm<S> smooth_gap(const Polytope &a, const Polytope &b, const Vec3<S> *x, const Mat3<S> *R) {
    const bool turned = !b.ellipsoid;
    const auto [gap, normal, point] = turned         ? core_and_ellipsoid(b, a, x[1], R[1], x[0], R[0])
                                      : !a.ellipsoid ? core_and_ellipsoid(a, b, x[0], R[0], x[1], R[1])
                                                     : two_ellipsoids(a, b, x, R);
    NearTerm<S> result;
    result.gap = gap;
    result.weight = S(1.0);
    result.normal = turned ? -normal : normal;
    result.point = turned ? point - gap * normal : point;
    return result;
}

// Whether the shapes have the features of a term. Terms that a user wrote into the parameters come here unchecked.
inline bool has_term(const Polytope &a, const Polytope &b, const int *term) {
    const auto within = [](int i, int count) { return i >= 0 && i < count; };
    if (a.ellipsoid || b.ellipsoid) return term[0] == corner_term;
    if (term[0] == corner_term) return within(term[1], a.vertices);
    if (term[0] == other_corner_term) return within(term[1], b.vertices);
    return term[0] == crossing_term && within(term[1], a.edges) && within(term[2], b.edges);
}

// A term of two polytopes at the poses of a, then b. fading: its impulse fades over the second half of reach / fading; 0: it does not.
template <class S>
__attribute__((noinline)) NearTerm<S> near_term(const Polytope &a, const Polytope &b, const TwoPoses &poses, const int *term,
                                                double fading) {
    constexpr double reach = constant::near_terms::reach;
    NearTerm<S> result;
    if (!has_term(a, b, term)) {
        result.gap = S(2 * reach);
        result.weight = S(0.0);
        result.normal = constant_of<S>({0, 0, 1});
        result.point = constant_of<S>(poses.x[0]);
    } else if (term[0] == crossing_term || a.ellipsoid || b.ellipsoid) {
        Vec3<S> x[2];
        Mat3<S> R[2];
        poses.put(x, R);
        result = a.ellipsoid || b.ellipsoid ? smooth_gap(a, b, x, R) : crossing_gap(a, b, x, R, term[1], term[2]);
    } else if (term[0] == corner_term) {
        result = corner_gap<S>(a, b, poses, 0, term[1]);
    } else {
        result = corner_gap<S>(b, a, poses, 1, term[1]);
        result.point = result.point - result.gap * result.normal;
        result.normal = -result.normal;
    }
    if (fading > 0) result.weight = result.weight * fade(S(2 * fading / reach) * result.gap - 1.0);
    return result;
}

}  // namespace torchdojo
