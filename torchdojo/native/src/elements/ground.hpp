// Height fields (geometry/heights.py): a cubic B-spline over samples that stand behind the packed parameters of an environment.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/geometry.hpp"
#include "gradient/adjoint_state.hpp"

namespace torchdojo {

// The height of a surface and its derivatives by x and y.
template <class T>
struct Relief {
    T s, x, y, xx, xy, yy;
};

// The surface above a place, with derivatives by grid coordinates, in cells.
template <class T>
struct Heights : Relief<T> {
    T xxx, xxy, xyy, yyy;  // if asked for
    T weight[2][3][4];  // weights of samples along x and y, for the height, the slope and the curvature
    int32_t index[2][4][lanes<T>];  // indices of these samples
};

// Weights of four samples, for the spline, its slope and its bend, at t in [0, 1] from the second to the third one.
template <class T>
TD_INLINE void cubic_weights(const T &t, T (&weight)[3][4]) {
    const T u = 1.0 - t;
    T *value = weight[0], *slope = weight[1], *bend = weight[2];
    value[0] = u * u * u * (1.0 / 6.0);
    value[1] = 2.0 / 3.0 - t * t * (1.0 - 0.5 * t);
    value[2] = 2.0 / 3.0 - u * u * (1.0 - 0.5 * u);
    value[3] = t * t * t * (1.0 / 6.0);
    slope[0] = -0.5 * u * u;
    slope[1] = t * (1.5 * t - 2.0);
    slope[2] = u * (2.0 - 1.5 * u);
    slope[3] = 0.5 * t * t;
    bend[0] = u;
    bend[1] = 3.0 * t - 2.0;
    bend[2] = 1.0 - 3.0 * t;
    bend[3] = t;
}

// rows: per lane, the packed parameters; null in lanes without an environment.
template <bool third, class T>
Heights<T> heights_at(const PairTable &field, const double *const *rows, const T &x, const T &y) {
    Heights<T> h;
    const T *place[2] = {&x, &y};
    T samples[4][4], along[4][4];
    for (int d = 0; d < 2; ++d) {
        const int last = (d ? field.columns : field.rows) - 1;
        T t;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const double position = get(*place[d], lane), floor = std::floor(position);
            set(t, lane, position - floor);
            // From one cell outside on, all samples lie on the edge. Places that are not a number stay so through t.
            const int before = floor > -2.0 ? int(std::min(floor, last + 2.0)) : -2;
            for (int k = 0; k < 4; ++k) h.index[d][k][lane] = std::clamp(before - 1 + k, 0, last);
        }
        cubic_weights(t, h.weight[d]);
    }
    for (int lane = 0; lane < lanes<T>; ++lane) {
        const double *row = rows[lane];
        for (int i = 0; i < 4; ++i) {
            const int first = field.samples + h.index[0][i][lane] * field.columns;
            for (int j = 0; j < 4; ++j) set(samples[i][j], lane, row ? row[first + h.index[1][j][lane]] : 0.0);
        }
    }
    const auto jerk = [](const T *a) { return 3.0 * (a[1] - a[2]) + a[3] - a[0]; };  // the third derivative is constant in a cell
    for (int k = 0; k < 3; ++k)
        for (int i = 0; i < 4; ++i) {
            const T *w = h.weight[1][k];
            along[k][i] = samples[i][0] * w[0] + samples[i][1] * w[1] + samples[i][2] * w[2] + samples[i][3] * w[3];
        }
    const auto sum = [&](int k, int m) {
        const T *w = h.weight[0][k], *a = along[m];
        return w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
    };
    h.s = sum(0, 0);
    h.x = sum(1, 0);
    h.y = sum(0, 1);
    h.xx = sum(2, 0);
    h.xy = sum(1, 1);
    h.yy = sum(0, 2);
    if constexpr (third) {
        for (int i = 0; i < 4; ++i) along[3][i] = jerk(samples[i]);
        h.xxx = jerk(along[0]);
        h.xxy = sum(2, 1);
        h.xyy = sum(1, 2);
        h.yyy = sum(0, 3);
    }
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

// A ball above a surface (HeightField.gap): the distance to the tangent plane at the foot of its vertical, with the normal ∇φ/|∇φ|.
template <class T, class S>
geometry::Witness<S> above(const Vec3<S> &centre, const S &radius, const Relief<S> &relief) {
    geometry::Witness<S> result;
    const S one = S(broadcast<T>(1.0)), square = one / (one + relief.x * relief.x + relief.y * relief.y), height = centre.z - relief.s;
    const S across = height * square;
    const S a = relief.x + across * (relief.x * relief.xx + relief.y * relief.xy),
            b = relief.y + across * (relief.x * relief.xy + relief.y * relief.yy);
    const S up = one / sqrt(one + a * a + b * b);
    result.normal = {-(a * up), -(b * up), up};
    result.distance = height * sqrt(square) - radius;
    result.point = centre - radius * result.normal;
    return result;
}

// From derivatives by grid coordinates to derivatives by lengths.
template <class S>
TD_INLINE Relief<S> in_meters(const Relief<S> &h, const S &cell_x, const S &cell_y) {
    const S x = h.x / cell_x, y = h.y / cell_y;
    return {h.s, x, y, h.xx / (cell_x * cell_x), h.xy / (cell_x * cell_y), h.yy / (cell_y * cell_y)};
}

// p: origin and cell, of the scalar T or S.
template <class T, class S, class P>
geometry::Witness<S> above_ground(const PairTable &field, const double *const *rows, const Vec3<S> &centre, const S &radius, const P *p) {
    const S cells[2] = {S(p[parameter::heights::cell]), S(p[parameter::heights::cell + 1])};
    const S x = (centre.x - S(p[parameter::heights::origin])) / cells[0], y = (centre.y - S(p[parameter::heights::origin + 1])) / cells[1];
    const Heights<T> h = heights_at<!std::is_same_v<S, T>, T>(field, rows, value(x), value(y));
    const Relief<S> relief = {through(h.s, h.x, x, h.y, y),      through(h.x, h.xx, x, h.xy, y),    through(h.y, h.xy, x, h.yy, y),
                              through(h.xx, h.xxx, x, h.xxy, y), through(h.xy, h.xxy, x, h.xyy, y), through(h.yy, h.xyy, x, h.yyy, y)};
    return above<T, S>(centre, radius, in_meters(relief, cells[0], cells[1]));
}

// Adds the gradient by samples of weight(witness), a linear function of the witness of a ball at this place.
template <class T, class Weight>
void add_samples(ParameterSum<T> &to, const PairTable &field, const double *const *rows, const Vec3<T> &centre, const T &radius, const T *p,
                 const Weight &weight) {
    using S = Dual<T>;
    const T *origin = p + parameter::heights::origin, *cell = p + parameter::heights::cell;
    const Heights<T> h = heights_at<false, T>(field, rows, (centre.x - origin[0]) / cell[0], (centre.y - origin[1]) / cell[1]);
    Relief<S> relief = {S(h.s), S(h.x), S(h.y), S(h.xx), S(h.xy), S(h.yy)};
    S *entries[6] = {&relief.s, &relief.x, &relief.y, &relief.xx, &relief.xy, &relief.yy};
    for (int k = 0; k < 6; ++k) entries[k]->d[k] = broadcast<T>(1.0);
    const S total = weight(above<T, S>({S(centre.x), S(centre.y), S(centre.z)}, S(radius), in_meters(relief, S(cell[0]), S(cell[1]))));
    const T *g = total.d;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const T(&a)[3][4] = h.weight[0], (&b)[3][4] = h.weight[1];
            const T level = g[0] * a[0][i] + g[1] * a[1][i] + g[3] * a[2][i], slope = g[2] * a[0][i] + g[4] * a[1][i];
            const T sum = level * b[0][j] + slope * b[1][j] + g[5] * (a[0][i] * b[2][j]);
            for (int lane = 0; lane < lanes<T>; ++lane)
                if (to.row[lane]) to.row[lane][field.samples + h.index[0][i][lane] * field.columns + h.index[1][j][lane]] += get(sum, lane);
        }
}

