// Derivatives of the solved step by the implicit function theorem: the transposed system, and products with the derivatives of the residual
// by the data (z, u, wrench).
//
// At the solution r(w; z, u, f) = 0. For a gradient g = ∂L/∂w, solve (∂r/∂w)ᵀ λ = g; then ∂L/∂(z, u, f) = −λᵀ ∂r/∂(z, u, f)  (Howell et al.
// 2025, section V). Writing λ = (α_v, α_ω) per body, μ per multiplier and (ν_φ, ν_μ, ν_t) per contact, −λᵀr is, up to terms without data,
//     Σ bodies  α·(known momentum)  +  Σ joints λᵀ(impulses on both bodies) − μᵀ(rows)  +  Σ contacts α_ω·(l × P) − ν_φ φ − ν_tᵀ slip,
// and each term is differentiated by hand below. Scalars: the problem has T; the adjoint R, which is T, or Pack over a double problem with
// one right-hand side per lane.
#pragma once

#include "elements/joint_impulse.hpp"
#include "elements/limit.hpp"
#include "solver/capacitance.hpp"

namespace torchdojo {

// Gradient with respect to the tangent of the data: per body x, φ, v, ω; u; external force and torque.
template <class R>
struct DataGradient {
    std::vector<Vec3<R>> x, phi, v, omega, force, torque;  // the world behind the bodies
    std::vector<R> u;

    explicit DataGradient(const MechanismTable &m)
        : x(m.num_bodies + 1), phi(x), v(x), omega(x), force(x), torque(x), u(m.num_inputs) {}
};

// Derivatives by the current poses (x of the child, that of the parent being its negative; φ of both) of what free directions depend on:
// coordinates for springs, h times backward differences of coordinates for dampers.
template <class T>
struct FreeGradient {
    RowGradient<T, T> coordinate[6], difference[6];
};

// The same for joints with armature, limits or friction: h ċ⁺ by the next and the current poses, c⁺ by the next ones, h ċ of the step that
// led here by the current poses, and by those before it, which follow from them and the velocities.
template <class T>
struct MovingGradient {
    RowGradient<T, T> rate_next[6], rate_now[6], coordinate_next[6], incoming_now[6];
    struct Before {
        Vec3<T> x, phi, omega;        // of the poses before, by the current ones and by the velocities that led here
    } before_child[6], before_parent[6];
};

// Of a contact of a sphere with a half-space, by the next orientation: the gap, the slips along both tangents, the torque (a row per component).
template <class T>
struct ContactByTurn {
    Vec3<T> gap, slip[2];
    Mat3<T> torque;
};

template <class T, class R>
class Adjoint {
public:
    explicit Adjoint(const MechanismTable &m)
        : mechanism(m), gradient(m), multiplier(m.num_unknowns), touching(m.num_contacts), turning(2 * m.num_couples),
          phi_next(m.num_bodies + 1), x_next(m.num_bodies + 1), refinement(m), capacitance(m), right(m.schedule.num_rows),
          misfit(right), wanted(right), contact_rows(3 * m.num_contacts), contact_solution(contact_rows), nothing(m.num_unknowns), given_way(nothing), taken(nothing), turn(m.num_bodies + 1), known_spin(m.num_bodies), by_turn(m.num_contacts), pressing(m.num_joint_cones),
          free(m.num_joints), moving(m.num_free_data), impulses(m.num_joints), coupling_impulses(2 * m.num_couplings) {}

    const MechanismTable &mechanism;
    DataGradient<R> gradient;
    std::vector<R> multiplier;        // λ in the places of w (zero in complementarity rows, which no datum enters; with several right-hand
                                      // sides per matrix zero in rows of friction, too, which only its coefficient enters)
    const T *give = nullptr;          // in the limit κ → 0: compliance of what is held (Limit::apply), which refinement takes out
    std::vector<Vec3<R>> touching;    // ν_φ and ν_t of contacts
    std::vector<R> turning;           // ν of the spins of torsional and rolling friction
    std::vector<Vec3<R>> phi_next, x_next;  // −λᵀr by the next poses

