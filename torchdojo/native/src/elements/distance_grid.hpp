// Signed distances on a grid (geometry/grids.py): a cubic B-spline over samples that stand behind the packed parameters of an environment.
#pragma once

#include "elements/ground.hpp"

namespace torchdojo {

// The spline at a place of the box, with derivatives by grid coordinates, in cells.
template <class T>
struct GridValue {
    T s, slope[3], bend[3][3];
    T weight[3][3][4];  // weights of samples along each axis, for the distance, the slope and the bend
    int32_t index[3][lanes<T>];  // of the first of four samples along each axis
};

// rows: per lane, the packed parameters; null in lanes without an environment. place: grid coordinates inside of the box.
template <class T>
__attribute__((noinline)) void grid_at(const PairTable &field, const double *const *rows, const T *place, GridValue<T> &to) {
    const int counts[3] = {field.rows, field.columns, field.layers};
    for (int axis = 0; axis < 3; ++axis) {
        T t;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const double position = get(place[axis], lane), floor = std::floor(position);
            const int before = floor >= 1.0 ? int(std::min(floor, counts[axis] - 3.0)) : 1;
            set(t, lane, position - before);
            to.index[axis][lane] = before - 1;
        }
        cubic_weights(t, to.weight[axis]);
    }
    T samples[4][4][4];
    for (int lane = 0; lane < lanes<T>; ++lane)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j) {
                const int line = (to.index[0][lane] + i) * counts[1] + to.index[1][lane] + j;
                const double *row = rows[lane] ? rows[lane] + field.samples + line * counts[2] + to.index[2][lane] : nullptr;
                for (int k = 0; k < 4; ++k) set(samples[i][j][k], lane, row ? row[k] : 0.0);
            }
    // Sums over z, then over y, then over x, of all derivatives of up to two orders together.
    T values[3][3][3];
    for (int c = 0; c < 3; ++c)
        for (int b = 0; b + c < 3; ++b) {
            T along[4];
            for (int i = 0; i < 4; ++i) {
                along[i] = T{};
                for (int j = 0; j < 4; ++j) {
                    const T *w = to.weight[2][c], *v = samples[i][j];
                    along[i] += to.weight[1][b][j] * (v[0] * w[0] + v[1] * w[1] + v[2] * w[2] + v[3] * w[3]);
                }
            }
            for (int a = 0; a + b + c < 3; ++a) {
                const T *w = to.weight[0][a];
                values[a][b][c] = along[0] * w[0] + along[1] * w[1] + along[2] * w[2] + along[3] * w[3];
            }
        }
    to.s = values[0][0][0];
    for (int i = 0; i < 3; ++i) {
        const int once[3] = {i == 0, i == 1, i == 2};
        to.slope[i] = values[once[0]][once[1]][once[2]];
        for (int j = 0; j < 3; ++j) to.bend[i][j] = values[once[0] + (j == 0)][once[1] + (j == 1)][once[2] + (j == 2)];
    }
}

// A number with its derivatives by the grid coordinates, as a function of what these depend on.
template <class T>
TD_INLINE T through(const T &value, const T *, const T *) {
    return value;
}
template <class T>
TD_INLINE Dual<T> through(const T &value, const T *by, const Dual<T> *place) {
    return make_dual<T>(value, [&](int k) { return by[0] * place[0].d[k] + by[1] * place[1].d[k] + by[2] * place[2].d[k]; });
}

// A ball where the spline has this distance and slope in cells. beyond: how far, in cells, its center is from the box of the grid.
template <class S>
geometry::Witness<S> beside(const Vec3<S> &centre, const S &radius, const S &s, const S *slope, const S *beyond, const S *cell) {
    geometry::Witness<S> result;
    const Vec3<S> gradient = {slope[0] / cell[0], slope[1] / cell[1], slope[2] / cell[2]};
    const S length = sqrt(dot(gradient, gradient));
    for (int k = 0; k < 3; ++k) result.normal[k] = gradient[k] / length;
    result.distance = s + slope[0] * beyond[0] + slope[1] * beyond[1] + slope[2] * beyond[2] - radius;
    result.point = centre - radius * result.normal;
    return result;
}

// Grid coordinates inside of the box, and how far the place is from there.
template <class T, class S>
TD_INLINE void into_box(const PairTable &field, const S *place, S *inside, S *beyond) {
    const double last[3] = {field.rows - 2.0, field.columns - 2.0, field.layers - 2.0};
    for (int k = 0; k < 3; ++k) {
        const S low = S(broadcast<T>(1.0)), high = S(broadcast<T>(last[k]));
        inside[k] = select(place[k] < low, low, select(place[k] > high, high, place[k]));
        beyond[k] = place[k] - inside[k];
    }
}

// p: origin and cell, of the scalar T or S.
template <class T, class S, class P>
geometry::Witness<S> beside_grid(const PairTable &field, const double *const *rows, const Vec3<S> &centre, const S &radius, const P *p) {
    S place[3], cell[3], inside[3], beyond[3], slope[3];
    T at[3];
    for (int k = 0; k < 3; ++k) {
        cell[k] = S(p[parameter::grid::cell + k]);
        place[k] = (centre[k] - S(p[parameter::grid::origin + k])) / cell[k];
    }
    into_box<T>(field, place, inside, beyond);
    for (int k = 0; k < 3; ++k) at[k] = value(inside[k]);
    GridValue<T> spline;
    grid_at<T>(field, rows, at, spline);
    for (int k = 0; k < 3; ++k) slope[k] = through(spline.slope[k], spline.bend[k], inside);
    return beside(centre, radius, through(spline.s, spline.slope, inside), slope, beyond, cell);
}

// Adds the gradient by samples of weight(witness), a linear function of the witness of a ball at this place.
template <class T, class Weight>
void add_grid_samples(ParameterSum<T> &to, const PairTable &field, const double *const *rows, const Vec3<T> &centre, const T &radius,
                      const T *p, const Weight &weight) {
    using S = Dual<T>;
    T place[3], inside[3], beyond[3];
    for (int k = 0; k < 3; ++k) place[k] = (centre[k] - p[parameter::grid::origin + k]) / p[parameter::grid::cell + k];
    into_box<T>(field, place, inside, beyond);
    GridValue<T> spline;
    grid_at<T>(field, rows, inside, spline);
    S s = S(spline.s), slope[3], far[3], cell[3];
    s.d[0] = broadcast<T>(1.0);
    for (int k = 0; k < 3; ++k) {
        slope[k] = S(spline.slope[k]);
        slope[k].d[1 + k] = broadcast<T>(1.0);
        far[k] = S(beyond[k]);
        cell[k] = S(p[parameter::grid::cell + k]);
    }
    const S total = weight(beside(Vec3<S>{S(centre.x), S(centre.y), S(centre.z)}, S(radius), s, slope, far, cell));
    const T *g = total.d;
    const auto &w = spline.weight;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            for (int k = 0; k < 4; ++k) {
                const T level = g[0] * w[0][0][i] + g[1] * w[0][1][i], across = w[0][0][i] * w[2][0][k];
                const T sum = level * w[1][0][j] * w[2][0][k] + g[2] * across * w[1][1][j] + g[3] * w[0][0][i] * w[1][0][j] * w[2][1][k];
                for (int lane = 0; lane < lanes<T>; ++lane) {
                    if (!to.row[lane]) continue;
                    const int line = (spline.index[0][lane] + i) * field.columns + spline.index[1][lane] + j;
                    to.row[lane][field.samples + line * field.layers + spline.index[2][lane] + k] += get(sum, lane);
                }
            }
}

}  // namespace torchdojo
