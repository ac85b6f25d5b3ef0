// Linear feedback around a nominal trajectory: u = clip(ū + α k + K (x ⊖ x̄)), where x are states or minimal coordinates.
//
// x ⊖ x̄ of states is the tangent of `Structure.difference`. For minimal coordinates it is q − q̄ and q̇ − q̄˙. An angle of a single rotation
// counts modulo 4π, and a rotation vector r in its representation r + 2πk r/|r| nearest to the nominal one (state/minimal.py).
//
// Environments are taken one at a time, between the steps of their lanes.
#pragma once

#include "elements/joint_motion.hpp"

namespace torchdojo {

class Feedback {
public:
    explicit Feedback(const MechanismTable &m)
        : mechanism(m), bodies(m.num_bodies + 1, MovingBody<double>::world()),
          error(std::max(tangent_size * m.num_bodies, 2 * m.num_coordinates)) {}

    // Writes u of period t of P of environment n, at the state z. Law: TdFeedback. A template, because worker_one.cpp alone compiles it.
    template <class Law>
    void apply(const Law &f, const double *parameters, int64_t n, int64_t t, int64_t periods, const double *z);

private:
    const MechanismTable &mechanism;
    std::vector<MovingBody<double>> bodies;  // the world is the last
    std::vector<double> error;
    static constexpr double turn = 6.28318530717958647692;

    void tangent(const double *z, const double *nominal) {
        double *to = error.data();
        for (int i = 0; i < mechanism.num_bodies; ++i, z += state_size, nominal += state_size, to += tangent_size) {
            for (int k = 0; k < 3; ++k) {
                to[k] = z[k] - nominal[k];
                to[3 + k] = z[3 + k] - nominal[3 + k];
                to[9 + k] = z[10 + k] - nominal[10 + k];
            }
            store3(to + 6, rotation_vector(conjugate(load4(nominal + 6)) * load4(z + 6)).theta);
        }
    }

    void coordinates(const double *parameters, const double *z, const double *nominal) {
        const int n = mechanism.num_coordinates;
        for (int i = 0; i < mechanism.num_bodies; ++i) bodies[i].load(z + state_size * i, parameters[parameter::timestep]);
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            if (!joint.free()) continue;
            const JointMotion<double> motion(joint, parameters, bodies[joint.parent], bodies[joint.child]);
            double *q = &error[link.coordinate], *qd = q + n;
            motion.coordinates(q);
            motion.rates(qd);
            const double *q0 = nominal + link.coordinate, *qd0 = q0 + n;
            if (joint.free_r() > 1) nearest(q + joint.free_t(), q0 + joint.free_t(), joint.free_r());
            for (int k = 0; k < joint.free(); ++k) {
                q[k] -= q0[k];
                qd[k] -= qd0[k];
            }
            if (joint.free_r() == 1) q[joint.free_t()] -= 2.0 * turn * std::nearbyint(q[joint.free_t()] / (2.0 * turn));
        }
    }

    // Sums side by side: in a single one, each addition would wait for the one before.
    static double dot(const double *a, const double *b, int64_t size) {
        Pack sums{};
        int64_t k = 0;
        for (; k + pack_lanes <= size; k += pack_lanes) {
            Pack x, y;
            std::memcpy(&x, a + k, sizeof x);
            std::memcpy(&y, b + k, sizeof y);
            sums += x * y;
        }
        double sum = 0.0;
        for (; k < size; ++k) sum += a[k] * b[k];
        for (int lane = 0; lane < pack_lanes; ++lane) sum += sums[lane];
        return sum;
    }

    // The representation of the rotation vector r that is nearest to another one.
    static void nearest(double *r, const double *to, int size) {
        double squared = 0.0, along = 0.0;
        for (int k = 0; k < size; ++k) {
            squared += r[k] * r[k];
            along += r[k] * to[k];
        }
        const double length = std::sqrt(squared);
        if (!(length > 0.0)) return;
        const double factor = 1.0 + turn * std::nearbyint((along / length - length) / turn) / length;
        for (int k = 0; k < size; ++k) r[k] *= factor;
    }
};

template <class Law>
void Feedback::apply(const Law &f, const double *parameters, int64_t n, int64_t t, int64_t periods, const double *z) {
    const int64_t m = f.inputs, offset = t * m;
    const auto row = [&](const double *array, const int64_t *rows) { return array ? array + rows[n] * periods * m + offset : nullptr; };
    const double *input = row(f.input, f.input_row), *feedforward = row(f.feedforward, f.feedforward_row), *gain = nullptr;
    if (f.gain) {
        gain = f.gain + (f.gain_row[n] * periods + t) * m * f.size;
        const double *nominal = f.nominal + f.nominal_row[n] * f.nominal_stride;
        if (f.minimal) coordinates(parameters, z, nominal + t * 2 * mechanism.num_coordinates);
        else tangent(z, nominal + t * state_size * mechanism.num_bodies);
    }
    double *u = f.applied + n * periods * m + offset;
    for (int64_t i = 0; i < m; ++i) {
        double value = input[i];
        if (feedforward) value += f.scale[n] * feedforward[i];
        if (gain) value += dot(gain + i * f.size, error.data(), f.size);
        // Comparisons keep a value that is not a number, which flags the step.
        u[i] = value < f.lower[offset + i] ? f.lower[offset + i] : value > f.upper[offset + i] ? f.upper[offset + i] : value;
    }
}

extern template void Feedback::apply(const TdFeedback &, const double *, int64_t, int64_t, int64_t, const double *);

}  // namespace torchdojo
