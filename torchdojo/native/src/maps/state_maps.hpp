// Functions of states that users read beside the step: minimal coordinates and the way back, distances and points of contact, energies.
//
// Each function has a value, a product of a gradient of the value with its derivative, and a product of its derivative with a tangent. The
// packed parameters are held. structure.py, state/minimal.py and dynamics/energy.py are the specification.
#pragma once

#include "elements/pair.hpp"
#include "gradient/tree.hpp"

namespace torchdojo {

template <class T>
class StateMaps {
public:
    explicit StateMaps(const MechanismTable &m)
        : parameters(m.num_parameters), z(state_size * m.num_bodies), bodies(m.num_bodies + 1, MovingBody<T>::world()),
          joints(m.num_joints), mechanism(m), gradients(m.num_bodies + 1), states(m), product(m), by_state(m) {}

    static int in_size(const MechanismTable &m, int64_t map) {
        return map == maps::to_maximal ? 2 * m.num_coordinates : state_size * m.num_bodies;
    }
    static int out_size(const MechanismTable &m, int64_t map) {
        switch (map) {
            case maps::to_minimal: return 2 * m.num_coordinates;
            case maps::to_maximal: return state_size * m.num_bodies;
            case maps::distances: return m.num_contacts;
            case maps::contact_points: return 3 * m.num_contacts;
            default: return 1;
        }
    }

    std::vector<T> parameters, in, along, out;
    const double *samples[lanes<T>] = {};  // samples of height fields, of the environment in each lane

    // The value of a map at `in`.
    void value(int64_t map, const T *in, T *out) {
        if (map == maps::to_maximal) return states.run(parameters.data(), in, in + mechanism.num_coordinates, out);
        load(map, in);
        if (map == maps::to_minimal) {
            each_link([&](const JointMotion<T> &motion, int first, const JointTable &) {
                motion.coordinates(out + first);
                motion.rates(out + mechanism.num_coordinates + first);
            });
        } else if (map == maps::distances || map == maps::contact_points) {
            for (const ContactTable &contact : mechanism.contacts) touch(map, contact, out);
        } else {
            out[0] = map == maps::kinetic_energy ? kinetic<false>() : potential<false>();
        }
    }

    // The gradient by `in`, from the gradient `by_out` of the value.
    void pull(int64_t map, const T *in, const T *by_out, T *by_in) {
        if (map == maps::to_maximal) {
            prepare_tree(in);
            for (int i = 0; i < mechanism.num_bodies; ++i) {
                const StateGradient<T> g = bodies[i].gradient(by_out + state_size * i);
                by_state.x[i] = g.x;
                by_state.v[i] = g.v;
                by_state.phi[i] = g.phi;
                by_state.omega[i] = g.omega;
            }
            product.multiply(by_state);
            std::copy(product.by_q.begin(), product.by_q.end(), by_in);
            std::copy(product.by_qd.begin(), product.by_qd.end(), by_in + mechanism.num_coordinates);
            return;
        }
        load(map, in);
        std::fill(gradients.begin(), gradients.end(), StateGradient<T>{});
        if (map == maps::to_minimal) {
            each_link([&](const JointMotion<T> &motion, int first, const JointTable &joint) {
                motion.add_coordinates(by_out + first, gradients[joint.parent], gradients[joint.child]);
                motion.add_rates(by_out + mechanism.num_coordinates + first, gradients[joint.parent], gradients[joint.child]);
            });
        } else if (map == maps::distances || map == maps::contact_points) {
            const int size = map == maps::distances ? 1 : 3;
            for (const ContactTable &contact : mechanism.contacts)
                add_touch(map, contact, by_out + size * contact.number, gradients[contact.body], gradients[other_body(mechanism, contact)]);
        } else {
            energy_gradient(map, by_out[0]);
        }
        for (int i = 0; i < mechanism.num_bodies; ++i) bodies[i].store(gradients[i], by_in + state_size * i);
    }

