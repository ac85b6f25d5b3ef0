// The nearest points of a polytope and an ellipsoid (torchdojo/geometry/near_ellipsoids.py, which says why).
//
// The search of Gilbert, Johnson and Keerthi (separation.hpp) gives a normal, and Newton's method of ellipsoid.hpp ends on it. All of this is
// in the frame of the polytope.
#pragma once

#include "base/geometry.hpp"
#include "base/separation.hpp"

namespace torchdojo {

// S: double, or double with derivatives.
template <class S>
using Smooth = geometry::EllipsoidPair<double, S, geometry::Shapes<double, S>>;

// The point of a line or plane of a core, its feature, that is nearest to p, and the product of its complement with a vector.
template <class S>
Vec3<S> project(const Polytope &core, const Feature &feature, const Vec3<S> &p) {
    if (feature.face >= 0) {
        const Vec3<S> normal = constant_of<S>(core.normal(feature.face));
        return p - (dot(normal, p) - core.offset(feature.face)) * normal;
    }
    const Vec3<S> base = constant_of<S>(core.corner(feature.corner)), direction = constant_of<S>(feature.direction);
    return base + dot(p - base, direction) * direction;
}
inline Vec3<double> complement(const Polytope &core, const Feature &feature, const Vec3<double> &v) {
    if (feature.face < 0) return v - dot(feature.direction, v) * feature.direction;
    const Vec3<double> normal = core.normal(feature.face);
    return dot(normal, v) * normal;
}

class EllipsoidSearch {
public:
    Vec3<double> n{0, 0, 1};
    Feature feature;

    EllipsoidSearch(const Polytope &core, const geometry::Solid<double> &ellipsoid) : core(core), ellipsoid(ellipsoid) {
        if (start()) settle();
        else
            for (int k = 0; k < constant::near_ellipsoids::settling; ++k) n = turned(step_of(n));
    }

    // Newton's step at the solution, for r from the ellipsoid's point to the feature's, which may have derivatives.
    template <class S>
    Vec3<S> step(const Vec3<S> &r) const {
        return step(n, r);
    }

private:
    const Polytope &core;
    const geometry::Solid<double> &ellipsoid;

    template <class S>
    Vec3<S> step(const Vec3<double> &normal, const Vec3<S> &r) const {
        double h;
        Smooth<double>::end(ellipsoid, normal, h);
        const double along = dot(normal, Vec3<double>{value_of(r.x), value_of(r.y), value_of(r.z)});
        return geometry::normal_step<double>(normal, along, r, [&](const Vec3<double> &v) {
            return complement(core, feature, Smooth<double>::turn(ellipsoid, normal, h, v));
        });
    }
    Vec3<double> step_of(const Vec3<double> &normal) const {
        const Vec3<double> p = point(normal);
        return step(normal, project(core, feature, p) - p);
    }
    Vec3<double> turned(const Vec3<double> &step) const { return Smooth<double>::unit(n + step); }
    Vec3<double> point(const Vec3<double> &normal) const {
        double h;
        return ellipsoid.position + Smooth<double>::end(ellipsoid, normal, h);
    }
    double separation(const Vec3<double> &normal) const { return dot(normal, core.corner(support(core, -normal)) - point(normal)); }

    // Improves nearest points that are right to some digits, up to rounding. A step that brings cores nearer is not taken.
    void settle() {
        double best = separation(n);
        for (int k = 0; k < geometry::newton_iterations; ++k) {
            feature = nearest_feature(core, point(n));
            const Vec3<double> step = step_of(n), next = turned(step);
            const double separation_next = separation(next), size = dot(step, step);
            if (!(separation_next >= best - 1e-15)) return;
            n = next;
            best = std::fmax(best, separation_next);
            if (!(size > geometry::settled_turn * geometry::settled_turn)) break;
        }
        feature = nearest_feature(core, point(n));
    }