    // Factor the derivative at w, where `problem` has been prepared.
    void factor(Problem<T> &problem, Cones<T> &cones, const T *w) {
        cones.condense(problem, w);
        problem.template linearize<false>(w);
        refinement.condense(problem, give);
        capacitance.clear();
        if constexpr (several_per_matrix) leave_out(problem);
        refinement.factor(problem);
        if constexpr (several_per_matrix) find_capacitance(problem);
        for (int i = 0; i <= mechanism.num_bodies; ++i) turn[i] = rotation_matrix(problem.bodies[i].increment);
        for (int i = 0; i < mechanism.num_bodies; ++i) known_spin[i] = differentiate_known_spin(problem, i);
        for (int c = 0; c < mechanism.num_contacts; ++c)
            if (mechanism.contacts[c].pair < 0) by_turn[c] = differentiate_contact(problem, mechanism.contacts[c], problem.contacts[c], w);
        for (int j = 0; j < mechanism.num_joints; ++j) {
            const JointTable &joint = mechanism.joints[j];
            if (acts(joint)) impulses[j].set(problem, joint, problem.joints[j], joint_impulse(problem, joint, problem.joints[j], w));
            differentiate_free(problem, joint, problem.joints[j], free[j]);
            if (joint.free_data >= 0)
                differentiate_moving(problem, joint, problem.joints[j], problem.free[joint.free_data], moving[joint.free_data]);
        }
        for (int c = 0; c < mechanism.num_couplings; ++c)
            for (const int e : {0, 1}) {
                const CouplingTable &coupling = mechanism.couplings[c];
                const CouplingEnd<T> end(problem, coupling, e);
                coupling_impulses[2 * c + e].set(problem, end.joint, end.data, coupling_impulse(end, problem.couplings[c], e, w[coupling.row]));
            }
    }