// The frame of a contact with the ground (n, t₁, t₂) and the distance φ. n has the direction (−a, −b, 1).
template <class T>
struct GroundFrame {
    Vec3<T> axis[3], by[2][3];  // derivatives of the axes by a and b
    Vec3<T> tilt[2];  // derivatives of a and b by the center of the ball
    T distance, steepness;  // |∇φ|
};

// (a, b) = ∇s + w q with q = ∇½|∇s|² and w = (z − s) n_z², as in `above`.
template <bool derived, class T>
TD_INLINE GroundFrame<T> ground_frame(const PairTable &field, const double *const *rows, const Vec3<T> &centre, const T &radius,
                                      const T *p) {
    GroundFrame<T> f;
    const T *origin = p + parameter::heights::origin, *cell = p + parameter::heights::cell;
    const T ix = inverse_of(cell[0]), iy = inverse_of(cell[1]), ixx = ix * ix, ixy = ix * iy, iyy = iy * iy;
    const Heights<T> h = heights_at<derived, T>(field, rows, (centre.x - origin[0]) * ix, (centre.y - origin[1]) * iy);
    const T sx = h.x * ix, sy = h.y * iy, xx = h.xx * ixx, xy = h.xy * ixy, yy = h.yy * iyy;
    const T square = inverse_of(1.0 + sx * sx + sy * sy), height = centre.z - h.s, w = height * square;
    const T qx = sx * xx + sy * xy, qy = sx * xy + sy * yy;
    const T a = sx + w * qx, b = sy + w * qy, length = root(1.0 + a * a + b * b), up = inverse_of(length), share = inverse_of(1.0 + up);
    const Vec3<T> n = {-(a * up), -(b * up), up};
    const T across = n.x * n.y * share, level = root(square);
    f.axis[0] = n;
    f.axis[1] = {1.0 - n.x * n.x * share, -across, -n.x};
    f.axis[2] = {-across, 1.0 - n.y * n.y * share, -n.y};
    f.distance = height * level - radius;
    if constexpr (!derived) return f;
    f.steepness = level * length;
    const T xxx = h.xxx * ixx * ix, xxy = h.xxy * ixx * iy, xyy = h.xyy * ix * iyy, yyy = h.yyy * iyy * iy;
    const T fall = 2.0 * w * square, wx = -(sx * square + fall * qx), wy = -(sy * square + fall * qy);
    const T qxy = xy * (xx + yy) + sx * xxy + sy * xyy;
    f.tilt[0] = {xx + wx * qx + w * (xx * xx + xy * xy + sx * xxx + sy * xxy), xy + wy * qx + w * qxy, square * qx};
    f.tilt[1] = {xy + wx * qy + w * qxy, yy + wy * qy + w * (xy * xy + yy * yy + sx * xyy + sy * yyy), square * qy};
    for (int k = 0; k < 2; ++k) {
        const T along = up * n[k], dz = up * along, dshare = -share * share * dz;
        const T dx = along * n.x - (k ? T{} : up), dy = along * n.y - (k ? up : T{});
        const T turn = -((dx * n.y + n.x * dy) * share + n.x * n.y * dshare);
        f.by[k][0] = {dx, dy, dz};
        f.by[k][1] = {-(2.0 * n.x * dx * share + n.x * n.x * dshare), turn, -dx};
        f.by[k][2] = {turn, -(2.0 * n.y * dy * share + n.y * n.y * dshare), -dy};
    }
    return f;
}

}  // namespace torchdojo
