// Gradients of parameters: products of the multipliers with the derivatives of the residual by the packed parameters of an environment.
// The generated header has their places (`parameter`), and `Program.pack` takes these gradients to the user's parameters (execution.py).
//
// V = −λᵀr is differentiated at fixed z, u and w. V depends on the parameters directly, and on the timestep h also through poses. The next
// poses, with the orientation q ⊗ (c, a), have dx⁺/dh = v⁺ and dφ⁺/dh = ω⁺/c. Poses one step back have dx/dh = −v and dφ/dh = −ω/c, with
// the next velocities for dampers and with the velocities that led here for armature. A half of a split step has its own h, a fixed
// fraction of the h in the parameters.
#pragma once

#include "elements/elements.hpp"

namespace torchdojo {

template <class T>
class ParameterGradient : ParameterSum<T> {
public:
    explicit ParameterGradient(const MechanismTable &m) : ParameterSum<T>{std::vector<T>(m.num_parameters), T{}, {}}, mechanism(m) {}

    // Adds the gradient of the step in `problem` at w, with the multipliers and the derivatives by the next poses of `adjoint`.
    // carried: gradient of the timestep through the next state, from later steps. factor: of the timestep in the parameters.
    void add(const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w, const T &carried, const T &factor) {
        by_timestep = carried;
        for (int i = 0; i < mechanism.num_bodies; ++i) body_product(problem, adjoint, i, w);
        Elements<T>::each([&](auto element) { element.add_parameters(*this, problem, adjoint, w); });
        sum[parameter::timestep] += factor * by_timestep;
    }

    // Sets the rows to which gradients are added, lane by lane: num_parameters numbers each, and samples. Lanes that do not count have null.
    // Several lanes may share a row. Sums of lanes that keep their rows reach them only at the next `flush`.
    void direct(double *const *rows) {
        if (std::equal(rows, rows + lanes<T>, row)) return;
        flush();
        std::copy_n(rows, lanes<T>, row);
    }

    void flush() {
        bool used = false;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!row[lane]) continue;
            used = true;
            for (int k = 0; k < mechanism.num_parameters; ++k) row[lane][k] += get(sum[k], lane);
            row[lane] = nullptr;
        }
        if (used) std::fill(sum.begin(), sum.end(), T{});
    }

private:
    using ParameterSum<T>::sum, ParameterSum<T>::by_timestep, ParameterSum<T>::row;
    const MechanismTable &mechanism;

    // Constant momentum minus the new momentum: m (v − v⁺ + h g) + h f, and c Jω − a × Jω − (c⁺ Jω⁺ + a⁺ × Jω⁺) + h τ. Here a = (h/2) ω and
    // c = √(1 − |a|²), before and after.
    void body_product(const Problem<T> &problem, const AdjointState<T, T> &adjoint, int i, const T *w) {
        const T h = problem.timestep();
        const T *p = problem.body_parameters(i), *state = &problem.z[state_size * i], *wrench = &problem.wrench[6 * i];
        T *out = &sum[parameter::bodies + parameter::body_size * i];
        const Vec3<T> linear = load3(&adjoint.multiplier[6 * i]), angular = load3(&adjoint.multiplier[6 * i + 3]);
        const Vec3<T> g = load3(&problem.parameters[parameter::gravity]), v = load3(w + 6 * i);
        const T mass = p[parameter::mass];
        out[parameter::mass] += dot(linear, load3(state + 3) - v + h * g);
        add3(&sum[parameter::gravity], (h * mass) * linear);
        by_timestep += dot(linear, mass * g + load3(wrench)) + dot(angular, load3(wrench + 3));

        const Mat3<T> J = load33(p + parameter::inertia);
        for (const double sign : {1.0, -1.0}) {  // before, after
            const Vec3<T> omega = sign > 0 ? load3(state + 10) : load3(w + 6 * i + 3), a = (0.5 * h) * omega, spin = J * omega;
            const T c = sqrt(1.0 - dot(a, a)), slope = -0.25 * h * dot(omega, omega) / c;  // ∂c/∂h
            const Vec3<T> u = (sign * c) * angular - cross(angular, a);
            for (int r = 0; r < 3; ++r) add3(out + parameter::inertia + 3 * r, u[r] * omega);
            by_timestep += (sign * slope) * dot(angular, spin) - 0.5 * dot(angular, cross(omega, spin));
        }
        const BodyData<T> &body = problem.bodies[i];
        by_timestep += dot(adjoint.x_next[i], v) + dot(adjoint.phi_next[i], load3(w + 6 * i + 3)) / body.increment.w;
    }
};

}  // namespace torchdojo