    // λ for the gradient g of w (none for slacks). Without `by_impulses` g is that of velocities alone; `sparse`: of a few of them.
    void solve(const Problem<T> &problem, const T *w, const R *g, bool by_impulses, bool sparse = false) {
        point = w;
        const MechanismTable &m = mechanism;
        const int passes = !any(refinement.needed) ? 0 : give ? constant::limit_refinements : 1;
        for (int i = 0; i < m.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) right[m.bodies[i].right + k] = g[6 * i + k];
        for (const JointTable &joint : m.joints)
            for (int k = joint.held(); k < joint.size; ++k) right[joint.right + k] = R{};
        for (const MultiplierTable &row : m.multipliers) right[row.right] = g[row.row];
        if (passes) wanted = right;
        if (give) std::fill(taken.begin(), taken.end(), R{});
        for (const ContactTable &friction : m.frictions)  // (what adds up; others are assigned, and those of complementarity stay zero)
            std::fill_n(&multiplier[friction.friction_impulse()], friction.friction_size(), R{});
        std::fill(touching.begin(), touching.end(), Vec3<R>{});
        std::fill(turning.begin(), turning.end(), R{});
        std::fill(pressing.begin(), pressing.end(), R{});
        if (by_impulses) {
            add_cone_multipliers(problem, g, nullptr);
            subtract_cones(problem, right.data());
        }
        ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), right.data(), sparse);
        if constexpr (several_per_matrix) add_left_out(problem, by_impulses ? g : nothing.data());
        add_cone_multipliers(problem, nothing.data(), right.data());
        for (int pass = 0; pass < passes; ++pass) {
            pass + 1 < passes ? void(misfit = wanted) : misfit.swap(wanted);
            ldu_subtract_transposed_product<T, R>(m.schedule, refinement.matrix.data(), right.data(), misfit.data());
            if (give) {
                find_given_way();
                add_cone_multipliers(problem, given_way.data(), nullptr);
            }
            subtract_cones(problem, misfit.data());
            ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), misfit.data());
            if constexpr (lanes<T> == lanes<R>)
                for (R &value : misfit) value = select(refinement.needed, value, R{});
            for (int k = 0; k < m.schedule.num_rows; ++k) right[k] += misfit[k];
            add_cone_multipliers(problem, nothing.data(), misfit.data());
        }

        for (int i = 0; i < m.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) multiplier[6 * i + k] = right[m.bodies[i].right + k];
        for (const MultiplierTable &row : m.multipliers) multiplier[row.row] = right[row.right];
        for (int c = 0; c < m.num_contacts; ++c) multiplier[m.contacts[c].impulse] = touching[c].x;
        for (int c = 0; c < m.num_joint_cones; ++c) {
            const JointConeTable &cone = m.joint_cones[c];
            const R &nu = pressing[c];
            if (cone.kind == JointConeTable::friction) {
                const T ratio = w[cone.slack] / w[cone.impulse], own = give ? ratio - give[cone.impulse] : ratio;
                multiplier[cone.impulse + cone.stride] = nu;
                multiplier[cone.impulse] = g[cone.impulse] + 0.5 * right[m.joints[cone.joint].right + cone.row] - own * nu;
            } else {
                multiplier[cone.impulse] = nu;
            }
        }
    }

    // −λᵀ ∂r/∂(z, u, f) into `gradient`, at the w of `factor`.
    void multiply(const Problem<T> &problem, const T *w) {
        const MechanismTable &m = mechanism;
        const T h = problem.timestep();
        for (int i = 0; i <= m.num_bodies; ++i)
            gradient.x[i] = gradient.phi[i] = phi_next[i] = x_next[i] = Vec3<R>{};
        for (R &value : gradient.u) value = R{};
        for (int i = 0; i < m.num_bodies; ++i) {
            const Vec3<R> linear = load3(&multiplier[6 * i]), angular = load3(&multiplier[6 * i + 3]);
            gradient.v[i] = problem.body_parameters(i)[parameter::mass] * linear;
            gradient.omega[i] = known_spin[i] * angular;
            gradient.force[i] = h * linear;
            gradient.torque[i] = h * angular;
        }
        for (int j = 0; j < m.num_joints; ++j)
            if (acts(m.joints[j])) joint_product(problem, m.joints[j], problem.joints[j], free[j], impulses[j]);
        for (int c = 0; c < m.num_couplings; ++c) coupling_product(problem, c);
        for (int c = 0; c < m.num_contacts; ++c) contact_product(problem, m.contacts[c], problem.contacts[c], w);
        // The next pose moves with the current one: x⁺ = x + …, φ⁺ = R(increment)ᵀ φ.
        for (int i = 0; i < m.num_bodies; ++i) {
            gradient.x[i] = gradient.x[i] + x_next[i];
            gradient.phi[i] = gradient.phi[i] + turn[i] * phi_next[i];
        }
    }

