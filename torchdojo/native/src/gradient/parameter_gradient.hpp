// Gradients of parameters: products of the multipliers with the derivatives of the residual by the packed parameters of an environment
// (their places are those of `parameter` in mechanism.hpp; program.py takes these gradients on to what users give).
//
// V = −λᵀr is differentiated at fixed z, u and w. It depends on the parameters directly, and on the timestep h also through the poses that
// steps lead to: dx⁺/dh = v⁺, dφ⁺/dh = ω⁺/c with the next orientation q ⊗ (c, a), and for poses one step back (of dampers, with the next
// velocities, and of armature, with those that led here) dx/dh = −v, dφ/dh = −ω/c. A half of a split step has its own h, a fixed fraction
// of the one in the parameters.
#pragma once

#include "gradient/adjoint_contact.hpp"
#include "gradient/joint_gradient.hpp"

namespace torchdojo {

// V by where and how two surfaces touch, in the world frame: the distance φ⁺, the contact frame, and the lever on each body.
template <class T>
struct TouchGradient {
    T distance;
    Vec3<T> n, t1, t2, lever[2];
};

template <class T>
class ParameterGradient {
public:
    explicit ParameterGradient(const MechanismTable &m) : mechanism(m), sum(m.num_parameters) {}

    // Adds the gradient of a step at w: the one of `problem`, whose multipliers and derivatives by the next poses are those of `adjoint`.
    // carried: what the timestep changes of the next state, seen from later steps. factor: of the timestep in the parameters.
    void add(const Problem<T> &problem, const Adjoint<T, T> &adjoint, const T *w, const T &carried, const T &factor) {
        by_timestep = carried;
        for (int i = 0; i < mechanism.num_bodies; ++i) body_product(problem, adjoint, i, w);
        for (int j = 0; j < mechanism.num_joints; ++j) joint_product(problem, adjoint, mechanism.joints[j], problem.joints[j], w);
        for (int c = 0; c < mechanism.num_couplings; ++c) coupling_product(problem, adjoint, c, w);
        for (int c = 0; c < mechanism.num_contacts; ++c) contact_product(problem, adjoint, c, w);
        sum[parameter::timestep] += factor * by_timestep;
    }

    // Lane by lane, the rows (num_parameters numbers each) that gradients are added to; null for lanes that do not count. Several lanes may
    // share a row. Sums of lanes that keep their rows reach them at the next `flush` only.
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
    const MechanismTable &mechanism;
    std::vector<T> sum;
    double *row[lanes<T>] = {};
    T by_timestep;

    // Known momentum less the new one: m (v − v⁺ + h g) + h f, and c Jω − a × Jω − (c⁺ Jω⁺ + a⁺ × Jω⁺) + h τ with a = (h/2) ω and
    // c = √(1 − |a|²), before and after.
    void body_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int i, const T *w) {
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

    void joint_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, const JointTable &joint, const JointData<T> &data,
                       const T *w) {
        JointGradient<T> g(problem, adjoint.multiplier.data(), joint, data, &sum[joint.parameters]);
        g.add_impulse(joint_impulse(problem, joint, data, w));
        if (joint.held()) {  // multipliers act now, their rows hold at the next configuration
            const Quat<T> &now = data.now.p, &next = data.next.p;
            const Vec3<T> d = problem.displacement(joint, data, data.next);
            Vec3<T> weight{}, mu{};
            for (int k = 0; k < joint.held(); ++k) {
                bool translation;
                const Vec3<T> c = joint_direction(problem, joint, k, translation);
                const T m = adjoint.multiplier[joint.row + k], x = w[joint.row + k];
                if (translation) weight = weight - m * c;
                else mu = mu + m * c;
                g.add_held(k, translation ? x * g.along - m * d : (0.5 * x) * (now.w * g.about + cross(g.about, now.v)) - m * next.v);
            }
            g.add_displacement(problem.bodies[joint.parent].next, problem.bodies[joint.child].next, weight, d);
            g.add_turn(0.5 * (next.w * mu + cross(next.v, mu)));
        }
        if (joint.free()) free_product(problem, g, w);
        if (joint.free_data >= 0) moving_product(problem, adjoint, g, problem.free[joint.free_data]);
        g.finish();
    }

