// Height fields (geometry/heights.py): a cubic B-spline over samples that stand behind the packed parameters of an environment.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/geometry.hpp"
#include "gradient/adjoint_state.hpp"

namespace torchdojo {

// The surface above a place, with derivatives by grid coordinates, in cells.
template <class T>
struct Heights {
    T s, x, y, xx, xy, yy;
    T weight[2][3][4];  // of samples along x and y: of the height, of the slope, of the curvature
    int32_t index[2][4][lanes<T>];  // of these samples
};

// rows: per lane, the packed parameters; null in lanes without an environment.
template <class T>
Heights<T> heights_at(const PairTable &field, const double *const *rows, const T &x, const T &y) {
    Heights<T> h;
    const T *place[2] = {&x, &y};
    T samples[4][4], along[3][4];
    for (int d = 0; d < 2; ++d) {
        const int last = (d ? field.columns : field.rows) - 1;
        T t;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const double at = get(*place[d], lane), floor = std::floor(at);
            set(t, lane, at - floor);
            // From one cell outside on, all samples are those of the edge. Places that are not a number stay so through t.
            const int before = floor > -2.0 ? int(std::min(floor, last + 2.0)) : -2;
            for (int k = 0; k < 4; ++k) h.index[d][k][lane] = std::clamp(before - 1 + k, 0, last);
        }
        const T u = 1.0 - t;
        T *value = h.weight[d][0], *slope = h.weight[d][1], *bend = h.weight[d][2];
        value[0] = u * u * u * (1.0 / 6.0), value[1] = 2.0 / 3.0 - t * t * (1.0 - 0.5 * t);
        value[2] = 2.0 / 3.0 - u * u * (1.0 - 0.5 * u), value[3] = t * t * t * (1.0 / 6.0);
        slope[0] = -0.5 * u * u, slope[1] = t * (1.5 * t - 2.0), slope[2] = u * (2.0 - 1.5 * u), slope[3] = 0.5 * t * t;
        bend[0] = u, bend[1] = 3.0 * t - 2.0, bend[2] = 1.0 - 3.0 * t, bend[3] = t;
    }
    for (int lane = 0; lane < lanes<T>; ++lane) {
        const double *row = rows[lane];
        for (int i = 0; i < 4; ++i) {
            const int first = field.samples + h.index[0][i][lane] * field.columns;
            for (int j = 0; j < 4; ++j) set(samples[i][j], lane, row ? row[first + h.index[1][j][lane]] : 0.0);
        }
    }
    for (int k = 0; k < 3; ++k)
        for (int i = 0; i < 4; ++i) {
            const T *w = h.weight[1][k];
            along[k][i] = samples[i][0] * w[0] + samples[i][1] * w[1] + samples[i][2] * w[2] + samples[i][3] * w[3];
        }
    const auto sum = [&](int k, int m) {
        const T *w = h.weight[0][k], *a = along[m];
        return w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
    };
    h.s = sum(0, 0), h.x = sum(1, 0), h.y = sum(0, 1), h.xx = sum(2, 0), h.xy = sum(1, 1), h.yy = sum(0, 2);
    return h;
}

// A number with its derivatives by the grid coordinates x and y, as a function of what these depend on.
template <class T>
TD_INLINE T through(const T &value, const T &, const T &, const T &, const T &) {
    return value;
}
template <class T>
TD_INLINE Dual<T> through(const T &value, const T &by_x, const Dual<T> &x, const T &by_y, const Dual<T> &y) {
    return make_dual<T>(value, [&](int k) { return by_x * x.d[k] + by_y * y.d[k]; });
}

// A ball above the tangent plane at the foot of its vertical. height, sx, sy: of the surface there.
template <class T, class S>
geometry::Witness<S> above(const Vec3<S> &centre, const S &radius, const S &height, const S &sx, const S &sy) {
    geometry::Witness<S> result;
    const S one = S(broadcast<T>(1.0)), up = one / sqrt(one + sx * sx + sy * sy);
    result.normal = {-(sx * up), -(sy * up), up};
    result.distance = (centre.z - height) * up - radius;
    result.point = centre - radius * result.normal;
    return result;
}

