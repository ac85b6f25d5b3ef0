// The whole derivative of the step on the tangent space, row by row of the velocities through the transposed system: 6 nb solves instead of
// one per column (12 nb + nu). The rows of one environment are solved side by side in lanes: its matrix stays in the nearest cache, where
// those of eight environments would not, and is read once for eight rows.
#pragma once

#include "gradient.hpp"

namespace torchdojo {

class StepJacobian {
public:
    explicit StepJacobian(const MechanismTable &m)
        : mechanism(m), adjoint(m), right(m.num_unknowns) {}

    // Of a job, `step` and `w` are read. out: (12 nb, 12 nb + nu). `gradient` loads and smooths.
    void run(const GradientJob &job, double *out, const Options &options, const double *shared, StepGradient<double> &gradient) {
        gradient.load(&job, 1, options, shared);
        Stepper<double> &stepper = gradient.stepper;
        const std::vector<double> &solution = gradient.solution;
        adjoint.give = options.limit ? gradient.give.data() : nullptr;
        adjoint.factor(stepper.problem, stepper.cones, solution.data());
        const int rows = 6 * mechanism.num_bodies;
        int completed = 0, fetched = 0;
        for (int first = 0; first < rows; first += pack_lanes) {
            const int count = std::min(pack_lanes, rows - first);
            for (int k = 0; k < count; ++k) set(right[first + k], k, 1.0);
            for (; 6 * fetched < first + count; ++fetched) fetch(out + size_t(columns()) * tangent_size * fetched);
            adjoint.solve(stepper.problem, solution.data(), right.data(), false, true);
            std::fill_n(&right[first], count, Pack{});
            adjoint.multiply(stepper.problem, solution.data());
            for (int k = 0; k < count; ++k) store_row(out, first + k, k);
            for (; 6 * (completed + 1) <= first + count; ++completed) complete(stepper.problem, gradient.w, out, completed);
        }
    }

private:
    const MechanismTable &mechanism;
    Adjoint<double, Pack> adjoint;
    std::vector<Pack> right;

    int columns() const { return tangent_size * mechanism.num_bodies + mechanism.num_inputs; }

    // The rows of a body into the cache, to be there when they are written (a fifth of the time went into waiting for them).
    void fetch(const double *rows) const {
        for (int k = 0; k < tangent_size * columns(); k += 8) __builtin_prefetch(rows + k, 1);
    }

    // Derivative of one velocity: rows of v (3-5 of a body's twelve) and ω (9-11).
    void store_row(double *out, int row, int lane) {
        const int body = row / 6, part = row % 6;
        double *to = out + size_t(columns()) * (tangent_size * body + (part < 3 ? 3 + part : 6 + part));
        const DataGradient<Pack> &g = adjoint.gradient;
        const double *x = in_lane(&g.x[0].x, lane), *v = in_lane(&g.v[0].x, lane);
        const double *phi = in_lane(&g.phi[0].x, lane), *omega = in_lane(&g.omega[0].x, lane), *u = in_lane(g.u.data(), lane);
        for (int k = 0; k < 3 * mechanism.num_bodies; k += 3, to += tangent_size)
            for (int r = 0; r < 3; ++r) {
                const int at = pack_lanes * (k + r);
                to[r] = x[at], to[3 + r] = v[at], to[6 + r] = phi[at], to[9 + r] = omega[at];
            }
        for (int k = 0; k < mechanism.num_inputs; ++k) to[k] = u[pack_lanes * k];
    }
    // Every `pack_lanes`-th double from there is in that lane of consecutive packs.
    static const double *in_lane(const Pack *first, int lane) { return reinterpret_cast<const double *>(first) + lane; }

    // Rows of the pose of a body: dx⁺ = dx + h dv⁺, dφ⁺ = R(increment)ᵀ dφ + M dω⁺, at the velocities of the step itself.
    void complete(const Problem<double> &problem, const std::vector<double> &w, double *out, int i) const {
        const int n = columns();
        const double h = problem.timestep();
        double *x = out + size_t(n) * tangent_size * i, *phi = x + 6 * n;
        const double *__restrict v = x + 3 * n, *__restrict omega = x + 9 * n;
        const Vec3<double> a = (0.5 * h) * load3(&w[6 * i + 3]);
        const double c = std::sqrt(1.0 - dot(a, a));
        const Mat3<double> turn = rotation_matrix(Quat<double>{c, a});
        double M[9];
        for (int r = 0; r < 3; ++r)
            for (int k = 0; k < 3; ++k) M[3 * r + k] = h * ((r == k ? c : 0.0) + a[r] * a[k] / c);
        M[1] += h * a.z, M[2] -= h * a.y, M[3] -= h * a.z, M[5] += h * a.x, M[6] += h * a.y, M[7] -= h * a.x;
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
