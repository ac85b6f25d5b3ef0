// Tendons at which drives pull: lengths, rates and pulls, which the step takes over, and gradients, to which the step adds its own.
#pragma once

#include "elements/tendon_path.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

template <class T>
class DriveTendons {
public:
    // bodies, z and gradients are those of the drives, at the state of the lanes; the world is the last body. parameters: packed.
    DriveTendons(const MechanismTable &m, const std::vector<MovingBody<T>> &bodies, const std::vector<T> &z,
                 const std::vector<T> &parameters, std::vector<StateGradient<T>> &gradients)
        : m(m), bodies(bodies), z(z), parameters(parameters), gradients(gradients), lengths(m.num_tendons), by_rate(m.num_tendons),
          own_pulls(m.num_tendon_bodies), own_sums{std::vector<T>(m.num_tendons), std::vector<Pull<T>>(m.num_tendon_bodies)} {}

    // Whether some drive pulls at a tendon. Then all tendons are measured, as a step needs them.
    bool active = false;

    void measure() {
        pulls = own_pulls.data();
        for (int i = 0; active && i < m.num_tendons; ++i) lengths[i] = path_of(m.tendons[i]).length(&own_pulls[m.tendons[i].first_body]);
    }

    const T &length(int tendon) const { return lengths[tendon]; }
    T rate(int tendon) const {
        const int first = m.tendons[tendon].first_body;
        T sum{};
        for (int k = first; k < first + m.tendons[tendon].num_bodies; ++k) {
            const int body = m.tendon_bodies[k];
            if (body < m.num_bodies) sum += dot(pulls[k].force, bodies[body].v) + dot(pulls[k].torque, omega(body));
        }
        return sum;
    }

    // Puts lengths and pulls into a problem, in some lanes.
    void keep(const Mask<T> &chosen, Problem<T> &problem) const {
        for (int i = 0; active && i < m.num_tendons; ++i) {
            const TendonTable &tendon = m.tendons[i];
            problem.tendons[i].length = select(chosen, lengths[i], problem.tendons[i].length);
            for (int k = tendon.first_body; k < tendon.first_body + tendon.num_bodies; ++k)
                problem.pulls[k] = select(chosen, pulls[k], problem.pulls[k]);
        }
    }

    // Begins to sum gradients. The problem, if it is given, has measured the tendons in the same lanes, and `waiting` has gradients of its step,
    // to which those of drives are added.
    void begin_gradients(const Problem<T> *problem, TendonGradient<T> *waiting) {
        if (!active) return;
        std::fill(by_rate.begin(), by_rate.end(), T{});
        if (problem) {
            for (int i = 0; i < m.num_tendons; ++i) lengths[i] = problem->tendons[i].length;
            pulls = problem->pulls.data();
            sums = waiting;
        } else {
            measure();
            sums = &own_sums;
            std::fill(sums->by_length.begin(), sums->by_length.end(), T{});
            std::fill(sums->along.begin(), sums->along.end(), Pull<T>{});
        }
    }

    void add_gradient(int tendon, const T &by_length, const T &by_velocity) {
        sums->by_length[tendon] += by_length;
        by_rate[tendon] += by_velocity;
    }

    // Adds the sums to the gradients by the bodies: those of by_length · L + g·c, for directions c that wait, and of by_rate · L̇ = by_rate · g·V.
    void pull_back() {
        for (int i = 0; active && i < m.num_tendons; ++i) pull_back(m.tendons[i], sums->by_length[i], by_rate[i]);
    }

private:
    const MechanismTable &m;
    const std::vector<MovingBody<T>> &bodies;
    const std::vector<T> &z, &parameters;
    std::vector<StateGradient<T>> &gradients;
    std::vector<T> lengths, by_rate;
    const Pull<T> *pulls = nullptr;
    TendonGradient<T> *sums = nullptr;
    std::vector<Pull<T>> own_pulls;
    TendonGradient<T> own_sums;

    Vec3<T> omega(int body) const { return body == m.num_bodies ? Vec3<T>{} : load3(&z[state_size * body + 10]); }
    TendonPath<T> path_of(const TendonTable &tendon) const {
        return {m, tendon, parameters.data(), [&](int body) -> const BodyPose<T> & { return bodies[body].pose; }};
    }

    void pull_back(const TendonTable &tendon, const T &by_length, const T &by_velocity) {
        const TendonPath<T> path = path_of(tendon);
        const Pull<T> *own = &pulls[tendon.first_body];
        Pull<T> *along = &sums->along[tendon.first_body];
        for (int i = 0; i < path.places(); ++i) {
            const int body = path.body(i);
            StateGradient<T> &to = gradients[body];
            along[i].force = along[i].force + by_velocity * bodies[body].v;
            along[i].torque = along[i].torque + by_velocity * omega(body);
            to.v = to.v + by_velocity * own[i].force;
            to.omega = to.omega + by_velocity * own[i].torque;
        }
        Pull<T> by[most_tendon_bodies];
        path.pull_back(own, by_length, along, by);
        for (int place = 0; place < path.places(); ++place) {
            StateGradient<T> &to = gradients[path.body(place)];
            to.x = to.x + by[place].force;
            to.phi = to.phi + by[place].torque;
        }
    }
};

}  // namespace torchdojo