// p: origin and cell, of the scalar T or S.
template <class T, class S, class P>
geometry::Witness<S> above_ground(const PairTable &field, const double *const *rows, const Vec3<S> &centre, const S &radius, const P *p) {
    const S cells[2] = {S(p[parameter::heights::cell]), S(p[parameter::heights::cell + 1])};
    const S x = (centre.x - S(p[parameter::heights::origin])) / cells[0], y = (centre.y - S(p[parameter::heights::origin + 1])) / cells[1];
    const Heights<T> h = heights_at<T>(field, rows, value(x), value(y));
    const S height = through(h.s, h.x, x, h.y, y), sx = through(h.x, h.xx, x, h.xy, y), sy = through(h.y, h.xy, x, h.yy, y);
    return above<T, S>(centre, radius, height, sx / cells[0], sy / cells[1]);
}

// Adds the gradient by samples of weight(witness), a linear function of the witness of a ball at this place.
template <class T, class Weight>
void add_samples(ParameterSum<T> &to, const PairTable &field, const double *const *rows, const Vec3<T> &centre, const T &radius, const T *p,
                 const Weight &weight) {
    using S = Dual<T>;
    const T *origin = p + parameter::heights::origin, *cell = p + parameter::heights::cell;
    const Heights<T> h = heights_at<T>(field, rows, (centre.x - origin[0]) / cell[0], (centre.y - origin[1]) / cell[1]);
    S height(h.s), x(h.x), y(h.y);
    height.d[0] = x.d[1] = y.d[2] = broadcast<T>(1.0);
    const S total = weight(above<T, S>({S(centre.x), S(centre.y), S(centre.z)}, S(radius), height, x / S(cell[0]), y / S(cell[1])));
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const T(&a)[3][4] = h.weight[0], (&b)[3][4] = h.weight[1];
            const T sum = total.d[0] * (a[0][i] * b[0][j]) + total.d[1] * (a[1][i] * b[0][j]) + total.d[2] * (a[0][i] * b[1][j]);
            for (int lane = 0; lane < lanes<T>; ++lane)
                if (to.row[lane]) to.row[lane][field.samples + h.index[0][i][lane] * field.columns + h.index[1][j][lane]] += get(sum, lane);
        }
}

// The frame of a contact with the ground (n, t₁, t₂), the distance, and their derivatives by x and y of the center of the ball.
template <class T>
struct GroundFrame {
    Vec3<T> axis[3], by[2][3];
    T distance, slope[2];  // of the distance: beside the ones that the normal has
};

template <class T>
GroundFrame<T> ground_frame(const PairTable &field, const double *const *rows, const Vec3<T> &centre, const T &radius, const T *p) {
    GroundFrame<T> f;
    const T *origin = p + parameter::heights::origin, *cell = p + parameter::heights::cell;
    const T ix = inverse_of(cell[0]), iy = inverse_of(cell[1]);
    const Heights<T> h = heights_at<T>(field, rows, (centre.x - origin[0]) / cell[0], (centre.y - origin[1]) / cell[1]);
    const T sx = h.x * ix, sy = h.y * iy, bend[2][2] = {{h.xx * ix * ix, h.xy * ix * iy}, {h.xy * ix * iy, h.yy * iy * iy}};
    const T up = 1.0 / sqrt(1.0 + sx * sx + sy * sy), cubed = up * up * up, a = 1.0 / (1.0 + up);
    const Vec3<T> n = {-(sx * up), -(sy * up), up};
    const T xy = n.x * n.y * a, height = centre.z - h.s;
    f.axis[0] = n, f.axis[1] = {1.0 - n.x * n.x * a, -xy, -n.x}, f.axis[2] = {-xy, 1.0 - n.y * n.y * a, -n.y};
    f.distance = height * up - radius;
    for (int k = 0; k < 2; ++k) {
        const T dz = -cubed * (sx * bend[k][0] + sy * bend[k][1]), da = -a * a * dz;
        const T dx = -(bend[k][0] * up + sx * dz), dy = -(bend[k][1] * up + sy * dz);
        const T across = -((dx * n.y + n.x * dy) * a + n.x * n.y * da);
        f.by[k][0] = {dx, dy, dz};
        f.by[k][1] = {-(2.0 * n.x * dx * a + n.x * n.x * da), across, -dx};
        f.by[k][2] = {across, -(2.0 * n.y * dy * a + n.y * n.y * da), -dy};
        f.slope[k] = height * dz;
    }
    return f;
}

}  // namespace torchdojo