    // The tangent of the value for a tangent `change` of `in`. For functions of a state, each number of the value has a gradient on at most
    // two bodies, which is multiplied with their tangents.
    void push(int64_t map, const T *in, const T *change, T *out) {
        if (map == maps::to_maximal) {
            prepare_tree(in);
            product.push(change, change + mechanism.num_coordinates, gradients);
            for (int i = 0; i < mechanism.num_bodies; ++i) {
                StateGradient<T> moved = gradients[i];
                moved.phi = 0.25 * moved.phi;  // dq = ½ q ⊗ (0, φ), and `store` multiplies with 2
                bodies[i].store(moved, out + state_size * i);
            }
            return;
        }
        load(map, in);
        if (map == maps::kinetic_energy || map == maps::potential_energy) {
            std::fill(gradients.begin(), gradients.end(), StateGradient<T>{});
            energy_gradient(map, broadcast<T>(1.0));
            out[0] = T{};
            for (int i = 0; i < mechanism.num_bodies; ++i) out[0] += gradients[i].times(bodies[i].tangent(change + state_size * i));
            return;
        }
        for (int i = 0; i < mechanism.num_bodies; ++i) gradients[i] = bodies[i].tangent(change + state_size * i);
        gradients[mechanism.num_bodies] = StateGradient<T>{};
        T unit[6] = {};
        auto along = [&](int k, int body, int other, auto &&add) {
            StateGradient<T> on_body{}, on_other{};
            unit[k] = broadcast<T>(1.0);
            add(on_body, on_other);
            unit[k] = T{};
            return on_body.times(gradients[body]) + on_other.times(gradients[other]);
        };
        if (map == maps::to_minimal) {
            each_link([&](const JointMotion<T> &motion, int first, const JointTable &joint) {
                for (int k = 0; k < joint.free(); ++k) {
                    out[first + k] = along(k, joint.parent, joint.child, [&](auto &a, auto &b) { motion.add_coordinates(unit, a, b); });
                    out[mechanism.num_coordinates + first + k] =
                        along(k, joint.parent, joint.child, [&](auto &a, auto &b) { motion.add_rates(unit, a, b); });
                }
            });
            return;
        }
        const int size = map == maps::distances ? 1 : 3;
        for (const ContactTable &contact : mechanism.contacts)
            for (int k = 0; k < size; ++k)
                out[size * contact.number + k] =
                    along(k, contact.body, other_body(mechanism, contact), [&](auto &a, auto &b) { add_touch(map, contact, unit, a, b); });
    }

    // The members that TreeProduct reads.
    struct JointPose {
        struct {
            Quat<T> p;
        } now;
    };
    std::vector<T> z;
    std::vector<MovingBody<T>> bodies;  // the world is the last
    std::vector<JointPose> joints;
    T timestep() const { return parameters[parameter::timestep]; }

private:
    const MechanismTable &mechanism;
    std::vector<StateGradient<T>> gradients;  // gradients or tangents, per body
    TreeStates<T> states;
    TreeProduct<T, T> product;
    DataGradient<T> by_state;

    void load(int64_t map, const T *state) {
        const bool moving = map == maps::to_minimal || map == maps::to_maximal || map == maps::kinetic_energy;
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (moving) bodies[i].load(state + state_size * i, timestep());
            else bodies[i].load_pose(state + state_size * i);
        }
    }

