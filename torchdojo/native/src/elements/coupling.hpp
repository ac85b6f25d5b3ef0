// Couplings of joint coordinates (coupling.py): y⁺ − p(x⁺) = 0 with sums x of leaders and y of followers, and a polynomial p of degree four.
// The row is a node of its own in the condensed matrix, linked to the bodies of all joints.
//
// The multiplier λ acts along a follower's coordinate with the follower's coefficient, along a leader's with −p′(x) times the leader's. All
// act at the current configuration, as limits do, through the transposed Jacobian of the coordinate. The full turns that close the coupling
// of two angles depend on data only and have no derivative. A coupling that is switched off has the row h λ = 0. One with a compliance α and
// a damping d yields: c⁺ + α d (c⁺ − c)/h + α λ/h = 0.
#pragma once

#include "elements/joint_geometry.hpp"
#include "elements/joint_impulse.hpp"

namespace torchdojo {

// p(x) = offset + ratio x + k₂ x² + k₃ x³ + k₄ x⁴.
template <class T>
struct CouplingLaw {
    T offset, ratio, curve[3];

    CouplingLaw(const T &offset, const T &ratio) : offset(offset), ratio(ratio), curve{} {}
    CouplingLaw(const Problem<T> &problem, const CouplingTable &coupling) {
        const T *p = &problem.parameters[coupling.parameters];
        offset = p[parameter::coupling::offset];
        ratio = p[parameter::coupling::ratio];
        for (int i = 0; i < 3; ++i) curve[i] = p[parameter::coupling::curve + i];
    }

    TD_INLINE T operator()(const T &x) const { return offset + x * (ratio + x * (curve[0] + x * (curve[1] + x * curve[2]))); }
    TD_INLINE T slope(const T &x) const { return ratio + x * (2.0 * curve[0] + x * (3.0 * curve[1] + x * (4.0 * curve[2]))); }
    TD_INLINE T bend(const T &x) const { return 2.0 * curve[0] + x * (6.0 * curve[1] + x * (12.0 * curve[2])); }
};

// One end of a coupling: its joint, and the direction of its coordinate in the joint frame.
template <class T>
struct CouplingEnd {
    const CouplingEndTable &row;
    const JointTable &joint;
    const JointData<T> &data;
    bool translation;
    Vec3<T> f;

    CouplingEnd(const Problem<T> &problem, const CouplingEndTable &row)
        : row(row), joint(problem.mechanism.joints[row.joint]), data(problem.joints[row.joint]) {
        f = joint_direction(problem, joint, joint.held() + row.coordinate, translation);
    }

    bool turns() const { return !translation && joint.free_r() == 1; }

    // The coordinate, which becomes a vector `angle` for several rotations. An angle is the one next to `near`, where this is given.
    TD_INLINE T coordinate(const Problem<T> &problem, const Relative<T> &at, const T *near, RotationVector<T> &angle) const {
        if (translation) return dot(f, problem.displacement(joint, data, at));
        if (turns()) return near ? angle_near(at.p, f, *near) : angle_about(at.p, f);
        angle = rotation_vector(at.p);
        return dot(f, angle.theta);
    }

    // The derivative of the coordinate by poses of parent and child.
    TD_INLINE RowGradient<T, T> gradient(const Problem<T> &problem, const BodyPose<T> &parent, const BodyPose<T> &child,
                                         const Relative<T> &at, const RotationVector<T> &angle) const {
        if (!translation) return angle_gradient(joint, data.offset, at.p, angle, f);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        return translation_gradient(parent, child, data.offset, at, anchor, f);
    }

