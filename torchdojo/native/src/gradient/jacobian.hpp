// The whole derivative of the step on the tangent space. The rows of the velocities go through the transposed system: 6 nb solves instead
// of one per column (12 nb + nu).
//
// With T = double, the rows of one environment are solved side by side in lanes. Its matrix stays in the nearest cache, where the matrices
// of eight environments do not fit. The matrix is read once for eight rows. With T = Pack, lanes are environments, because one or two
// bodies have too few rows to fill the lanes.
#pragma once

#include "gradient/gradient.hpp"

namespace torchdojo {

template <class T>
class StepJacobian {
public:
    static constexpr int width = pack_lanes / lanes<T>;  // rows per solve

    explicit StepJacobian(const MechanismTable &m) : mechanism(m), adjoint(m), right(m.num_unknowns) {}

    // Reads `step` and `w` of up to `lanes<T>` jobs. Each of `out` is (12 nb, 12 nb + nu). `gradient` loads and smooths.
    void run(const GradientJob *jobs, int count, double *const *out, const Options &options, const double *shared,
             StepGradient<T> &gradient) {
        gradient.load(jobs, count, options, shared);
        Stepper<T> &stepper = gradient.stepper;
        const std::vector<T> &solution = gradient.solution;
        adjoint.give = options.limit ? gradient.give.data() : nullptr;
        adjoint.factor(stepper.problem, stepper.cones, solution.data());
        const int rows = 6 * mechanism.num_bodies;
        int completed = 0, fetched = 0;
        for (int first = 0; first < rows; first += width) {
            const int size = std::min(width, rows - first);
            if constexpr (width == 1) {
                right[first] = broadcast<Pack>(1.0);
            } else {
                for (int k = 0; k < size; ++k) set(right[first + k], k, 1.0);
            }
            for (; 6 * fetched < first + size; ++fetched)
                for (int j = 0; j < count; ++j) fetch(out[j] + size_t(columns()) * tangent_size * fetched);
            adjoint.solve(stepper.problem, solution.data(), right.data(), false, true);
            std::fill_n(&right[first], size, Pack{});
            adjoint.multiply(stepper.problem, solution.data());
            for (int j = 0; j < count; ++j)
                for (int k = 0; k < size; ++k) store_row(out[j], first + k, width == 1 ? j : k);
            for (; 6 * (completed + 1) <= first + size; ++completed)
                for (int j = 0; j < count; ++j) complete(stepper.problem, gradient.w, j, out[j], completed);
        }
    }

private:
    const MechanismTable &mechanism;
    Adjoint<T, Pack> adjoint;
    std::vector<Pack> right;

    int columns() const { return tangent_size * mechanism.num_bodies + mechanism.num_inputs; }

    // Fetches the rows of a body into the cache before they are written. Waiting for them would take a fifth of the time.
    void fetch(const double *rows) const {
        for (int k = 0; k < tangent_size * columns(); k += 8) __builtin_prefetch(rows + k, 1);
    }

    // Derivative of one velocity: row 3-5 (v) or 9-11 (ω) of a body's twelve rows.
    void store_row(double *out, int row, int lane) {
        const int body = row / 6, part = row % 6;
        double *to = out + size_t(columns()) * (tangent_size * body + (part < 3 ? 3 + part : 6 + part));
        const DataGradient<Pack> &g = adjoint.gradient;
        const double *x = in_lane(&g.x[0].x, lane), *v = in_lane(&g.v[0].x, lane);
        const double *phi = in_lane(&g.phi[0].x, lane), *omega = in_lane(&g.omega[0].x, lane), *u = in_lane(g.u.data(), lane);
        for (int k = 0; k < 3 * mechanism.num_bodies; k += 3, to += tangent_size)
            for (int r = 0; r < 3; ++r) {
                const int place = pack_lanes * (k + r);
                to[r] = x[place];
                to[3 + r] = v[place];
                to[6 + r] = phi[place];
                to[9 + r] = omega[place];
            }
        for (int k = 0; k < mechanism.num_inputs; ++k) to[k] = u[pack_lanes * k];
    }
    // Every `pack_lanes`-th double from the result on lies in the same lane of consecutive packs.
    static const double *in_lane(const Pack *first, int lane) { return reinterpret_cast<const double *>(first) + lane; }

    // Rows of the pose of a body: dx⁺ = dx + h dv⁺, dφ⁺ = R(increment)ᵀ dφ + M dω⁺, at the velocities of the step itself.
    void complete(const Problem<T> &problem, const std::vector<T> &w, int lane, double *out, int i) const {
        const int n = columns();
        const double h = get(problem.timestep(), lane);
        double *x = out + size_t(n) * tangent_size * i, *phi = x + 6 * n;
        const double *__restrict v = x + 3 * n, *__restrict omega = x + 9 * n;
        const T *spin = &w[6 * i + 3];
        const Vec3<double> a = (0.5 * h) * Vec3<double>{get(spin[0], lane), get(spin[1], lane), get(spin[2], lane)};
        const double c = std::sqrt(1.0 - dot(a, a));
        const Mat3<double> turn = rotation_matrix(Quat<double>{c, a});
        double M[9];
        for (int r = 0; r < 3; ++r)
            for (int k = 0; k < 3; ++k) M[3 * r + k] = h * ((r == k ? c : 0.0) + a[r] * a[k] / c);
        add_skew(M, 3, -h * a);
        for (int r = 0; r < 3; ++r) {
            double *__restrict dx = x + r * n, *__restrict dphi = phi + r * n;
            const double *m = M + 3 * r;
            for (int k = 0; k < n; ++k) dx[k] = h * v[r * n + k];
            for (int k = 0; k < n; ++k) dphi[k] = m[0] * omega[k] + m[1] * omega[n + k] + m[2] * omega[2 * n + k];
            dx[tangent_size * i + r] += 1.0;
            for (int k = 0; k < 3; ++k) dphi[tangent_size * i + 6 + k] += turn.m[3 * k + r];
        }
    }
};

}  // namespace torchdojo