private:
    // One step of iterative refinement brings the digits back that pressed contacts cost, with the multipliers ν of the cones as unknowns of
    // their own, ν += K (B δα): from the refined α, K (B α) would be a small number, known to rounding of α, times a large one, γ/s = γ²/κ.
    Refinement<T> refinement;
    Capacitance<T> capacitance;
    static constexpr bool several_per_matrix = lanes<T> < lanes<R>;  // right-hand sides are in lanes
    const T *point = nullptr;         // w
    std::vector<R> right, misfit, wanted;  // by rows of the matrix
    std::vector<R> contact_rows, contact_solution;
    const std::vector<R> nothing;     // a gradient of zeros
    std::vector<R> given_way, taken;  // gradients: see find_given_way
    std::vector<Mat3<T>> turn;        // of the increments
    std::vector<Mat3<T>> known_spin;  // of the known angular momentum, by ω
    std::vector<ContactByTurn<T>> by_turn;
    std::vector<R> pressing;          // ν of limits and frictions of joints
    std::vector<FreeGradient<T>> free;
    std::vector<MovingGradient<T>> moving;
    std::vector<ImpulseInFrames<T>> impulses, coupling_impulses;

    // What is left of the right-hand sides of the columns of held impulses: what their compliance, which they do not have in the limit,
    // took up since the last time, compliance times ν. With it in the place of g, refinement is the proximal point method (limit_maps.py).
    void find_given_way() {
        auto find = [&](int at, const R &nu) {
            const R now = give[at] * nu;
            given_way[at] = now - taken[at], taken[at] = now;
        };
        for (int c = 0; c < mechanism.num_contacts; ++c) find(mechanism.contacts[c].impulse, touching[c].x);
        for (const ContactTable &friction : mechanism.frictions)
            for (int k = 1; k < friction.friction_size(); ++k)
                find(friction.friction_impulse() + k, multiplier[friction.friction_impulse() + k]);
        for (int c = 0; c < mechanism.num_joint_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            find(cone.impulse, pressing[c]);
            if (cone.pairs() > 1) find(cone.impulse + cone.stride, -pressing[c]);
        }
    }

    // ν of all cones grows by what belongs to the gradient g and to λ = x (null: zero).
    void add_cone_multipliers(const Problem<T> &problem, const R *g, const R *x) {
        for (int c = 0; c < mechanism.num_contacts; ++c)
            if (!capacitance.left_out[c]) touching[c] = touching[c] + contact_multiplier(problem, c, g, x);
        for (int c = 0; c < mechanism.num_joint_cones; ++c) pressing[c] += joint_cone_multiplier(problem, c, g, x);
    }

    // Instead of refinement, where that is possible and pays: see capacitance.hpp.
    void leave_out(Problem<T> &problem) {
        if (refinement.needed && !give && refinement.only_contacts() && capacitance.take(refinement, problem)) refinement.needed = false;
    }
    void find_capacitance(const Problem<T> &problem);
    void add_left_out(const Problem<T> &problem, const R *g);

    // y −= Cᵀ ν of all cones
    void subtract_cones(const Problem<T> &problem, R *y) const {
        for (int c = 0; c < mechanism.num_contacts; ++c) subtract_contact(problem, c, y);
        for (int c = 0; c < mechanism.num_joint_cones; ++c) subtract_joint_cone(problem, c, y);
    }

    // ν of the row of a limit or, of the rate, of a friction, from λ = x (null: zero). Columns of the transposed system, μ that of the
    // joint's row in which the pair acts:
    //   limit:     γ: s ν_s ∓ μ = g_γ,  s: γ ν_s − ν = 0
    //   friction:  p: ν₁ + σ_p ν_p − μ/2 = g_p,  q: ν₁ + σ_q ν_q + μ/2 = g_q,  σ: p ν_p = ν,  q ν_q = −ν
    TD_INLINE R joint_cone_multiplier(const Problem<T> &problem, int c, const R *g, const R *x) const {
        const JointConeTable &cone = mechanism.joint_cones[c];
        R right = g[cone.impulse];
        if (cone.kind == JointConeTable::friction) right = right - g[cone.impulse + cone.stride];
        if (x) {
            const R mu = x[mechanism.joints[cone.joint].right + cone.row];
            right = cone.kind == JointConeTable::upper ? right - mu : right + mu;
        }
        return problem.joint_cones[c].stiffness * right;
    }

    // y −= (derivative of that row)ᵀ ν
    TD_INLINE void subtract_joint_cone(const Problem<T> &problem, int c, R *y) const {
        const JointConeTable &cone = mechanism.joint_cones[c];
        const JointTable &joint = mechanism.joints[cone.joint];
        const TwistRow<T> &row = problem.cone_row(cone);
        const R nu = cone.sign() * pressing[c];
        R *child = y + mechanism.bodies[joint.child].right;
        for (int k = 0; k < 3; ++k) child[k] -= row.linear[k] * nu, child[3 + k] -= row.child[k] * nu;
        if (joint.parent == mechanism.num_bodies) return;
        R *parent = y + mechanism.bodies[joint.parent].right;
        for (int k = 0; k < 3; ++k) parent[k] += row.linear[k] * nu, parent[3 + k] -= row.parent[k] * nu;
    }

    // Of α·(s Jω − (h/2) ω × Jω), s = (1 − h²ω·ω/4)^½, by ω: a matrix that is multiplied with α.
    Mat3<T> differentiate_known_spin(const Problem<T> &problem, int body) const {
        const T h = problem.timestep(), *p = problem.body_parameters(body);
        const Mat3<T> J = load33(p + parameter::inertia);
        const Vec3<T> omega = load3(&problem.z[state_size * body + 10]), spin = J * omega;
        const T scale = sqrt(1.0 - 0.25 * h * h * dot(omega, omega)), bend = 0.25 * h * h / scale, half = 0.5 * h;
        const Vec3<T> a = half * omega, b = half * spin;
        // J (s I + [a]×) − h²/(4 s) ω spinᵀ − [b]×
        Mat3<T> by_omega = J * Mat3<T>{scale, -a.z, a.y, a.z, scale, -a.x, -a.y, a.x, scale};
        for (int r = 0; r < 3; ++r)
            for (int k = 0; k < 3; ++k) by_omega.m[3 * r + k] -= (bend * omega[r]) * spin[k];
        by_omega.m[1] += b.z, by_omega.m[2] -= b.y, by_omega.m[3] -= b.z, by_omega.m[5] += b.x, by_omega.m[6] += b.y, by_omega.m[7] -= b.x;
        return by_omega;
    }

    // The pose before is the current one turned back by the increment: its φ is R(increment) φ.
    void differentiate_free(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeGradient<T> &out) const {
        if (!joint.has_spring && !joint.has_damper) return;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const Mat3<T> before = rotation_matrix(data.before.p);
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            RowGradient<T, T> &now = out.coordinate[i], &change = out.difference[i], then;
            if (translation) {
                now = change = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                if (joint.has_damper)
                    then = translation_gradient(parent.one_step_back(), child.one_step_back(), data.offset, data.before, anchor, f);
            } else {
                if (joint.has_spring)
                    now = {Vec3<T>{}, left_jacobian_inverse(data.angle, f), -(data.offset * right_jacobian_inverse(data.angle, f))};
                if (joint.has_damper) {
                    const Vec3<T> g = right_jacobian_inverse(data.turn, f), in_parent = data.offset * (before * g);
                    change = {Vec3<T>{}, left_jacobian_inverse(data.turn, f), -in_parent};
                    then = {Vec3<T>{}, g, -in_parent};
                }
            }
            if (!joint.has_damper) continue;
            change.x_child = change.x_child - then.x_child;
            change.phi_child = change.phi_child - transposed_times(turn[joint.child], then.phi_child);
            change.phi_parent = change.phi_parent - transposed_times(turn[joint.parent], then.phi_parent);
        }
    }

    // Turning Δ = p⁺ p⁻¹: the child's p turns by R(p) φ behind p⁺ and before p⁻¹, the parent's by R_offᵀ φ in front of p⁺ and behind p⁻¹.
    void differentiate_moving(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const FreeData<T> &from,
                              MovingGradient<T> &out) const {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto back = [&](const RotationVector<T> &turn, const Vec3<T> &f, const RowGradient<T, T> &after) {
            return RowGradient<T, T>{Vec3<T>{}, -after.phi_child, data.offset * left_jacobian_inverse(turn, f)};
        };
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            RowGradient<T, T> before;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            if (translation) {
                const auto now = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                out.rate_next[i] = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, f);
                out.coordinate_next[i] = out.rate_next[i];
                out.rate_now[i] = {-now.x_child, -now.phi_child, -now.phi_parent};
                if (joint.armature < 0) continue;
                out.incoming_now[i] = now;
                const auto g = translation_gradient(from.incoming_parent, from.incoming_child, data.offset, from.incoming, anchor, f);
                before = {-g.x_child, -g.phi_child, -g.phi_parent};
            } else {
                out.rate_next[i] = turn_gradient(data.offset, data.now.p, from.turn, f);
                out.rate_now[i] = back(from.turn, f, out.rate_next[i]);
                if (joint.limited_r) out.coordinate_next[i] = angle_gradient(joint, data.offset, data.next.p, from.next, f);
                if (joint.armature < 0) continue;
                out.incoming_now[i] = turn_gradient(data.offset, from.incoming.p, from.incoming_turn, f);
                before = back(from.incoming_turn, f, out.incoming_now[i]);
            }
            out.before_child[i] = before_gradient(problem, joint.child, before.x_child, before.phi_child);
            out.before_parent[i] = before_gradient(problem, joint.parent, -before.x_child, before.phi_parent);
        }
    }

    // Armature, limits and friction: V = μ (−a (ċ⁺ − ċ)) − ν ċ⁺ ∓ ν c⁺ by the poses and by the velocities that led here.
    void moving_product(const Problem<T> &problem, const JointTable &joint, const FreeData<T> &from, const MovingGradient<T> &g) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        R rate[6] = {}, coordinate[6] = {};
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            if (cone.kind == JointConeTable::friction) rate[cone.coordinate] -= inverse * multiplier[cone.impulse + cone.stride];
            else coordinate[cone.coordinate] -= cone.sign() * multiplier[cone.impulse];
        }
        for (int i = 0; i < joint.free(); ++i) {
            R incoming{};
            if (joint.armature >= 0) {
                incoming = (inverse * problem.parameters[joint.armature + i]) * right[joint.right + joint.held() + i];
                rate[i] = rate[i] - incoming;
            }
            // Rotations move no positions.
            const bool translation = i < joint.free_t();
            auto add_next = [&](const R &weight, const RowGradient<T, T> &g) {
                if (translation) subtract(x_next, joint, -(weight * g.x_child), weight * g.x_child);
                subtract(phi_next, joint, -(weight * g.phi_child), -(weight * g.phi_parent));
            };
            auto add_now = [&](const R &weight, const RowGradient<T, T> &g) {
                if (translation) return add(weight, g, joint);
                gradient.phi[joint.child] = gradient.phi[joint.child] + weight * g.phi_child;
                gradient.phi[joint.parent] = gradient.phi[joint.parent] + weight * g.phi_parent;
            };
            if (joint.num_cones && (translation || joint.limited_r)) add_next(coordinate[i], g.coordinate_next[i]);
            if (joint.armature < 0 && !joint.has_friction) continue;
            add_next(rate[i], g.rate_next[i]);
            add_now(rate[i], g.rate_now[i]);
            if (joint.armature < 0) continue;
            add_now(incoming, g.incoming_now[i]);
            add_before(problem, joint.child, translation, incoming, g.before_child[i]);
            add_before(problem, joint.parent, translation, incoming, g.before_parent[i]);
        }
    }

    // The pose before: x − h v, and φ turned by R(increment), less h N ω as in free.hpp.
    typename MovingGradient<T>::Before before_gradient(const Problem<T> &problem, int body, const Vec3<T> &x, const Vec3<T> &phi) const {
        if (body == mechanism.num_bodies) return typename MovingGradient<T>::Before{Vec3<T>{}, Vec3<T>{}, Vec3<T>{}};
        const T h = problem.timestep();
        const Vec3<T> a = (0.5 * h) * load3(&problem.z[state_size * body + 10]);
        const T c = sqrt(1.0 - dot(a, a));
        return {x, transposed_times(rotation_matrix(Quat<T>{c, a}), phi), -h * (c * phi + (dot(a, phi) / c) * a - cross(a, phi))};
    }

    void add_before(const Problem<T> &problem, int body, bool translation, const R &weight, const typename MovingGradient<T>::Before &g) {
        if (body == mechanism.num_bodies) return;
        if (translation) {
            gradient.x[body] = gradient.x[body] + weight * g.x;
            gradient.v[body] = gradient.v[body] - weight * (problem.timestep() * g.x);
        }
        gradient.phi[body] = gradient.phi[body] + weight * g.phi;
        gradient.omega[body] = gradient.omega[body] + weight * g.omega;
    }

    static bool acts(const JointTable &joint) { return joint.size || free_acts(joint); }

    void joint_product(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const FreeGradient<T> &free,
                       const ImpulseInFrames<T> &impulse) {
        const T h = problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == mechanism.num_bodies;
        const int held = joint.held();

        // Rows at the next configuration: −μᵀ ∂(C_T d, C_R vec p).
        Vec3<R> mu_t{}, mu_r{};
        for (int k = 0; k < held; ++k) {
            bool translation;
            const Vec3<T> c = joint_direction(problem, joint, k, translation);
            Vec3<R> &mu = translation ? mu_t : mu_r;
            mu = mu + multiplier[joint.row + k] * c;
        }
        if (joint.size) {
            auto g = translation_gradient(parent.next, child.next, data.offset, data.next, load3(p + parameter::child_anchor), mu_t);
            add_rotation_gradient(g, data.offset, data.next.p, mu_r);
            subtract(x_next, joint, g.x_child, -g.x_child);
            subtract(phi_next, joint, g.phi_child, g.phi_parent);
        }

        const Vec3<R> a_v = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent]);
        const Vec3<R> a_w = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent + 3]);
        const Vec3<R> b_v = load3(&multiplier[6 * joint.child]), b_w = load3(&multiplier[6 * joint.child + 3]);

        // Inputs, springs and dampers: gradients of what they depend on.
        if (joint.has_spring || joint.has_damper || joint.input >= 0) {
            const T *spring = p + joint.spring(), *damper = p + joint.damper();
            for (int k = held; k < 6; ++k) {
                const int i = k - held;
                const T *on_child = data.wrench_child + k, *on_parent = data.wrench_parent + k;
                R power{};
                for (int r = 0; r < 3; ++r) {
                    power += on_child[6 * r] * b_v[r] + on_child[6 * (3 + r)] * b_w[r];
                    power += on_parent[6 * r] * a_v[r] + on_parent[6 * (3 + r)] * a_w[r];
                }
                if (joint.input >= 0) gradient.u[joint.input + i] += h * power;
                if (joint.has_spring) add(-h * spring[i] * power, free.coordinate[i], joint);
                if (joint.has_damper) add(-damper[i] * right[joint.right + k], free.difference[i], joint);
            }
        }
        if (joint.free_data >= 0) moving_product(problem, joint, problem.free[joint.free_data], moving[joint.free_data]);
        impulse_product(problem, joint, data, impulse);
    }

    // Rows of the coordinates −μ c⁺, and the impulses along them at the current configuration.
    void coupling_product(const Problem<T> &problem, int c) {
        const CouplingTable &coupling = mechanism.couplings[c];
        const CouplingData<T> &data = problem.couplings[c];
        const R mu = multiplier[coupling.row];
        for (const int e : {0, 1}) {
            const CouplingEnd<T> end(problem, coupling, e);
            const RowGradient<T, T> &g = data.next[e];
            subtract(x_next, end.joint, mu * g.x_child, -(mu * g.x_child));
            subtract(phi_next, end.joint, mu * g.phi_child, mu * g.phi_parent);
            impulse_product(problem, end.joint, end.data, coupling_impulses[2 * c + e]);
        }
    }

    // Impulses at the current configuration: force f and torque τ in the joint frame, V = λᵀ(impulses),
    //   V = F·(β_v − α_v + R_b(β_ω × p_b)) + R_b β_ω·Q τ − α_ω·R_off τ − y_a·((R_off f) × α_ω),   F = Q f,   y_a = R_aᵀ y.
    void impulse_product(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const ImpulseInFrames<T> &in) {
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == mechanism.num_bodies;
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const Vec3<R> a_v = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent]);
        const Vec3<R> a_w = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent + 3]);
        const Vec3<R> b_v = load3(&multiplier[6 * joint.child]), b_w = load3(&multiplier[6 * joint.child + 3]);
        const JointImpulse<T> &impulse = in.impulse;
        const Quat<T> &rel = data.now.p;
        const Mat3<T> &Ra = parent.pose.R, &Rb = child.pose.R;
        const Vec3<R> swing = cross(b_w, anchor);
        const Vec3<R> A = b_v - a_v + Rb * swing, turn = Rb * b_w, k = cross(in.f_a, a_w);
        const Vec3<R> world_k = Ra * k, turn_a = transposed_times(Ra, turn);
        Vec3<R> phi_a = cross(in.f_a, transposed_times(Ra, A)) + cross(in.tau_a, turn_a) - cross(k, data.now.y_parent);
        Vec3<R> phi_b = cross(swing, in.f_b) + cross(b_w, in.tau_b) - cross(anchor, transposed_times(Rb, world_k));
        // σ = ∂V/∂τ, for what of τ depends on the relative orientation.
        const Vec3<R> sigma = transposed_times(data.offset, turn_a - a_w);
        const R s0 = 0.5 * dot(impulse.held, sigma);
        const Vec3<R> sv = 0.5 * cross(impulse.held, sigma);
        const Vec3<R> straight = s0 * rel.v - rel.w * sv;
        phi_b = phi_b - 0.5 * (straight - cross(sv, rel.v));
        phi_a = phi_a + data.offset * (0.5 * (straight - cross(rel.v, sv)));
        if (impulse.angle) {
            const Vec3<R> g = push_gradient(*impulse.angle, impulse.pushes, sigma);
            phi_b = phi_b + left_jacobian_inverse(*impulse.angle, g);
            phi_a = phi_a - data.offset * right_jacobian_inverse(*impulse.angle, g);
        }
        gradient.phi[joint.parent] = gradient.phi[joint.parent] + phi_a;
        gradient.phi[joint.child] = gradient.phi[joint.child] + phi_b;
        gradient.x[joint.parent] = gradient.x[joint.parent] + world_k;
        gradient.x[joint.child] = gradient.x[joint.child] - world_k;
    }

    // Contacts: see adjoint_contact.hpp.
    void subtract_contact(const Problem<T> &problem, int c, R *y) const;
    Vec3<R> contact_multiplier(const Problem<T> &problem, int c, const R *g, const R *x);
    R friction_multiplier(const ContactTable &friction, const FrictionData<T> &data, const R *g, R *nu);
    const R *other_body(const ContactTable &contact, const R *x) const;
    ContactByTurn<T> differentiate_contact(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) const;
    void contact_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w);
    void pair_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w);
    void shift_product(const Problem<T> &problem, const ContactTable &contact, const R &nu);
    R bounce_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const Vec3<T> &omega, const R &nu,
                     Vec3<R> &phi);

    TD_INLINE void subtract(std::vector<Vec3<R>> &to, const JointTable &joint, const Vec3<R> &child, const Vec3<R> &parent) {
        to[joint.child] = to[joint.child] - child;
        to[joint.parent] = to[joint.parent] - parent;
    }

    TD_INLINE void add(const R &weight, const RowGradient<T, T> &g, const JointTable &joint) {
        const Vec3<R> x = weight * g.x_child;
        gradient.x[joint.child] = gradient.x[joint.child] + x;
        gradient.x[joint.parent] = gradient.x[joint.parent] - x;
        gradient.phi[joint.child] = gradient.phi[joint.child] + weight * g.phi_child;
        gradient.phi[joint.parent] = gradient.phi[joint.parent] + weight * g.phi_parent;
    }
};

}  // namespace torchdojo