    // Torque along a rotational coordinate, in the joint frame, per unit: J_l⁻ᵀ f.
    TD_INLINE Vec3<T> torque(const RotationVector<T> &angle) const { return turns() ? f : right_jacobian_inverse(angle, f); }
};

// Turns of leader and follower that cancel the `gap` of their coordinates: 2π (n_f − ratio n_l). Where both are angles and no n_l cancels
// the gap, the state is not on the coupling, and n_l = 0 (JointCoupling in couplings.py).
inline void coupling_turns(double gap, double ratio, bool leading, bool following, double &leader, double &follower) {
    constexpr double turn = full_turn;
    leader = follower = 0.0;
    if (leading && following) {
        auto number = [](int k) { return double((k % 2 ? 1 : -1) * ((k + 1) / 2)); };
        auto rest = [&](int k) {
            const double left = gap - turn * ratio * number(k);
            return std::fabs(left - turn * std::nearbyint(left / turn));
        };
        int best = 0;
        for (int k = 1; k <= 2 * constant::most_turns; ++k)
            if (rest(k) < rest(best)) best = k;
        // Several numbers may fit equally well. The smallest one wins, because the ratio separates the others.
        const double enough = rest(best) + constant::alike;
        for (best = 0; rest(best) > enough;) ++best;
        if (rest(best) <= constant::satisfied) leader = number(best);
    } else if (leading && ratio != 0.0) {
        leader = std::nearbyint(gap / (turn * ratio));
    }
    if (following) follower = -std::nearbyint((gap - turn * ratio * leader) / turn);
}

// The same where p is no line: p(x + 2π n_l) is tried for each n_l.
inline void curved_turns(double x, double y, const CouplingLaw<double> &law, bool leading, bool following, double &leader,
                         double &follower) {
    constexpr double turn = full_turn;
    auto number = [](int k) { return double((k % 2 ? 1 : -1) * ((k + 1) / 2)); };
    auto gap = [&](double n) { return y - law(x + turn * n); };
    auto rest = [&](int k) {
        const double left = gap(number(k));
        return std::fabs(following ? left - turn * std::nearbyint(left / turn) : left);
    };
    leader = follower = 0.0;
    if (leading) {
        int best = 0;
        for (int k = 1; k <= 2 * constant::most_turns; ++k)
            if (rest(k) < rest(best)) best = k;
        const double enough = rest(best) + constant::alike;
        for (best = 0; rest(best) > enough;) ++best;
        if (rest(best) <= constant::satisfied) leader = number(best);
    }
    if (following) follower = -std::nearbyint(gap(leader) / turn);
}

template <class T>
struct Couplings {
    static void prepare(Problem<T> &problem) {
        each(problem.mechanism, [&](const CouplingTable &coupling, int c) { prepare(problem, coupling, problem.couplings[c]); });
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        each(problem.mechanism, [&](const CouplingTable &coupling, int c) { linearize(problem, coupling, problem.couplings[c], w); });
    }

    static void condense(Problem<T> &) {}

    template <class R>
    static void differentiate(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        for (const CouplingTable &coupling : problem.mechanism.couplings)
            each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
                const JointImpulse<T> pushed = impulse(end, problem.coupling_ends[e], w[coupling.row]);
                adjoint.coupling_impulses[e].set(problem, end.joint, end.data, pushed);
            });
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        each(problem.mechanism, [&](const CouplingTable &, int c) { multiply(adjoint, problem, c, w); });
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        each(problem.mechanism, [&](const CouplingTable &, int c) { add_parameters(to, problem, adjoint, c, w); });
    }