    // Finds a normal and a feature. Returns whether they belong to nearest points.
    bool start() {
        for (const double scale : constant::near_ellipsoids::scales) {
            if (!apart(scale)) continue;
            double h;
            feature = nearest_feature(core, ellipsoid.position + scale * Smooth<double>::end(ellipsoid, n, h));
            return scale == 1.0;
        }
        feature = nearest_feature(core, ellipsoid.position);
        double best = -std::numeric_limits<double>::infinity();
        for (int f = 0; f < core.faces; ++f) {
            const Vec3<double> normal = core.normal(f);
            const double height = dot(normal, point(-normal)) - core.offset(f);
            if (height > best) {
                best = height;
                feature.face = f;
                n = -normal;
            }
        }
        return false;
    }

    // Whether the core is apart from the ellipsoid times `scale`; then n leads from it to the core.
    bool apart(double scale) {
        constexpr int most = 64;
        constexpr double exact = 1e-10;  // relative gap between both bounds of the squared distance: directions to 1e-5
        constexpr double touching = constant::near_ellipsoids::touching;
        NearestSimplex simplex;
        Vec3<double> v = simplex.add(core.corner(0) - ellipsoid.position);
        for (int k = 0; k < most; ++k) {
            const double square = dot(v, v);
            if (!(square > touching * touching)) return false;
            double h;
            const Vec3<double> normal = (1 / std::sqrt(square)) * v;
            const Vec3<double> w = core.corner(support(core, -v)) - ellipsoid.position - scale * Smooth<double>::end(ellipsoid, normal, h);
            n = normal;
            if (square - dot(v, w) <= exact * square) return true;
            v = simplex.add(w);
        }
        return true;
    }
};

// An ellipsoid at the pose x, R of its body in another frame.
template <class S>
geometry::Solid<S> solid_of(const Polytope &ellipsoid, const Vec3<S> &x, const Mat3<S> &R) {
    const Vec3<double> axes = ellipsoid.semi_axes();
    geometry::Solid<S> solid;
    solid.position = x + R * constant_of<S>(ellipsoid.center);
    for (int k = 0; k < 3; ++k) {
        const Vec3<S> column = R * constant_of<S>(ellipsoid.rotation().column(k));
        for (int i = 0; i < 3; ++i) solid.rotation.m[3 * i + k] = column[i];
        solid.half[k] = S(axes[k]);
    }
    solid.radius = S(ellipsoid.radius);
    return solid;
}

// Gap, normal from the ellipsoid to the polytope, and the nearest point of the polytope with its radius.
template <class S>
geometry::Witness<S> core_and_ellipsoid(const Polytope &core, const Polytope &smooth, const Vec3<S> &x, const Mat3<S> &R,
                                        const Vec3<S> &x_smooth, const Mat3<S> &R_smooth) {
    Mat3<S> relative;
    for (int k = 0; k < 3; ++k) {
        const Vec3<S> column = transposed_times(R, R_smooth.column(k));
        for (int i = 0; i < 3; ++i) relative.m[3 * i + k] = column[i];
    }
    const geometry::Solid<S> ellipsoid = solid_of(smooth, transposed_times(R, x_smooth - x), relative);
    const geometry::Solid<double> steady = geometry::values_of<double>(ellipsoid);
    const EllipsoidSearch search(core, steady);
    const auto apart = [&](const Vec3<S> &normal, Vec3<S> &on_core) {
        S h;
        const Vec3<S> p = ellipsoid.position + Smooth<S>::end(ellipsoid, normal, h);
        on_core = project(core, search.feature, p);
        return on_core - p;
    };
    Vec3<S> on_core;
    const Vec3<S> start = constant_of<S>(search.n);
    const Vec3<S> n = Smooth<S>::unit(start + search.step(apart(start, on_core)));
    geometry::Witness<S> witness;
    witness.distance = dot(n, apart(n, on_core)) - core.radius;
    witness.normal = R * n;
    witness.point = x + R * (on_core - core.radius * n);
    return witness;
}

template <class S>
geometry::Witness<S> two_ellipsoids(const Polytope &a, const Polytope &b, const Vec3<S> *x, const Mat3<S> *R) {
    using namespace geometry;
    return ellipsoid_nearest<double, S, Shapes<double, S>, Shapes<double, double>>(ellipsoid, solid_of(a, x[0], R[0]),
                                                                                   solid_of(b, x[1], R[1]));
}

}  // namespace torchdojo
