// Distance of an ellipsoid from a sphere, capsule, box or ellipsoid, by Newton's method on its normals. torchdojo/geometry/ellipsoids.py
// says why. The search has values alone; then one iteration has derivatives.
#pragma once

#include "base/dual.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo {
namespace geometry {

template <class S>
struct Solid;
template <class S>
struct Witness;

template <class T, class S>
Solid<T> values_of(const Solid<S> &a) {
    Solid<T> solid;
    for (int k = 0; k < 3; ++k) {
        solid.position[k] = value(a.position[k]);
        solid.half[k] = value(a.half[k]);
    }
    for (int k = 0; k < 9; ++k) solid.rotation.m[k] = value(a.rotation.m[k]);
    solid.radius = value(a.radius);
    return solid;
}

// G: Shapes<T, S>. The core of a is its kind without the radius; a box is smaller by `core_radius`.
template <class T, class S, class G>
struct EllipsoidPair {
    using M = Mask<T>;
    static S number(double x) { return S(broadcast<T>(x)); }

    static S core_radius(const Solid<S> &a) {
        const S smaller = G::pick(a.half[1] < a.half[0], a.half[1], a.half[0]), least = G::pick(a.half[2] < smaller, a.half[2], smaller);
        return G::clamp(number(box_rounding[0]) * least, box_rounding[1], box_rounding[2]);
    }

    // Q v for the ellipsoid with semi-axes `half`.
    static Vec3<S> spread(const Solid<S> &a, const Vec3<S> &v) {
        Vec3<S> local = transposed_times(a.rotation, v);
        for (int k = 0; k < 3; ++k) local[k] = a.half[k] * a.half[k] * local[k];
        return a.rotation * local;
    }

    // From the center of an ellipsoid to its point with normal n, and h.
    static Vec3<S> end(const Solid<S> &a, const Vec3<S> &n, S &h) {
        const Vec3<S> along = spread(a, n);
        h = sqrt(dot(n, along));
        return (number(1) / h) * along;
    }

    // The point of the core of a that is nearest to p. moved: for a box, 1 for coordinates that moved, else 0; for a capsule, x is 0 where the
    // point is between the ends, else 1.
    static Vec3<S> project(int kind, const Solid<S> &a, const Vec3<S> &p, Vec3<T> &moved) {
        const T one = broadcast<T>(1.0);
        moved = {one, one, one};
        if (kind == sphere) return a.position;
        if (kind == capsule) {
            const Vec3<S> u = G::half_vector(a);
            const S free = dot(u, p - a.position) / dot(u, u), s = G::clamp(free, -1, 1);
            moved.x = select(value(free) < broadcast<T>(-1.0), one, select(value(free) > one, one, T{}));
            return a.position + s * u;
        }
        const S radius = core_radius(a);
        const Vec3<S> local = transposed_times(a.rotation, p - a.position);
        Vec3<S> beyond, near;
        for (int k = 0; k < 3; ++k) beyond[k] = G::size(local[k]) - (a.half[k] - radius);
        const M y = beyond.y > beyond.x;
        S most = G::pick(y, beyond.y, beyond.x);
        const M z = beyond.z > most;
        most = G::pick(z, beyond.z, most);
        const M outside = most > number(0);
        const T face[3] = {select(z, T{}, select(y, T{}, one)), select(z, T{}, select(y, one, T{})), select(z, one, T{})};
        for (int k = 0; k < 3; ++k) {
            moved[k] = select(outside, select(value(beyond[k]) > T{}, one, T{}), face[k]);
            const S limit = a.half[k] - radius;
            near[k] = G::pick(moved[k] > T{}, G::pick(local[k] < number(0), -limit, limit), local[k]);
        }
        return a.position + a.rotation * near;
    }

    // From p on b to the nearest point q of the core of a.
    static Vec3<S> apart(int kind, const Solid<S> &a, const Solid<S> &b, const Vec3<S> &n, Vec3<S> &q, Vec3<T> &moved, S &h, S &other) {
        const Vec3<S> p = b.position + end(b, n, h);
        q = kind == ellipsoid ? a.position - end(a, n, other) : project(kind, a, p, moved);
        return q - p;
    }

    // H v of the ellipsoid at the normal n.
    static Vec3<S> turn(const Solid<S> &a, const Vec3<S> &n, const S &h, const Vec3<S> &v) {
        const Vec3<S> along = spread(a, n), across = spread(a, v);
        const S inverse = number(1) / h;
        return inverse * across - (inverse * inverse * inverse * dot(along, v)) * along;
    }

    static S separation(int kind, const Solid<S> &a, const Solid<S> &b, const Vec3<S> &n) {
        S gap = dot(n, a.position - b.position) - sqrt(dot(n, spread(b, n)));
        if (kind == ellipsoid) gap = gap - sqrt(dot(n, spread(a, n)));
        if (kind == capsule) gap = gap - G::size(dot(G::half_vector(a), n));
        if (kind == box) {
            const S radius = core_radius(a);
            const Vec3<S> local = transposed_times(a.rotation, n);
            for (int k = 0; k < 3; ++k) gap = gap - (a.half[k] - radius) * G::size(local[k]);
        }
        return gap;
    }

    static Vec3<S> unit(const Vec3<S> &v) { return (number(1) / sqrt(dot(v, v))) * v; }