    // Impulses along the free directions f, and what springs and dampers depend on: for translations the displacements now and one step
    // back, for rotations the rotation vectors of p and from p one step back to p. Springs and dampers that are zero everywhere are left
    // out of the step, but not of its gradient.
    void free_product(const Problem<T> &problem, JointGradient<T> &g, const T *w) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const T h = problem.timestep();
        const int free = joint.free();
        const bool acts = free_acts(joint), implicit = joint.has_damper || joint.free_data >= 0;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const BodyPose<T> parent_back = parent.one_step_back(), child_back = child.one_step_back();
        const Relative<T> back = problem.relative(joint, parent_back, child_back, data.offset_quaternion);
        const Vec3<T> d = problem.displacement(joint, data, data.now), d_back = problem.displacement(joint, data, back);
        RotationVector<T> angle{}, turn{};
        if (joint.free_r()) {
            angle = joint.has_spring ? data.angle : rotation_vector(data.now.p);
            turn = joint.has_damper ? data.turn : rotation_vector(conjugate(back.p) * data.now.p);
        }
        const T *p = &problem.parameters[joint.parameters];
        const T *spring = p + joint.spring(), *damper = p + joint.damper(), *rest = p + joint.rest();
        T *by_p = &sum[joint.parameters];
        T *by_spring = by_p + joint.spring(), *by_damper = by_p + joint.damper(), *by_rest = by_p + joint.rest();
        Vec3<T> pulls[2] = {}, drags[2] = {};  // weights for translations and rotations
        for (int i = 0; i < free; ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            const Vec3<T> &sigma = translation ? g.along : g.about;
            const Vec3<T> position = translation ? d : angle.theta, change = translation ? d - d_back : turn.theta;
            const T power = dot(f, sigma), pull = h * spring[i] * power, drag = damper[i] * power;
            by_spring[i] += h * power * (rest[i] - dot(f, position));  // h spring (rest − coordinate)
            by_rest[i] += pull;
            by_damper[i] -= power * dot(f, change);                    // −damper f·change
            Vec3<T> by_f = -pull * position - drag * change;
            if (acts) {
                by_f = by_f + (implicit ? data.free_force[i] + data.impulse[i] : data.free_force[i]) * sigma;
                by_timestep += data.free_force[i] * power / h;
            }
            g.add_free(i, by_f);
            Vec3<T> &of_spring = pulls[translation ? 0 : 1], &of_damper = drags[translation ? 0 : 1];
            of_spring = of_spring - pull * f, of_damper = of_damper - drag * f;
        }
        if (joint.has_spring || joint.has_damper) g.add_displacement(parent.pose, child.pose, pulls[0] + drags[0], d);
        if (joint.has_spring) g.add_turn(-right_jacobian_inverse(angle, pulls[1]));
        if (!joint.has_damper) return;
        g.add_displacement(parent_back, child_back, -drags[0], d_back);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto by_back = translation_gradient(parent_back, child_back, data.offset, back, anchor, -drags[0]);
        const Vec3<T> turned = right_jacobian_inverse(turn, drags[1]);
        by_back.phi_child = by_back.phi_child - turned;
        by_back.phi_parent = by_back.phi_parent + data.offset * (rotation_matrix(back.p) * turned);
        step_back(problem, joint, by_back, [&](int b) { return w + 6 * b; }, [&](int b) { return w + 6 * b + 3; });
    }

    // Armature, limits and friction: rates ċ⁺ of the step and ċ of the one before, and coordinates c⁺ (see Adjoint::moving_product).
    void moving_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, JointGradient<T> &g, const FreeData<T> &from) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const T inverse = 1.0 / problem.timestep();
        const bool armature = joint.armature >= 0;
        for (int e = 0; e < joint.extra; ++e)
            g.add_free(joint.free_t() + e, from.extra_impulse[e] * left_jacobian_inverse(from.now, g.about));
        T rate[6] = {};  // weights of h ċ⁺
        cone_product(problem, adjoint, g, from, rate);
        if (!armature && !joint.has_friction) return;
        const Vec3<T> d = problem.displacement(joint, data, data.now), d_next = problem.displacement(joint, data, data.next);
        const Vec3<T> d_before = armature ? problem.displacement(joint, data, from.incoming) : d;
        Vec3<T> next{}, before{}, rate_turn{}, before_turn{};
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            T reflected{};  // weight of h ċ
            if (armature) {  // −a (ċ⁺ − ċ)
                const T power = dot(f, translation ? g.along : g.about), difference = from.rate[i] - from.incoming_rate[i];
                const T a = problem.parameters[joint.armature + i];
                sum[joint.armature + i] -= power * difference;
                by_timestep += inverse * a * power * difference;
                reflected = inverse * a * power;
                rate[i] -= reflected;
            }
            if (translation) {
                next = next + rate[i] * f;
                before = before - reflected * f;
                g.add_free(i, rate[i] * (d_next - d) + reflected * (d - d_before));
            } else {
                rate_turn = rate_turn + rate[i] * f;
                before_turn = before_turn + reflected * f;
                const Vec3<T> by_f = rate[i] * from.turn.theta;
                g.add_free(i, armature ? by_f + reflected * from.incoming_turn.theta : by_f);
            }
        }
        g.add_displacement(parent.next, child.next, next, d_next);
        g.add_displacement(parent.pose, child.pose, -(next + before), d);
        if (joint.free_r()) g.add_turn(cross(rate_turn, from.turn.theta));
        if (!armature) return;
        const BodyPose<T> &a = from.incoming_parent, &b = from.incoming_child;
        g.add_displacement(a, b, before, d_before);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto by_before = translation_gradient(a, b, data.offset, from.incoming, anchor, before);
        if (joint.free_r()) {
            g.add_turn(cross(before_turn, from.incoming_turn.theta));
            const auto after = turn_gradient(data.offset, from.incoming.p, from.incoming_turn, before_turn);
            by_before.phi_child = by_before.phi_child - after.phi_child;
            by_before.phi_parent = by_before.phi_parent + data.offset * left_jacobian_inverse(from.incoming_turn, before_turn);
        }
        const T *z = problem.z.data();
        step_back(problem, joint, by_before, [&](int b) { return z + state_size * b + 3; }, [&](int b) { return z + state_size * b + 10; });
    }

    // Limits and friction of a joint: −ν (±(c⁺ − bound)), and −ν ċ⁺ and 2 λ max(h friction, least) of the pairs' rows.
    void cone_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, JointGradient<T> &g, const FreeData<T> &from, T *rate) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        for (int c = g.joint.first_cone; c < g.joint.first_cone + g.joint.num_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            if (cone.kind == JointConeTable::friction) {
                const T nu = inverse * adjoint.multiplier[cone.impulse + cone.stride], friction = problem.parameters[cone.parameter];
                const T twice = select(h * friction > broadcast<T>(constant::least_height), 2.0 * adjoint.multiplier[cone.impulse], T{});
                rate[cone.coordinate] -= nu;
                sum[cone.parameter] += h * twice;
                by_timestep += nu * from.rate[cone.coordinate] + friction * twice;
            } else {
                const T nu = cone.sign() * adjoint.multiplier[cone.impulse];
                g.add_coordinate(cone.coordinate, -nu, g.data.next, from.next);
                sum[cone.parameter] += nu;
            }
        }
    }

    // Couplings: −μ (c_follower⁺ − ratio c_leader⁺ − offset), and the multiplier along the coordinates now.
    void coupling_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int number, const T *w) {
        const CouplingTable &coupling = mechanism.couplings[number];
        const CouplingData<T> &data = problem.couplings[number];
        const T mu = adjoint.multiplier[coupling.row], lambda = w[coupling.row];
        sum[coupling.parameters + parameter::coupling::offset] += mu;
        for (const int e : {0, 1}) {
            const CouplingEnd<T> end(problem, coupling, e);
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].next, &child = problem.bodies[end.joint.child].next;
            const Relative<T> next = problem.relative(end.joint, parent, child, end.data.offset_quaternion);
            RotationVector<T> angle{};
            const T coordinate = end.coordinate(problem, next, data.turned[e], angle);
            JointGradient<T> g(problem, adjoint.multiplier.data(), end.joint, end.data, &sum[end.joint.parameters]);
            g.add_impulse(coupling_impulse(end, data, e, lambda));
            const Vec3<T> push = end.translation ? g.along : end.turns() ? g.about : left_jacobian_inverse(data.angle[e], g.about);
            if (e == 0) sum[coupling.parameters + parameter::coupling::ratio] += mu * coordinate - lambda * dot(end.f, push);
            g.add_free(coupling.coordinate[e], (lambda * data.weight[e]) * push);
            g.add_coordinate(coupling.coordinate[e], -mu * data.weight[e], next, angle);
            g.finish();
        }
    }

    // What the timestep does to V by the poses one step back, from the velocities of bodies.
    template <class Linear, class Angular>
    void step_back(const Problem<T> &problem, const JointTable &joint, const RowGradient<T, T> &g, const Linear &linear,
                   const Angular &angular) {
        auto subtract = [&](int body, const Vec3<T> &x, const Vec3<T> &phi) {
            if (body == mechanism.num_bodies) return;
            const Vec3<T> omega = load3(angular(body)), a = (0.5 * problem.timestep()) * omega;
            by_timestep -= dot(x, load3(linear(body))) + dot(phi, omega) / sqrt(1.0 - dot(a, a));
        };
        subtract(joint.child, g.x_child, g.phi_child);
        subtract(joint.parent, -g.x_child, g.phi_parent);
    }

    void contact_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int number, const T *w) {
        const ContactTable &contact = mechanism.contacts[number];
        const TouchGradient<T> g = touch_gradient(problem, adjoint, number, w);
        const bool shifted = contact.recovery >= 0 || contact.stiffness >= 0;
        const T now = shifted ? law_product(problem, contact, g.distance, w[contact.impulse]) : T{};  // of the current distance
        if (contact.pair >= 0) return pair_product(problem, contact, mechanism.pairs[contact.pair], g, now);

        // φ⁺ = n·(x⁺ + R⁺c) − o − r,  l = R⁺c − r n
        const BodyData<T> &body = problem.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        T *out = &sum[contact.parameters];
        const Vec3<T> point = load3(p + parameter::point), n = load3(p + parameter::normal);
        Vec3<T> by_point = transposed_times(body.next.R, g.lever[0] + g.distance * n);
        Vec3<T> by_normal = g.n - p[parameter::radius] * g.lever[0] + g.distance * (body.next.x + body.next.R * point);
        if (shifted) {
            by_point = by_point + now * transposed_times(body.pose.R, n);
            by_normal = by_normal + now * (body.pose.x + body.pose.R * point);
        }
        add3(out + parameter::point, by_point);
        out[parameter::radius] -= g.distance + now + dot(n, g.lever[0]);
        out[parameter::offset] -= g.distance + now;
        add3(out + parameter::normal, by_normal);
        if (contact.friction) add3(out + parameter::tangents, g.t1), add3(out + parameter::tangents + 3, g.t2);
    }

    // With P = γ n + Tᵀβ, the couple c = τ n + Tᵀρ, and ± for the body and the other one, V is
    //     Σ ± (α_v·P + F α_ω·(l × P + c)) − ν_φ gap − ν_tᵀ T u − ν_τ n·σ − ν_ρᵀ T σ,    u = Σ ± (v + F ω × l),  σ = Σ ± F ω,
    // where the gap is φ⁺ + shift + softness γ, or h n·(u + e u⁻) of an impact that bounces, and F turns from body frames into the world's.
    // Besides, heights μγ of friction cones are in the rows ξ₁ − μγ, or μγ − 1ᵀβ − sψ. Coefficients get their gradients here, too.
    TouchGradient<T> touch_gradient(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int number, const T *w) {
        const ContactTable &contact = mechanism.contacts[number];
        const ContactData<T> &data = problem.contacts[number];
        const PairData<T> *pair = contact.pair < 0 ? nullptr : &problem.pairs[contact.pair];
        const int other = pair ? mechanism.pairs[contact.pair].other : mechanism.num_bodies;
        const bool alone = other == mechanism.num_bodies;
        const T *p = &problem.parameters[contact.parameters];
        const T gamma = w[contact.impulse];
        const Vec3<T> &nu = adjoint.touching[number];
        const Vec3<T> n = pair ? pair->n : load3(p + parameter::normal);
        const Vec3<T> t1 = pair ? pair->t1 : load3(p + parameter::tangents), t2 = pair ? pair->t2 : load3(p + parameter::tangents + 3);
        const Vec3<T> levers[2] = {pair ? pair->lever[0] : problem.bodies[contact.body].next.R * data.lever, pair ? pair->lever[1] : n};
        Vec3<T> force = gamma * n, slip{};
        if (contact.friction) force = force + data.beta[0] * t1 + data.beta[1] * t2, slip = nu.y * t1 + nu.z * t2;
        T bounce{}, e{};
        if (contact.restitution >= 0) {
            bounce = select(problem.laws[contact.law].bouncing, problem.timestep() * nu.x, T{});
            e = problem.parameters[contact.restitution];
        }

        TouchGradient<T> g{};
        Vec3<T> push{}, turn{};                      // Σ ± (α_v + F α_ω × l) and Σ ± F α_ω
        Vec3<T> velocity{}, spin{}, arriving{};      // u, σ and u⁻
        for (int i = 0; i < (alone ? 1 : 2); ++i) {
            const int b = i ? other : contact.body;
            const double sign = i ? -1.0 : 1.0;
            const Vec3<T> &lever = levers[i];
            const Mat3<T> &frame = alone ? problem.bodies[b].next.R : problem.bodies[b].pose.R;
            const Vec3<T> alpha = frame * load3(&adjoint.multiplier[6 * b + 3]), omega = frame * load3(w + 6 * b + 3);
            push = push + sign * (load3(&adjoint.multiplier[6 * b]) + cross(alpha, lever)), turn = turn + sign * alpha;
            velocity = velocity + sign * (load3(w + 6 * b) + cross(omega, lever)), spin = spin + sign * omega;
            Vec3<T> by_lever = cross(force, alpha) - cross(slip, omega);
            if (contact.restitution >= 0) {
                const T *state = &problem.z[state_size * b];
                const Vec3<T> before = problem.bodies[b].pose.R * load3(state + 10);
                arriving = arriving + sign * (load3(state + 3) + cross(before, lever));
                by_lever = by_lever - bounce * cross(n, omega + e * before);
            }
            g.lever[i] = sign * by_lever;
        }
        auto by_height = [&](const ContactTable &friction) {
            return (friction.is_pyramid() ? -gamma : gamma) * adjoint.multiplier[friction.friction_impulse()];
        };
        g.distance = -nu.x;
        g.n = gamma * push;
        if (contact.friction) {
            sum[contact.parameters + parameter::friction] += by_height(contact);
            g.t1 = data.beta[0] * push - nu.y * velocity, g.t2 = data.beta[1] * push - nu.z * velocity;
        }
        for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k) {
            const CoupleTable &couple = mechanism.couples[k];
            const T *impulse = w + couple.friction.friction_impulse();
            sum[couple.parameter] += by_height(couple.friction);
            for (int a = 0; a < couple.num_axes(); ++a) {
                const T along = couple.friction.is_pyramid() ? impulse[1] - impulse[2] : impulse[1 + a];
                Vec3<T> &axis = couple.first_axis() + a == 0 ? g.n : couple.first_axis() + a == 1 ? g.t1 : g.t2;
                axis = axis + along * turn - adjoint.turning[2 * k + a] * spin;
            }
        }
        if (contact.restitution >= 0) {
            const Vec3<T> leaving = velocity + e * arriving;
            g.distance = select(problem.laws[contact.law].bouncing, T{}, g.distance);
            g.n = g.n - bounce * leaving;
            sum[contact.restitution] -= bounce * dot(n, arriving);
            by_timestep -= bounce * dot(n, leaving) / problem.timestep();
        }
        return g;
    }

    // Recovery speed v and compliance, with V changing by `direct` times the gap:
    //     gap = φ⁺ − min(φ + h v, 0) + softness (γ − damping min(φ, 0)),   softness = 1/(h stiffness + damping).
    // Returns the weight of the current distance φ.
    T law_product(const Problem<T> &problem, const ContactTable &contact, const T &direct, const T &gamma) {
        const LawData<T> &law = problem.laws[contact.law];
        const T h = problem.timestep();
        if (contact.recovery >= 0) {
            const T speed = problem.parameters[contact.recovery];
            const T weight = select(law.distance + h * speed < T{}, direct, T{});
            sum[contact.recovery] -= h * weight;
            by_timestep -= speed * weight;
        }
        if (contact.stiffness >= 0) {
            const T overlap = min(law.distance, T{}), damping = problem.parameters[contact.stiffness + 1];
            const T weight = -(direct * law.softness * law.softness) * (gamma - damping * overlap);  // of h stiffness + damping
            sum[contact.stiffness] += h * weight;
            sum[contact.stiffness + 1] += weight - direct * law.softness * overlap;
            by_timestep += weight * problem.parameters[contact.stiffness];
        }
        return -direct * law_slope(problem, contact);
    }

    // The geometry of shapes by forward derivatives with respect to their numbers, first those of the body, then those of the other.
    // now: weight of the current distance.
    void pair_product(const Problem<T> &problem, const ContactTable &contact, const PairTable &pair, const TouchGradient<T> &g,
                      const T &now) {
        using S = Dual<T>;
        const BodyData<T> &a = problem.bodies[contact.body], &b = problem.bodies[pair.other];
        const int kinds[2] = {pair.kind_a, pair.kind_b}, places[2] = {pair.shape_a, pair.shape_b};
        S shapes[2][geometry::most_numbers];
        auto touching = [&](const BodyPose<T> &a, const BodyPose<T> &b) {
            const Vec3<S> x[2] = {lift<S>(a.x), lift<S>(b.x)};
            const Mat3<S> R[2] = {lift<S>(a.R), lift<S>(b.R)};
            return touch<T, S, S>(problem, pair, contact.body, x[0], R[0], x[1], R[1], shapes[0], shapes[1]);
        };
        for (const int i : {0, 1}) {
            for (const int j : {0, 1})
                for (int k = 0; k < geometry::numbers(kinds[j]); ++k) {
                    shapes[j][k] = S(problem.parameters[places[j] + k]);
                    if (i == j) shapes[j][k].d[k] = broadcast<T>(1.0);
                }
            const Touch<S> next = touching(a.next, b.next);
            Vec3<S> t1, t2;
            tangents<T, S>(next.n, t1, t2);
            S total = g.distance * next.distance;
            for (int r = 0; r < 3; ++r) {
                total = total + g.n[r] * next.n[r] + g.lever[0][r] * next.lever_a[r] + g.lever[1][r] * next.lever_b[r];
                if (contact.friction) total = total + g.t1[r] * t1[r] + g.t2[r] * t2[r];
            }
            if (contact.recovery >= 0 || contact.stiffness >= 0) total = total + now * touching(a.pose, b.pose).distance;
            for (int k = 0; k < geometry::numbers(kinds[i]); ++k) sum[places[i] + k] += total.d[k];
        }
    }
};

}  // namespace torchdojo
