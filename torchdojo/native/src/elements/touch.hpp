// Where two shapes are nearest: gap, normal and levers, for numbers with derivatives or without.
#pragma once

#include "elements/ball_on_plane.hpp"
#include "elements/distance_grid.hpp"
#include "elements/near_slot.hpp"

namespace torchdojo {

template <class S>
struct Touch {
    S distance;
    Vec3<S> n, lever_a, lever_b;
    S weight;  // of the impulse on the bodies; set for slots of polytopes alone
};

template <class S, class P>
geometry::Solid<S> solid(int kind, const P *p, const Vec3<S> &x, const Mat3<S> &R) {
    geometry::Solid<S> result;
    result.position = x + R * load3(p);
    result.radius = S(p[parameter::shape::radius]);
    if (kind == geometry::sphere) return result;
    result.rotation = R * lift<S>(rotation_matrix(load4(p + parameter::shape::orientation)));
    for (int k = 0; k < (kind == geometry::capsule ? 1 : 3); ++k) result.half[k] = S(p[parameter::shape::half + k]);
    return result;
}

// P: the scalar of the shapes' numbers, T or S. samples: of height fields, per lane.
template <class T, class S, class P>
geometry::Witness<S> witness(const PairTable &pair, const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb, const Mat3<S> &Rb,
                             const P *shape_a, const P *shape_b, const double *const *samples, S *weight = nullptr) {
    if (pair.cores[0]) {
        S unused;
        return slot<T, S, P>(pair, xa, Ra, xb, Rb, shape_a, weight ? *weight : unused);
    }
    if (pair.kind_b == geometry::heights)
        return above_ground<T, S, P>(pair, samples, xa + Ra * load3(shape_a), S(shape_a[parameter::shape::radius]), shape_b);
    if (pair.kind_b == geometry::grid)
        return beside_grid<T, S, P>(pair, samples, xa + Ra * load3(shape_a), S(shape_a[parameter::shape::radius]), shape_b);
    if (pair.kind_b != geometry::surface) {
        const auto a = solid(pair.kind_a, shape_a, xa, Ra);
        const auto b = solid(pair.kind_b, shape_b, xb, Rb);
        return geometry::Shapes<T, S>::nearest(pair.kind_a, pair.kind_b, a, b);
    }
    geometry::Witness<S> result;
    result.normal = Rb * load3(shape_b);
    Vec3<S> centre = xa + Ra * load3(shape_a);
    if (pair.kind_a == geometry::ellipsoid) {
        S h;
        const auto a = solid(pair.kind_a, shape_a, xa, Ra);
        centre = centre - geometry::EllipsoidPair<T, S, geometry::Shapes<T, S>>::end(a, result.normal, h);
    }
    result.distance = dot(result.normal, centre - xb) - shape_b[parameter::surface::offset] - shape_a[parameter::shape::radius];
    result.point = centre - shape_a[parameter::shape::radius] * result.normal;
    return result;
}

template <class T, class S, class P>
Touch<S> touch(const Problem<T> &problem, const PairTable &pair, int body, const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb,
               const Mat3<S> &Rb, const P *shape_a, const P *shape_b) {
    S weight = S(broadcast<T>(1.0));
    const geometry::Witness<S> nearest = witness<T>(pair, xa, Ra, xb, Rb, shape_a, shape_b, problem.samples, &weight);
    Touch<S> result{nearest.distance, nearest.normal, nearest.point - xa, nearest.point - xb, weight};
    if (pair.other < problem.mechanism.num_bodies) {
        const Vec3<S> moved_a = xa - lift<S>(problem.bodies[body].pose.x);
        const Vec3<S> moved_b = xb - lift<S>(problem.bodies[pair.other].pose.x);
        Vec3<S> shift = moved_a - moved_b;
        for (int k = 0; k < 3; ++k) shift[k] = 0.5 * shift[k];
        result.lever_a = result.lever_a + shift;
        result.lever_b = result.lever_b - shift;
    }
    return result;
}

template <class T, class S>
Touch<S> touch(const Problem<T> &problem, const PairTable &pair, int body, const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb,
               const Mat3<S> &Rb) {
    return touch<T, S, T>(problem, pair, body, xa, Ra, xb, Rb, &problem.parameters[pair.shape_a], &problem.parameters[pair.shape_b]);
}

// Two unit vectors t₁, t₂ with t₁ × t₂ = n (elements.orthonormal_complement).
template <class T, class S>
void tangents(const Vec3<S> &n, Vec3<S> &t1, Vec3<S> &t2) {
    const S one = S(broadcast<T>(1.0));
    const Mask<T> flip = n.z < S(broadcast<T>(-0.5));
    const Vec3<S> m = {select(flip, -n.x, n.x), select(flip, -n.y, n.y), select(flip, -n.z, n.z)};
    const S share = one / (one + m.z);
    const S xy = m.x * m.y * share;
    t1 = {one - m.x * m.x * share, -xy, -m.x};
    t2 = {-xy, one - m.y * m.y * share, -m.y};
    for (int k = 0; k < 3; ++k) t2[k] = select(flip, -t2[k], t2[k]);
}

}  // namespace torchdojo