    static Vec3<S> start(int kind, const Solid<S> &a, const Solid<S> &b) {
        const Vec3<S> middle = a.position - b.position;
        S length;
        Vec3<S> n;
        if (kind == sphere || kind == ellipsoid) {
            G::separation(middle, length, n);
            return n;
        }
        Vec3<T> moved;
        const Vec3<S> from_center = project(kind, a, b.position, moved) - b.position;
        const M inside = dot(from_center, from_center) < number(coincident * coincident);
        G::separation(G::pick(inside, middle, from_center), length, n);
        if (kind == box) {
            const S radius = core_radius(a);
            const Vec3<S> local = transposed_times(a.rotation, -middle);
            S most = G::size(local[0]) - (a.half[0] - radius);
            for (int k = 1; k < 3; ++k) most = G::larger(most, G::size(local[k]) - (a.half[k] - radius));
            n = G::pick(most > number(0), n, -n);
        }
        return n;
    }
};

// Newton's step across n, of at most `longest_turn`. f: the length of r along n. r: from p to q, with derivatives or without; everything else
// is a value. JH: product of both matrices with a vector.
template <class T, class S, class F>
Vec3<S> normal_step(const Vec3<T> &n, const T &f, const Vec3<S> &r, F &&JH) {
    const T one = broadcast<T>(1.0);
    const auto tangent = [&](const auto &v) { return v - dot(v, n) * n; };
    Vec3<T> columns[3];
    for (int k = 0; k < 3; ++k) {
        Vec3<T> e{};
        e[k] = one;
        const Vec3<T> t = tangent(e);
        columns[k] = tangent(JH(t)) + f * t + n[k] * n;
    }
    const Vec3<T> yz = cross(columns[1], columns[2]), zx = cross(columns[2], columns[0]), xy = cross(columns[0], columns[1]);
    const T determinant = dot(columns[0], yz);
    const Mask<T> singular = determinant == T{};
    const T inverse = select(singular, T{}, one / select(singular, one, determinant));
    const Vec3<S> right = tangent(r);
    Vec3<S> step{inverse * dot(yz, right), inverse * dot(zx, right), inverse * dot(xy, right)};
    const Vec3<T> turned{value(step.x), value(step.y), value(step.z)};
    const T square = dot(turned, turned), most = broadcast<T>(longest_turn * longest_turn);
    const T share = select(square > most, broadcast<T>(longest_turn) / sqrt(select(square > most, square, one)), one);
    return {share * step.x, share * step.y, share * step.z};
}

template <class T, class S, class G>
Vec3<S> ellipsoid_step(int kind, const Solid<T> &a, const Solid<T> &b, const Vec3<T> &n, const Vec3<T> &moved, const T &h, const T &other,
                       const T &r_along, const Vec3<S> &r) {
    using E = EllipsoidPair<T, T, G>;
    const T one = broadcast<T>(1.0);
    const Vec3<T> axis = a.rotation.column(2);
    auto J = [&](const Vec3<T> &v) -> Vec3<T> {  // a projection
        if (kind == capsule) return v - ((one - moved.x) * dot(axis, v)) * axis;
        if (kind != box) return v;
        Vec3<T> local = transposed_times(a.rotation, v);
        for (int k = 0; k < 3; ++k) local[k] = moved[k] * local[k];
        return a.rotation * local;
    };
    const T f = kind == box ? r_along : select(r_along > T{}, r_along, T{});
    return normal_step<T>(n, f, r, [&](const Vec3<T> &t) {
        Vec3<T> by = E::turn(b, n, h, t);
        if (kind == ellipsoid) by = by + E::turn(a, n, other, t);
        return J(by);
    });
}

template <class T, class S, class G, class V>
Witness<S> ellipsoid_nearest(int kind, const Solid<S> &a, const Solid<S> &b) {
    using E = EllipsoidPair<T, T, V>;
    using D = EllipsoidPair<T, S, G>;
    const Solid<T> solid_a = values_of<T>(a), solid_b = values_of<T>(b);
    Vec3<T> n = E::start(kind, solid_a, solid_b), moved{}, q;
    T h{}, other{};
    for (int i = 0; i < newton_iterations; ++i) {
        const Vec3<T> r = E::apart(kind, solid_a, solid_b, n, q, moved, h, other);
        const Vec3<T> step = ellipsoid_step<T, T, V>(kind, solid_a, solid_b, n, moved, h, other, dot(n, r), r);
        const T previous = E::separation(kind, solid_a, solid_b, n);
        Vec3<T> best = n;
        for (int k = newton_halvings; k >= 0; --k) {  // the longest part of the step that does not reduce the separation
            const Vec3<T> trial = E::unit(n + broadcast<T>(1.0 / (1 << k)) * step);
            const Mask<T> less = E::separation(kind, solid_a, solid_b, trial) < previous;
            best = k == newton_halvings ? trial : V::pick(less, best, trial);
        }
        n = best;
        if (!any(dot(step, step) > broadcast<T>(settled_turn * settled_turn))) break;
    }
    const Vec3<T> r = E::apart(kind, solid_a, solid_b, n, q, moved, h, other);
    Vec3<S> from{S(n.x), S(n.y), S(n.z)}, on_a;
    S h_of_b{}, h_of_a{};
    const Vec3<S> difference = D::apart(kind, a, b, from, on_a, moved, h_of_b, h_of_a);
    const Vec3<S> normal = D::unit(from + ellipsoid_step<T, S, V>(kind, solid_a, solid_b, n, moved, h, other, dot(n, r), difference));
    const Vec3<S> last = D::apart(kind, a, b, normal, on_a, moved, h_of_b, h_of_a);
    const S radius = kind == box ? a.radius + D::core_radius(a) : a.radius;
    Witness<S> witness;
    witness.normal = normal;
    witness.distance = dot(normal, last) - radius - b.radius;
    witness.point = on_a - radius * normal;
    return witness;
}

}  // namespace geometry
}  // namespace torchdojo
