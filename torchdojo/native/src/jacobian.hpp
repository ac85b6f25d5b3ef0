// The whole derivative of the step on the tangent space, row by row of the velocities through the transposed system: 6 nb solves instead of
// one per column (12 nb + nu). With T = double, R = Pack the rows of one environment are solved side by side in lanes.
#pragma once

#include "gradient.hpp"

namespace torchdojo {

template <class T, class R>
class StepJacobian {
public:
    static constexpr int width = lanes<R> / lanes<T>;  // rows per solve

    explicit StepJacobian(const MechanismTable &m)
        : mechanism(m), adjoint(m), right(m.num_unknowns) {}

    // Up to `lanes<T>` jobs, of which `step` and `w` are read; out[j]: (12 nb, 12 nb + nu). `gradient` loads and smooths.
    void run(const GradientJob *jobs, double *const *out, int count, const Options &options, const double *shared,
             StepGradient<T> &gradient) {
        gradient.load(jobs, count, options, shared);
        Stepper<T> &stepper = gradient.stepper;
        const std::vector<T> &solution = gradient.solution, &w = gradient.w;
        adjoint.give = options.limit ? gradient.give.data() : nullptr;
        adjoint.factor(stepper.problem, stepper.cones, solution.data());
        const int rows = 6 * mechanism.num_bodies;
        for (int first = 0; first < rows; first += width) {
            std::fill(right.begin(), right.end(), R{});
            for (int k = 0; k < width && first + k < rows; ++k) {
                if constexpr (width == 1) right[first] = broadcast<R>(1.0);
                else set(right[first + k], k, 1.0);
            }
            adjoint.solve(stepper.problem, solution.data(), right.data());
            adjoint.multiply(stepper.problem, solution.data());
            for (int lane = 0; lane < count; ++lane)
                for (int k = 0; k < width && first + k < rows; ++k) store_row(out[lane], first + k, width == 1 ? lane : k);
        }
        for (int lane = 0; lane < count; ++lane) complete(stepper.problem, w, out[lane], lane);
    }

private:
    const MechanismTable &mechanism;
    Adjoint<T, R> adjoint;
    std::vector<R> right;

    int columns() const { return tangent_size * mechanism.num_bodies + mechanism.num_inputs; }

    // Derivative of one velocity: rows of v (3-5 of a body's twelve) and ω (9-11).
    void store_row(double *out, int row, int lane) {
        const int body = row / 6, part = row % 6;
        double *to = out + size_t(columns()) * (tangent_size * body + (part < 3 ? 3 + part : 6 + part));
        const DataGradient<R> &g = adjoint.gradient;
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 3; ++k) {
                to[tangent_size * i + k] = get(g.x[i][k], lane);
                to[tangent_size * i + 3 + k] = get(g.v[i][k], lane);
                to[tangent_size * i + 6 + k] = get(g.phi[i][k], lane);
                to[tangent_size * i + 9 + k] = get(g.omega[i][k], lane);
            }
        for (int k = 0; k < mechanism.num_inputs; ++k) to[tangent_size * mechanism.num_bodies + k] = get(g.u[k], lane);
    }

    // Rows of the pose: dx⁺ = dx + h dv⁺, dφ⁺ = R(increment)ᵀ dφ + M dω⁺, at the velocities of the step itself.
    void complete(const Problem<T> &problem, const std::vector<T> &w, double *out, int lane) {
        const int n = columns();
        const double h = get(problem.timestep(), lane);
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            double *x = out + size_t(n) * tangent_size * i, *v = x + 3 * n, *phi = x + 6 * n, *omega = x + 9 * n;
            Vec3<double> a;
            for (int k = 0; k < 3; ++k) a[k] = 0.5 * h * get(w[6 * i + 3 + k], lane);
            const double c = std::sqrt(1.0 - dot(a, a));
            const Mat3<double> turn = rotation_matrix(Quat<double>{c, a});
            double M[9];
            for (int r = 0; r < 3; ++r)
                for (int k = 0; k < 3; ++k) M[3 * r + k] = h * ((r == k ? c : 0.0) + a[r] * a[k] / c);
            M[1] += h * a.z, M[2] -= h * a.y, M[3] -= h * a.z, M[5] += h * a.x, M[6] += h * a.y, M[7] -= h * a.x;
            for (int k = 0; k < n; ++k)
                for (int r = 0; r < 3; ++r) {
                    x[r * n + k] = h * v[r * n + k];
                    phi[r * n + k] = M[3 * r] * omega[k] + M[3 * r + 1] * omega[n + k] + M[3 * r + 2] * omega[2 * n + k];
                }
            for (int r = 0; r < 3; ++r) {
                x[r * n + tangent_size * i + r] += 1.0;
                for (int k = 0; k < 3; ++k) phi[r * n + tangent_size * i + 6 + k] += turn.m[3 * k + r];
            }
        }
    }
};

}  // namespace torchdojo
