// Whether the cores of two polytopes are apart, and stay so along a motion (torchdojo/engine/near_overlap.py, which says why).
#pragma once

#include "base/polytope.hpp"

namespace torchdojo {

// The point of a core that is farthest along a direction of the world.
inline Vec3<double> farthest(const Polytope &core, const Vec3<double> &x, const Mat3<double> &R, const Vec3<double> &direction) {
    const Vec3<double> local = transposed_times(R, direction);
    if (core.ellipsoid) return x + R * (core.center + core.end(local));
    int best = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (int i = 0; i < core.vertices; ++i) {
        const double height = dot(core.corner(i), local);
        if (height > most) {
            most = height;
            best = i;
        }
    }
    return x + R * core.corner(best);
}

// The least extent of a polytope across one of its faces. A point or a segment has the extent of its round part, an ellipsoid its shortest
// axis.
inline double thickness(const Polytope &core) {
    if (core.ellipsoid) return 2 * (core.shortest_axis() + core.radius);
    double least = core.faces ? std::numeric_limits<double>::infinity() : 0.0;
    for (int f = 0; f < core.faces; ++f) {
        double lowest = core.offset(f);
        for (int i = 0; i < core.vertices; ++i) lowest = std::fmin(lowest, dot(core.normal(f), core.corner(i)));
        least = std::fmin(least, core.offset(f) - lowest);
    }
    return least + 2 * core.radius;
}

// A simplex of up to four points, and its point that is nearest to the origin.
class NearestSimplex {
public:
    // Adds a corner, which is one of the corners that carry the nearest point, and returns this point. Zero if the origin is inside.
    Vec3<double> add(const Vec3<double> &point) {
        y[size++] = point;
        const int last = size - 1;
        double least = std::numeric_limits<double>::infinity();
        int best = 0;
        Vec3<double> nearest{};
        for (int chosen = 0; chosen < 1 << last; ++chosen) {
            Vec3<double> v;
            if (!carries(chosen, v)) continue;
            const double square = dot(v, v);
            if (square < least) {
                least = square;
                best = chosen;
                nearest = v;
            }
        }
        int kept = 0;
        for (int k = 0; k < last; ++k)
            if (best >> k & 1) y[kept++] = y[k];
        y[kept++] = point;
        size = kept;
        return size == 4 ? Vec3<double>{0, 0, 0} : nearest;
    }

private:
    Vec3<double> y[4];
    int size = 0;

    // The point of the plane through the last corner and the chosen ones that is nearest to the origin, if it is between them.
    bool carries(int chosen, Vec3<double> &v) const {
        const Vec3<double> &base = y[size - 1];
        Vec3<double> e[3];
        int n = 0;
        for (int k = 0; k < size - 1; ++k)
            if (chosen >> k & 1) e[n++] = y[k] - base;
        v = base;
        if (!n) return true;
        double share[3];
        if (n == 1) {
            const double square = dot(e[0], e[0]);
            if (!(square > 0)) return false;
            share[0] = -dot(e[0], base) / square;
        } else {
            // Shares of two or three edges follow from the vectors that are perpendicular to the other edges.
            const Vec3<double> third = n == 3 ? e[2] : cross(e[0], e[1]);
            const double volume = dot(e[0], cross(e[1], third));
            if (!(volume != 0)) return false;
            share[0] = -dot(base, cross(e[1], third)) / volume;
            share[1] = -dot(base, cross(third, e[0])) / volume;
            if (n == 3) share[2] = -dot(base, cross(e[0], e[1])) / volume;
        }
        double last_share = 1.0;
        for (int k = 0; k < n; ++k) {
            if (!(share[k] >= 0)) return false;
            last_share -= share[k];
            v = v + share[k] * e[k];
        }
        return last_share >= 0;
    }
};

// Whether two cores are farther apart than `margin`, by the search of Gilbert, Johnson and Keerthi, which ends at the first plane between.
inline bool are_apart(const Polytope &a, const Polytope &b, const Vec3<double> *x, const Mat3<double> *R, double margin) {
    constexpr int most = 64;
    constexpr double settled = 1e-12;  // relative gap between both bounds of the squared distance
    NearestSimplex simplex;
    Vec3<double> v = x[0] + R[0] * a.corner(0) - x[1] - R[1] * b.corner(0);
    v = simplex.add(v);
    for (int k = 0; k < most; ++k) {
        const double square = dot(v, v);
        if (!(square > margin * margin)) return false;
        const Vec3<double> w = farthest(a, x[0], R[0], -v) - farthest(b, x[1], R[1], v);
        const double along = dot(v, w);
        if (along > 0 && along * along > margin * margin * square) return true;
        if (square - along <= settled * square) return true;  // v is the nearest point
        v = simplex.add(w);
    }
    return false;
}

}  // namespace torchdojo