    void prepare_tree(const T *in) {
        const int n = mechanism.num_coordinates;
        std::copy_n(in, n, product.q.begin());
        std::copy_n(in + n, n, product.qd.begin());
        states.run(parameters.data(), in, in + n, z.data());
        load(maps::to_maximal, z.data());
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            if (joint.free_r() > 1)
                joints[link.joint].now.p =
                    conjugate(bodies[joint.parent].pose.q * load4(&parameters[joint.parameters] + parameter::orientation)) *
                    bodies[joint.child].pose.q;
        }
        product.prepare(*this);
    }

    JointMotion<T> motion_of(const JointTable &joint) const {
        return {joint, parameters.data(), bodies[joint.parent], bodies[joint.child]};
    }

    // Calls f(motion, first coordinate, joint) on the joints of the tree.
    template <class F>
    void each_link(F &&f) const {
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            if (joint.free()) f(motion_of(joint), link.coordinate, joint);
        }
    }

    // -- contacts ------------------------------------------------------------------------------------------------------------------------

    void touch(int64_t map, const ContactTable &contact, T *out) const {
        const BodyPose<T> &body = bodies[contact.body].pose;
        const T *p = &parameters[contact.parameters];
        T distance;
        Vec3<T> point;
        if (contact.pair < 0) {
            const Vec3<T> normal = load3(p + parameter::normal), centre = body.x + body.R * load3(p + parameter::point);
            distance = dot(normal, centre) - p[parameter::offset] - p[parameter::radius];
            point = centre - p[parameter::radius] * normal;
        } else {
            const PairTable &pair = mechanism.pairs[contact.pair];
            const BodyPose<T> &other = bodies[pair.other].pose;
            const auto nearest =
                witness<T>(pair, body.x, body.R, other.x, other.R, &parameters[pair.shape_a], &parameters[pair.shape_b], samples);
            distance = nearest.distance;
            point = nearest.point;
        }
        if (map == maps::distances) out[contact.number] = distance;
        else store3(out + 3 * contact.number, point);
    }

    // Adds the gradient of weight · (the distance, or the point).
    void add_touch(int64_t map, const ContactTable &contact, const T *weight, StateGradient<T> &on_body, StateGradient<T> &on_other) const {
        const BodyPose<T> &body = bodies[contact.body].pose;
        if (contact.pair < 0) {
            const T *p = &parameters[contact.parameters];
            const Vec3<T> x = map == maps::distances ? weight[0] * load3(p + parameter::normal) : load3(weight);
            on_body.x = on_body.x + x;
            on_body.phi = on_body.phi + cross(load3(p + parameter::point), transposed_times(body.R, x));
            return;
        }
        using S = Dual<T>;
        const PairTable &pair = mechanism.pairs[contact.pair];
        const BodyPose<T> &other = bodies[pair.other].pose;
        Vec3<S> x[2];
        Mat3<S> R[2];
        seed(body, 0, x[0], R[0]);
        if (pair.other < mechanism.num_bodies) {
            seed(other, 6, x[1], R[1]);
        } else {
            x[1] = lift<S>(other.x);
            R[1] = lift<S>(other.R);
        }
        const auto nearest = witness<T>(pair, x[0], R[0], x[1], R[1], &parameters[pair.shape_a], &parameters[pair.shape_b], samples);
        const S sum = map == maps::distances ? weight[0] * nearest.distance
                                             : weight[0] * nearest.point.x + weight[1] * nearest.point.y + weight[2] * nearest.point.z;
        on_body.x = on_body.x + load3(sum.d);
        on_body.phi = on_body.phi + load3(sum.d + 3);
        on_other.x = on_other.x + load3(sum.d + 6);
        on_other.phi = on_other.phi + load3(sum.d + 9);
    }

    // -- energies ------------------------------------------------------------------------------------------------------------------------

    // ½ m v² + ½ ωᵀJω of the bodies, and ½ a rate² of armatures. With `derived`, adds weight times the gradient.
    template <bool derived>
    T kinetic(const T &weight = T{}) {
        T sum{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *p = &parameters[parameter::bodies + parameter::body_size * i];
            const MovingBody<T> &body = bodies[i];
            const Vec3<T> omega = (2.0 / timestep()) * body.a;
            const Mat3<T> J = load33(p + parameter::inertia);
            const Vec3<T> spin = J * omega;
            sum += 0.5 * (p[parameter::mass] * dot(body.v, body.v) + dot(omega, spin));
            if constexpr (!derived) continue;
            gradients[i].v = gradients[i].v + (weight * p[parameter::mass]) * body.v;
            gradients[i].omega = gradients[i].omega + (0.5 * weight) * (spin + transposed_times(J, omega));
        }
        for (const JointTable &joint : mechanism.joints) {
            if (joint.armature < 0) continue;
            const JointMotion<T> motion = motion_of(joint);
            T rate[6];
            motion.rates(rate);
            for (int i = 0; i < joint.free(); ++i) {
                const T momentum = parameters[joint.armature + i] * rate[i];
                sum += 0.5 * momentum * rate[i];
                rate[i] = weight * momentum;
            }
            if constexpr (derived) motion.add_rates(rate, gradients[joint.parent], gradients[joint.child]);
        }
        return sum;
    }

    // −m g·x of the bodies, and ½ k x² + k₂ x³/3 + k₃ x⁴/4 of springs, x = coordinate − rest.
    template <bool derived>
    T potential(const T &weight = T{}) {
        T sum{};
        const Vec3<T> g = load3(&parameters[parameter::gravity]);
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T mass = parameters[parameter::bodies + parameter::body_size * i + parameter::mass];
            sum -= mass * dot(g, bodies[i].pose.x);
            if constexpr (derived) gradients[i].x = gradients[i].x - (weight * mass) * g;
        }
        for (const JointTable &joint : mechanism.joints) {
            if (!joint.has_spring) continue;
            const JointMotion<T> motion = motion_of(joint);
            const T *spring = &parameters[joint.parameters] + joint.spring(), *rest = &parameters[joint.parameters] + joint.rest();
            T q[6];
            motion.coordinates(q);
            for (int i = 0; i < joint.free(); ++i) {
                const T stretch = q[i] - rest[i], force = spring[i] * stretch;
                sum += 0.5 * force * stretch;
                q[i] = weight * force;
                if (joint.curve < 0) continue;
                const T *curve = &parameters[joint.curve + 2 * i], square = stretch * stretch;
                sum += (curve[0] / 3.0 + (0.25 * curve[1]) * stretch) * (square * stretch);
                q[i] += weight * ((curve[0] + curve[1] * stretch) * square);
            }
            if constexpr (derived) motion.add_coordinates(q, gradients[joint.parent], gradients[joint.child]);
        }
        return sum;
    }

    void energy_gradient(int64_t map, const T &weight) {
        if (map == maps::kinetic_energy) kinetic<true>(weight);
        else potential<true>(weight);
    }
};

}  // namespace torchdojo