private:
    // Calls f with each coupling of coordinates and its number.
    template <class F>
    static TD_INLINE void each(const MechanismTable &m, F &&f) {
        for (int c = 0; c < m.num_couplings; ++c)
            if (m.couplings[c].strings < 0) f(m.couplings[c], c);
    }

    // Calls f with each end and its number.
    template <class F>
    static TD_INLINE void each_end(const Problem<T> &problem, const CouplingTable &coupling, const F &f) {
        for (int e = coupling.first_end; e < coupling.first_end + coupling.num_ends; ++e)
            f(CouplingEnd<T>(problem, problem.mechanism.coupling_ends[e]), e);
    }

    // Numbers that stay the same during the step: turns, and wrenches.
    static void prepare(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data) {
        const CouplingLaw<T> law(problem, coupling);
        data.on = 1.0 - problem.parameters[coupling.parameters + parameter::coupling::off];
        data.leading = T{};
        T following{};
        bool turning[2] = {};
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            CouplingEndData<T> &own = problem.coupling_ends[e];
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].pose;
            const BodyPose<T> &child = problem.bodies[end.joint.child].pose;
            own.coefficient = end.row.coefficient < 0 ? broadcast<T>(1.0) : problem.parameters[end.row.coefficient];
            own.turns = T{};
            own.coordinate = end.coordinate(problem, end.data.now, nullptr, own.angle);
            T &sum = end.row.leads ? data.leading : following;
            sum += own.coefficient * own.coordinate;
            turning[end.row.leads ? 0 : 1] = end.turns();
            if (end.translation) own.push = end.gradient(problem, parent, child, end.data.now, own.angle);
            else {
                const Vec3<T> in_parent = end.data.offset * end.torque(own.angle);
                own.push = {Vec3<T>{}, transposed_times(child.R, parent.R * in_parent), -in_parent};
            }
        });
        if (coupling.counts_turns) count_turns(problem, coupling, data, law, following, turning);
        const T *p = &problem.parameters[coupling.parameters];
        data.gap_now = following - law(data.leading);
        data.given = p[parameter::coupling::compliance] * problem.inverse_timestep;
        data.stretched = 1.0 + data.given * p[parameter::coupling::damping];
        const T slope = law.slope(data.leading);
        for (int e = coupling.first_end; e < coupling.first_end + coupling.num_ends; ++e) {
            CouplingEndData<T> &own = problem.coupling_ends[e];
            own.weight = problem.mechanism.coupling_ends[e].leads ? -(data.on * slope * own.coefficient) : data.on * own.coefficient;
        }
    }

    // Sets the turns of at most one leader and one follower, with coefficients of one, and adds them to the sum of leaders.
    static void count_turns(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data, const CouplingLaw<T> &law,
                            T &following, const bool *turning) {
        const T gap = following - law(data.leading);
        T turns[2] = {};
        for (int lane = 0; lane < lanes<T>; ++lane) {
            double number[2];
            CouplingLaw<double> own(get(law.offset, lane), get(law.ratio, lane));
            bool line = true;
            for (int i = 0; i < 3; ++i) line = (own.curve[i] = get(law.curve[i], lane)) == 0.0 && line;
            if (line) coupling_turns(get(gap, lane), own.ratio, turning[0], turning[1], number[0], number[1]);
            else curved_turns(get(data.leading, lane), get(following, lane), own, turning[0], turning[1], number[0], number[1]);
            for (const int which : {0, 1}) set(turns[which], lane, full_turn * number[which]);
        }
        for (int e = coupling.first_end; e < coupling.first_end + coupling.num_ends; ++e)
            problem.coupling_ends[e].turns = turns[problem.mechanism.coupling_ends[e].leads ? 0 : 1];
        data.leading += turns[0];
        following += turns[1];
    }

    static void linearize(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data, const T *w) {
        const T h = problem.timestep();
        const T lambda = w[coupling.row];
        const T &off = problem.parameters[coupling.parameters + parameter::coupling::off];
        const int world = problem.mechanism.num_bodies;
        const CouplingLaw<T> law(problem, coupling);
        data.leading_next = T{};
        T following{};
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            CouplingEndData<T> &own = problem.coupling_ends[e];
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].next;
            const BodyPose<T> &child = problem.bodies[end.joint.child].next;
            own.relative_next = problem.relative(end.joint, parent, child, end.data.offset_quaternion);
            own.coordinate_next = end.coordinate(problem, own.relative_next, &own.coordinate, own.angle_next) + own.turns;
            T &sum = end.row.leads ? data.leading_next : following;
            sum += own.coefficient * own.coordinate_next;
        });
        data.gap = data.stretched * (following - law(data.leading_next)) - (data.stretched - 1.0) * data.gap_now + data.given * lambda;
        problem.residual[coupling.row] = data.on * data.gap + h * off * lambda;
        problem.values[coupling.diagonal] = h * off + data.on * data.given;
        const T slope = law.slope(data.leading_next);
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            CouplingEndData<T> &own = problem.coupling_ends[e];
            const BodyData<T> &parent = problem.bodies[end.joint.parent], &child = problem.bodies[end.joint.child];
            own.weight_next = data.stretched * (end.row.leads ? -(data.on * slope * own.coefficient) : data.on * own.coefficient);
            const RowGradient<T, T> after = end.gradient(problem, parent.next, child.next, own.relative_next, own.angle_next);
            own.next = {own.weight_next * after.x_child, own.weight_next * after.phi_child, own.weight_next * after.phi_parent};
            // Wrench of λ on child and parent, and the row. The force on the parent is minus the force on the child.
            for (const int which : {0, 1}) {
                const BodyData<T> &body = which ? child : parent;
                const int number = which ? end.joint.child : end.joint.parent;
                if (number == world) continue;
                const T sign = broadcast<T>(which ? 1.0 : -1.0);
                const T scale = sign * own.weight;
                const Vec3<T> push[2] = {scale * own.push.x_child, own.weight * (which ? own.push.phi_child : own.push.phi_parent)};
                T *column = &problem.values[end.row.body_coupling[which]];
                T *entries = &problem.values[end.row.coupling_body[which]];
                add3(entries, (sign * h) * own.next.x_child);
                add3(entries + 3, transposed_times(body.M, which ? own.next.phi_child : own.next.phi_parent));
                for (const int k : {0, 1}) {
                    add3(column + 3 * k, -push[k]);
                    add3(&problem.residual[6 * number + 3 * k], -(lambda * push[k]));
                }
            }
        });
    }

    // Impulse of the multiplier λ at one of the ends.
    static TD_INLINE JointImpulse<T> impulse(const CouplingEnd<T> &end, const CouplingEndData<T> &own, const T &lambda) {
        JointImpulse<T> impulse{};
        (end.translation ? impulse.force : end.turns() ? impulse.turned : impulse.pushes) = (own.weight * lambda) * end.f;
        if (!end.translation && !end.turns()) impulse.angle = &own.angle;
        return impulse;
    }

    // Rows of the coordinates −μ c⁺, and the impulses along them at the current configuration.
    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, int c, const T *w) {
        const CouplingTable &coupling = problem.mechanism.couplings[c];
        const CouplingData<T> &data = problem.couplings[c];
        const R mu = adjoint.multiplier[coupling.row];
        const R by_gap = (data.stretched - 1.0) * mu;
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            const CouplingEndData<T> &own = problem.coupling_ends[e];
            const RowGradient<T, T> &g = own.next;
            adjoint.subtract(adjoint.x_next, end.joint, mu * g.x_child, -(mu * g.x_child));
            adjoint.subtract(adjoint.phi_next, end.joint, mu * g.phi_child, mu * g.phi_parent);
            impulse_product(adjoint, problem, end.joint, end.data, adjoint.coupling_impulses[e]);
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].pose;
            const BodyPose<T> &child = problem.bodies[end.joint.child].pose;
            const R own_weight = own.weight * by_gap;
            if (coupling.damped) adjoint.add(own_weight, end.gradient(problem, parent, child, end.data.now, own.angle), end.joint);
        });
        if (coupling.curved) add_bend(adjoint, problem, c, w[coupling.row]);
    }

    // V has −λ p′(x) Σ b P with powers P along the leaders, so that x at the current configuration has the gradient −λ p″(x) Σ b P.
    template <class R>
    static void add_bend(AdjointState<T, R> &adjoint, const Problem<T> &problem, int c, const T &lambda) {
        const CouplingTable &coupling = problem.mechanism.couplings[c];
        const CouplingData<T> &data = problem.couplings[c];
        const int world = problem.mechanism.num_bodies;
        R power{};
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            if (!end.row.leads) return;
            const CouplingEndData<T> &own = problem.coupling_ends[e];
            const R *child = &adjoint.multiplier[6 * end.joint.child];
            R along = dot(own.push.x_child, load3(child)) + dot(own.push.phi_child, load3(child + 3));
            if (end.joint.parent != world) {
                const R *parent = &adjoint.multiplier[6 * end.joint.parent];
                along = along + dot(own.push.phi_parent, load3(parent + 3)) - dot(own.push.x_child, load3(parent));
            }
            power = power + own.coefficient * along;
        });
        const R weight = -(data.on * lambda * CouplingLaw<T>(problem, coupling).bend(data.leading)) * power;
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            if (!end.row.leads) return;
            const CouplingEndData<T> &own = problem.coupling_ends[e];
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].pose;
            const BodyPose<T> &child = problem.bodies[end.joint.child].pose;
            const R own_weight = own.coefficient * weight;
            adjoint.add(own_weight, end.gradient(problem, parent, child, end.data.now, own.angle), end.joint);
        });
    }

    // −μ times the row, and the multiplier along the coordinates now.
    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, int number, const T *w) {
        const CouplingTable &coupling = problem.mechanism.couplings[number];
        const CouplingData<T> &data = problem.couplings[number];
        const CouplingLaw<T> law(problem, coupling);
        const T mu = adjoint.multiplier[coupling.row];
        const T lambda = w[coupling.row];
        const T x = data.leading;
        const T next = data.leading_next;
        const T slope = law.slope(x);
        const T slope_next = law.slope(next);
        T power[2] = {}, following_next{};  // of unit impulses along the sums of followers and of leaders
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            const CouplingEndData<T> &own = problem.coupling_ends[e];
            const JointGradient<T> g(problem, adjoint.multiplier.data(), end.joint, end.data, nullptr);
            power[end.row.leads ? 1 : 0] += own.coefficient * dot(end.f, pushed(end, own, g));
            if (!end.row.leads) following_next += own.coefficient * own.coordinate_next;
        });
        T *sum = &to.sum[coupling.parameters];
        const T held = data.on * mu;
        const T pushes = data.on * lambda * power[1];
        sum[parameter::coupling::offset] += held;
        const T stretched = data.stretched;
        const T loose = stretched - 1.0;
        sum[parameter::coupling::ratio] += held * (stretched * next - loose * x) - pushes;
        T x_power = x;
        T next_power = next * next;
        for (int i = 0; i < 3; ++i) {
            sum[parameter::coupling::curve + i] += held * (stretched * next_power - loose * (x * x_power)) - (2.0 + i) * (pushes * x_power);
            x_power = x_power * x;
            next_power = next_power * next;
        }
        const T off = problem.parameters[coupling.parameters + parameter::coupling::off];
        sum[parameter::coupling::off] += mu * data.gap - lambda * (power[0] - slope * power[1]) - problem.timestep() * mu * lambda;
        to.by_timestep -= off * mu * lambda;
        const T alpha = problem.parameters[coupling.parameters + parameter::coupling::compliance];
        const T damping = problem.parameters[coupling.parameters + parameter::coupling::damping];
        const T moving = problem.inverse_timestep * ((following_next - law(next)) - data.gap_now);  // (c⁺ − c)/h
        const T by_alpha = held * (damping * moving + problem.inverse_timestep * lambda);
        sum[parameter::coupling::compliance] -= by_alpha;
        sum[parameter::coupling::damping] -= held * alpha * moving;
        to.by_timestep += problem.inverse_timestep * alpha * by_alpha;
        const T by_leading = -(pushes * law.bend(x));
        each_end(problem, coupling, [&](const CouplingEnd<T> &end, int e) {
            const CouplingEndData<T> &own = problem.coupling_ends[e];
            JointGradient<T> g(problem, adjoint.multiplier.data(), end.joint, end.data, &to.sum[end.joint.parameters]);
            g.add_impulse(impulse(end, own, lambda));
            const Vec3<T> push = pushed(end, own, g);
            g.add_free(end.row.coordinate, (lambda * own.weight) * push);
            g.add_coordinate(end.row.coordinate, -mu * own.weight_next, own.relative_next, own.angle_next);
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].pose;
            const BodyPose<T> &child = problem.bodies[end.joint.child].pose;
            T by_now = coupling.damped ? loose * mu * own.weight : T{};
            if (coupling.curved && end.row.leads) by_now += by_leading * own.coefficient;
            if (coupling.damped || coupling.curved) g.add_coordinate(end.row.coordinate, by_now, parent, child, end.data.now, own.angle);
            g.finish();
            if (end.row.coefficient < 0) return;
            const T now = own.coordinate + own.turns;
            const T along = data.on * lambda * dot(end.f, push);
            const T moved = held * stretched * own.coordinate_next;
            const T left = held * loose * now;
            to.sum[end.row.coefficient] +=
                end.row.leads ? slope_next * moved - slope * left - slope * along + by_leading * now : along - moved + left;
        });
    }

    // Gradient of V by a unit impulse along the coordinate, per direction f.
    static TD_INLINE Vec3<T> pushed(const CouplingEnd<T> &end, const CouplingEndData<T> &own, const JointGradient<T> &g) {
        return end.translation ? g.along : end.turns() ? g.about : left_jacobian_inverse(own.angle, g.about);
    }
};

}  // namespace torchdojo
