// Derivatives of the solved step by the implicit function theorem: the transposed system, and products with the derivatives of the residual
// by the data (z, u, wrench).
//
// At the solution r(w; z, u, f) = 0. For a gradient g = ∂L/∂w, solve (∂r/∂w)ᵀ λ = g; then ∂L/∂(z, u, f) = −λᵀ ∂r/∂(z, u, f)  (Howell et al.
// 2025, section V). Writing λ = (α_v, α_ω) per body, μ per multiplier and (ν_φ, ν_μ, ν_t) per contact, −λᵀr is, up to terms without data,
//     Σ bodies  α·(known momentum)  +  Σ joints λᵀ(impulses on both bodies) − μᵀ(rows)  +  Σ contacts α_ω·(l × P) − ν_φ φ − ν_tᵀ slip,
// and each term is differentiated by hand below. Scalars: the problem has T; the adjoint R, which is T, or Pack over a double problem with
// one right-hand side per lane.
#pragma once

#include "limit.hpp"
#include "solver.hpp"

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

template <class T, class R>
class Adjoint {
public:
    explicit Adjoint(const MechanismTable &m)
        : mechanism(m), gradient(m), multiplier(m.num_unknowns), refined(m.has_loops || m.num_contacts || m.num_joint_cones),
          right(m.schedule.num_rows), misfit(right), wanted(right), nothing(m.num_unknowns), given_way(m.num_unknowns), taken(m.num_unknowns),
          matrix(m.schedule.num_values), phi_next(m.num_bodies + 1), x_next(m.num_bodies + 1), turn(m.num_bodies + 1),
          touching(m.num_contacts), pressing(m.num_joint_cones), free(m.num_joints),
          moving(m.num_free_data) {}

    const MechanismTable &mechanism;
    DataGradient<R> gradient;
    std::vector<R> multiplier;        // λ in the places of w (zero in complementarity rows, which no datum enters)
    const T *give = nullptr;          // in the limit κ → 0: compliance of what is held (Limit::apply), which refinement takes out

    // Factor the derivative at w, where `problem` has been prepared.
    void factor(Problem<T> &problem, Cones<T> &cones, const T *w) {
        cones.template condense<true>(problem, w);
        problem.template linearize<false>(w);
        if (refined) matrix = problem.values;
        problem.condense();
        Stepper<T>::regularize(mechanism, problem);
        ldu_factor(mechanism.schedule, problem.values.data());
        for (int i = 0; i <= mechanism.num_bodies; ++i) turn[i] = rotation_matrix(problem.bodies[i].increment);
        for (int j = 0; j < mechanism.num_joints; ++j) {
            const JointTable &joint = mechanism.joints[j];
            differentiate_free(problem, joint, problem.joints[j], free[j]);
            if (joint.free_data >= 0)
                differentiate_moving(problem, joint, problem.joints[j], problem.free[joint.free_data], moving[joint.free_data]);
        }
    }

    // λ for the gradient g of w (none for slacks).
    void solve(const Problem<T> &problem, const T *w, const R *g) {
        point = w;
        const MechanismTable &m = mechanism;
        for (int i = 0; i < m.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) right[m.bodies[i].right + k] = g[6 * i + k];
        for (const JointTable &joint : m.joints)
            for (int k = 0; k < joint.size; ++k) right[joint.right + k] = k < joint.held() ? g[joint.row + k] : R{};
        if (refined) wanted = right;
        if (give) std::fill(taken.begin(), taken.end(), R{});
        std::fill(multiplier.begin(), multiplier.end(), R{});
        std::fill(touching.begin(), touching.end(), Vec3<R>{});
        std::fill(pressing.begin(), pressing.end(), R{});
        add_cone_multipliers(problem, g, nullptr);
        subtract_cones(problem, right.data());
        ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), right.data());
        add_cone_multipliers(problem, nothing.data(), right.data());
        for (int pass = 0; refined && pass < (give ? constant::limit_refinements : 1); ++pass) {
            misfit = wanted;
            ldu_subtract_transposed_product<T, R>(m.schedule, matrix.data(), right.data(), misfit.data());
            if (give) {
                find_given_way();
                add_cone_multipliers(problem, given_way.data(), nullptr);
            }
            subtract_cones(problem, misfit.data());
            ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), misfit.data());
            for (int k = 0; k < m.schedule.num_rows; ++k) right[k] += misfit[k];
            add_cone_multipliers(problem, nothing.data(), misfit.data());
        }

        for (int i = 0; i < m.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) multiplier[6 * i + k] = right[m.bodies[i].right + k];
        for (const JointTable &joint : m.joints)
            for (int k = 0; k < joint.held(); ++k) multiplier[joint.row + k] = right[joint.right + k];
        for (int c = 0; c < m.num_contacts; ++c) {
            const ContactTable &contact = m.contacts[c];
            const Vec3<R> &nu = touching[c];
            multiplier[contact.impulse] = nu.x;
            if (contact.friction == 1) multiplier[contact.impulse + 2] = nu.y, multiplier[contact.impulse + 3] = nu.z;
        }
        for (int c = 0; c < m.num_joint_cones; ++c) {
            const JointConeTable &cone = m.joint_cones[c];
            const R &nu = pressing[c];
            if (cone.kind == JointConeTable::friction) {
                const T *x = w + cone.impulse, *slack = w + cone.slack;
                multiplier[cone.impulse + cone.stride] = nu;
                multiplier[cone.impulse] = g[cone.impulse] + 0.5 * right[m.joints[cone.joint].right + cone.row] - (slack[0] / x[0] - (give ? give[cone.impulse] : T{})) * nu;
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
            const T *p = problem.body_parameters(i), *state = &problem.z[state_size * i];
            const Mat3<T> J = load33(p + parameter::inertia);
            const Vec3<T> omega = load3(state + 10), spin = J * omega;
            const Vec3<R> linear = load3(&multiplier[6 * i]), angular = load3(&multiplier[6 * i + 3]);
            const T scale = sqrt(1.0 - 0.25 * h * h * dot(omega, omega));
            gradient.v[i] = p[parameter::mass] * linear;
            // of α·(s Jω − (h/2) ω × Jω)
            gradient.omega[i] = transposed_times(J, scale * angular - (0.5 * h) * cross(angular, omega)) -
                                ((0.25 * h * h / scale) * dot(spin, angular)) * omega + (0.5 * h) * cross(angular, spin);
            gradient.force[i] = h * linear;
            gradient.torque[i] = h * angular;
        }
        for (int j = 0; j < m.num_joints; ++j) joint_product(problem, m.joints[j], problem.joints[j], free[j], w);
        for (int c = 0; c < m.num_contacts; ++c) contact_product(problem, m.contacts[c], problem.contacts[c], w);
        // The next pose moves with the current one: x⁺ = x + …, φ⁺ = R(increment)ᵀ φ.
        for (int i = 0; i < m.num_bodies; ++i) {
            gradient.x[i] = gradient.x[i] + x_next[i];
            gradient.phi[i] = gradient.phi[i] + turn[i] * phi_next[i];
        }
    }

private:
    // A pressed contact adds entries to a block of masses whose digits are lost in proportion, and loops are regularized. One step of
    // iterative refinement against the matrix before that brings the digits back, with the multipliers ν of the cones as unknowns of their
    // own, ν += K (B δα): from the refined α, K (B α) would be a small number, known to rounding of α, times a large one, γ/s = γ²/κ.
    const bool refined;
    const T *point = nullptr;         // w
    std::vector<R> right, misfit, wanted;  // by rows of the matrix
    const std::vector<R> nothing;     // a gradient of zeros
    std::vector<R> given_way, taken;  // gradients: see find_given_way
    std::vector<T> matrix;            // neither condensed nor regularized
    std::vector<Vec3<R>> phi_next, x_next;
    std::vector<Mat3<T>> turn;        // of the increments
    std::vector<Vec3<R>> touching;    // ν_φ and ν_t of contacts
    std::vector<R> pressing;          // ν of limits and frictions of joints
    std::vector<FreeGradient<T>> free;
    std::vector<MovingGradient<T>> moving;

    // What is left of the right-hand sides of the columns of held impulses: what their compliance, which they do not have in the limit, took
    // up since the last time, compliance times ν. With it in the place of g, refinement is the proximal point method (limit_maps.py).
    void find_given_way() {
        auto find = [&](int at, const R &nu) {
            const R now = give[at] * nu;
            given_way[at] = now - taken[at], taken[at] = now;
        };
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const int at = contact.impulse;
            find(at, touching[c].x);
            if (contact.friction == 1) find(at + 2, touching[c].y), find(at + 3, touching[c].z);
            if (contact.is_pyramid())
                for (int k = at + 2; k < at + contact.size(); ++k) find(k, multiplier[k]);
        }
        for (int c = 0; c < mechanism.num_joint_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            find(cone.impulse, pressing[c]);
            if (cone.pairs() > 1) find(cone.impulse + cone.stride, -pressing[c]);
        }
    }

    // ν of all cones grows by what belongs to the gradient g and to λ = x (null: zero).
    void add_cone_multipliers(const Problem<T> &problem, const R *g, const R *x) {
        for (int c = 0; c < mechanism.num_contacts; ++c) touching[c] = touching[c] + contact_multiplier(problem, c, g, x);
        for (int c = 0; c < mechanism.num_joint_cones; ++c) pressing[c] += joint_cone_multiplier(problem, c, g, x);
    }

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

    // y −= Cᵀ ν for the ν of contact c
    TD_INLINE void subtract_contact(const Problem<T> &problem, int c, R *y) const {
        const ContactTable &contact = mechanism.contacts[c];
        const Vec3<R> &nu = touching[c];
        auto subtract = [&](const T *C, R *to) {
            for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
                for (int k = 0; k < 6; ++k) to[k] -= C[6 * r + k] * nu[r];
        };
        subtract(problem.contacts[c].rows, y + mechanism.bodies[contact.body].right);
        if (!other_body(contact, y)) return;
        const PairTable &pair = mechanism.pairs[contact.pair];
        subtract(problem.pairs[contact.pair].other_rows, y + mechanism.bodies[pair.other].right);
    }

    // (ν_φ, ν_t) of contact c from g and λ = x (null: zero); ν_μ, or those of a pyramid's rows, are added to `multiplier`. Columns of the
    // transposed system:
    //   γ: s ν_s − μ ν_μ = g_γ + b_n     s: ν_φ = γ ν_s     ξ, η: ν_t = Nᵀ q, ν_μ = g_ξ₁ + m·q with q = g_ξ₂₃ + b_t
    TD_INLINE Vec3<R> contact_multiplier(const Problem<T> &problem, int c, const R *g, const R *x) {
        const ContactTable &contact = mechanism.contacts[c];
        const ContactData<T> &data = problem.contacts[c];
        Vec3<R> b{};  // Bᵀ α
        auto add = [&](const T *wrench, const R *body) {
            for (int k = 0; k < (contact.friction ? 3 : 1); ++k)
                for (int r = 0; r < 6; ++r) b[k] += wrench[3 * r + k] * body[r];
        };
        if (x) add(data.wrench, x + mechanism.bodies[contact.body].right);
        if (const R *other = other_body(contact, x)) add(problem.pairs[contact.pair].other_wrench, other);
        R n = g[contact.impulse] + b.x, tangential[2] = {b.y, b.z};
        if (!contact.friction) return {data.stiffness * n, R{}, R{}};
        const T mu = problem.parameters[contact.parameters + parameter::friction];
        R *rows = &multiplier[contact.impulse + 1];
        if (contact.is_pyramid()) {
            const Pyramid<T> pyramid{contact};
            R own[1 + most_facets];
            pyramid.multipliers(point + contact.impulse + 1, point + contact.slack + 1, g + contact.impulse + 1, tangential, own);
            pyramid.tangential(own + 1, tangential);
            for (int k = 0; k <= contact.facets; ++k) rows[k] += own[k];
            n -= mu * own[0];
            return {data.stiffness * n, tangential[0], tangential[1]};
        }
        for (int i = 0; i < 2; ++i) tangential[i] += g[contact.impulse + 2 + i];
        const R *q = tangential;
        const R height = g[contact.impulse + 1] + data.cone_coupling[0] * q[0] + data.cone_coupling[1] * q[1];
        rows[0] += height;
        n += mu * height;
        return {data.stiffness * n, data.compliance[0] * q[0] + data.compliance[2] * q[1],
                data.compliance[1] * q[0] + data.compliance[3] * q[1]};
    }

    // Direction k of the joint frame: held ones first, then the free ones.
    TD_INLINE Vec3<T> direction(const Problem<T> &problem, const JointTable &joint, int k, bool &translation) const {
        const bool is_free = k >= joint.held();
        const int i = is_free ? k - joint.held() : k, split = is_free ? joint.free_t() : joint.held_t;
        translation = i < split;
        const int row = translation ? (is_free ? joint.held_t : 0) + i : (is_free ? joint.held_r : 0) + i - split;
        return load3(&problem.parameters[joint.parameters] + (translation ? parameter::translations : parameter::rotations) + 3 * row);
    }

    // The pose before is the current one turned back by the increment: its φ is R(increment) φ.
    void differentiate_free(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, FreeGradient<T> &out) const {
        if (!joint.has_spring && !joint.has_damper) return;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        const Mat3<T> before = rotation_matrix(data.before.p);
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = direction(problem, joint, joint.held() + i, translation);
            RowGradient<T, T> &now = out.coordinate[i], &change = out.difference[i], then;
            if (translation) {
                now = change = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                if (joint.has_damper) then = translation_gradient(parent.before, child.before, data.offset, data.before, anchor, f);
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
            const Vec3<T> f = direction(problem, joint, joint.held() + i, translation);
            if (translation) {
                const auto now = translation_gradient(parent.pose, child.pose, data.offset, data.now, anchor, f);
                out.rate_next[i] = out.coordinate_next[i] = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, f);
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

    void joint_product(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const FreeGradient<T> &free,
                       const T *w) {
        const bool free_acts = joint.has_spring || joint.has_damper || joint.input >= 0 || joint.free_data >= 0;
        if (!joint.size && !free_acts) return;
        const T h = problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == mechanism.num_bodies;
        const Vec3<T> anchor = load3(p + parameter::child_anchor);
        const int held = joint.held();

        // Rows at the next configuration: −μᵀ ∂(C_T d, C_R vec p).
        Vec3<R> mu_t{}, mu_r{};
        Vec3<T> force{}, held_torque{}, free_torque{};
        for (int k = 0; k < held; ++k) {
            bool translation;
            const Vec3<T> c = direction(problem, joint, k, translation);
            const R mu = multiplier[joint.row + k];
            const T impulse = w[joint.row + k];
            if (translation) mu_t = mu_t + mu * c, force = force + impulse * c;
            else mu_r = mu_r + mu * c, held_torque = held_torque + impulse * c;
        }
        if (joint.size) {
            auto g = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, mu_t);
            add_rotation_gradient(g, data.offset, data.next.p, mu_r);
            subtract(x_next, joint, g.x_child, -g.x_child);
            subtract(phi_next, joint, g.phi_child, g.phi_parent);
        }

        const Vec3<R> a_v = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent]);
        const Vec3<R> a_w = world ? Vec3<R>{} : load3(&multiplier[6 * joint.parent + 3]);
        const Vec3<R> b_v = load3(&multiplier[6 * joint.child]), b_w = load3(&multiplier[6 * joint.child + 3]);

        // Free directions: impulses of inputs, springs and dampers; gradients of what those depend on.
        if (free_acts) {
            const T *spring = p + parameter::free_values, *damper = spring + joint.free();
            for (int k = held; k < 6; ++k) {
                bool translation;
                const Vec3<T> f = direction(problem, joint, k, translation);
                const int i = k - held;
                const T impulse = data.free_force[i] + (joint.has_damper || joint.free_data >= 0 ? data.impulse[i] : T{});
                if (translation) force = force + impulse * f;
                else free_torque = free_torque + impulse * f;
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

        // Limits on components of the rotation vector push along J_l⁻ᵀ f.
        Vec3<T> pushes{};
        if (joint.free_data >= 0) {
            const FreeData<T> &from = problem.free[joint.free_data];
            for (int e = 0; e < joint.extra; ++e)
                pushes = pushes + from.extra_impulse[e] * load3(p + parameter::rotations + 3 * (joint.held_r + e));
            if (joint.extra) free_torque = free_torque + right_jacobian_inverse(from.now, pushes);
            moving_product(problem, joint, from, moving[joint.free_data]);
        }

        // Impulses at the current configuration: force f and torque τ in the joint frame, V = λᵀ(impulses),
        //   V = F·(β_v − α_v + R_b(β_ω × p_b)) + R_b β_ω·Q τ − α_ω·R_off τ − y_a·((R_off f) × α_ω),   F = Q f,   y_a = R_aᵀ y.
        const Quat<T> &rel = data.now.p;
        const Mat3<T> &Ra = parent.pose.R, &Rb = child.pose.R;
        const Vec3<T> tau = 0.5 * (rel.w * held_torque + cross(rel.v, held_torque)) + free_torque;
        const Vec3<T> f_a = data.offset * force, tau_a = data.offset * tau, F = Ra * f_a;
        const Vec3<T> F_b = transposed_times(Rb, F), tau_b = transposed_times(Rb, Ra * tau_a);
        const Vec3<R> swing = cross(b_w, anchor);
        const Vec3<R> A = b_v - a_v + Rb * swing, turn = Rb * b_w, k = cross(f_a, a_w);
        const Vec3<R> world_k = Ra * k, turn_a = transposed_times(Ra, turn);
        Vec3<R> phi_a = cross(f_a, transposed_times(Ra, A)) + cross(tau_a, turn_a) - cross(k, data.now.y_parent);
        Vec3<R> phi_b = cross(swing, F_b) + cross(b_w, tau_b) - cross(anchor, transposed_times(Rb, world_k));
        // The torque of held rotations, ½(p_w m + p_v × m), depends on the relative orientation; σ = ∂V/∂τ.
        const Vec3<R> sigma = transposed_times(data.offset, turn_a - a_w);
        const R s0 = 0.5 * dot(held_torque, sigma);
        const Vec3<R> sv = 0.5 * cross(held_torque, sigma);
        const Vec3<R> straight = s0 * rel.v - rel.w * sv;
        phi_b = phi_b - 0.5 * (straight - cross(sv, rel.v));
        phi_a = phi_a + data.offset * (0.5 * (straight - cross(rel.v, sv)));
        if (joint.extra) {
            const RotationVector<T> &angle = problem.free[joint.free_data].now;
            const Vec3<R> g = push_gradient(angle, pushes, sigma);
            phi_b = phi_b + left_jacobian_inverse(angle, g);
            phi_a = phi_a - data.offset * right_jacobian_inverse(angle, g);
        }
        gradient.phi[joint.parent] = gradient.phi[joint.parent] + phi_a;
        gradient.phi[joint.child] = gradient.phi[joint.child] + phi_b;
        gradient.x[joint.parent] = gradient.x[joint.parent] + world_k;
        gradient.x[joint.child] = gradient.x[joint.child] - world_k;
    }

    // Gradient by θ of σ·(f + ½ θ × f + c θ × (θ × f)), c(s) = (1 − y)/s with s = |θ|² and y = (|θ|/2) cot(|θ|/2).
    static Vec3<R> push_gradient(const RotationVector<T> &angle, const Vec3<T> &f, const Vec3<R> &sigma) {
        const Vec3<T> &theta = angle.theta;
        const T s = dot(theta, theta), y = 1.0 - angle.curvature * s, safe = max(s, broadcast<T>(1e-2));
        const T slope = select(s < 1e-2, 1.0 / 720.0 + s * (1.0 / 15120.0 + s * (1.0 / 403200.0 + s / 11975040.0)),
                               -(y - y * y - 0.25 * s) / (2.0 * safe * safe) - angle.curvature / safe);
        const R along = dot(sigma, theta), across = dot(sigma, f);
        const T inside = dot(theta, f);
        return 0.5 * cross(f, sigma) + angle.curvature * (inside * sigma + along * f - (2.0 * across) * theta) +
               (2.0 * slope * (along * inside - s * across)) * theta;
    }

    // The part of the other body of a pair in x (by rows of the matrix), or null.
    const R *other_body(const ContactTable &contact, const R *x) const {
        if (!x || contact.pair < 0 || mechanism.pairs[contact.pair].other == mechanism.num_bodies) return nullptr;
        return x + mechanism.bodies[mechanism.pairs[contact.pair].other].right;
    }

    // Contacts between bodies or shapes: V = α_a·wrench_a + α_b·wrench_b − ν_φ gap − ν_t·slip, by the next poses (from linearize_pair) and
    // by what the current ones do besides: Δ in the levers, and the frames of torques and angular velocities.
    void pair_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) {
        const PairTable &pair = mechanism.pairs[contact.pair];
        const PairData<T> &from = problem.pairs[contact.pair];
        const bool world = pair.other == mechanism.num_bodies;
        const int bodies[2] = {contact.body, pair.other};
        const Vec3<R> &nu = touching[&contact - mechanism.contacts.data()];
        const T one = broadcast<T>(1.0), zero{}, h = problem.timestep();
        const bool has_law = contact.restitution >= 0;
        const T law = has_law ? select(problem.laws[contact.law].bouncing, h, zero) : zero, e = has_law ? problem.parameters[contact.restitution] : zero;
        R g[12] = {};
        for (const int i : {0, 1}) {
            if (i && world) continue;
            for (int r = 0; r < 6; ++r)
                for (int k = 0; k < 12; ++k) g[k] += from.wrench[i][r][k] * multiplier[6 * bodies[i] + r];
        }
        for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
            for (int k = 0; k < 12; ++k) g[k] -= from.rows[r][k] * nu[r];
        // −(what u⁺ and u⁻ are multiplied with)
        const Vec3<R> slip = contact.friction ? nu.y * from.t1 + nu.z * from.t2 : Vec3<R>{};
        const Vec3<R> leaving = -slip - nu.x * (law * from.n), arriving = -nu.x * (law * e * from.n);
        Vec3<R> by_lever[2] = {};
        for (const int i : {0, 1}) {
            if (i && world) continue;
            const double sign = i ? -1.0 : 1.0;
            const int body = bodies[i];
            const T *state = &problem.z[state_size * body];
            const Mat3<T> &pose = problem.bodies[body].pose.R;
            const Vec3<T> before = load3(state + 10), &lever = from.lever[i];
            x_next[body] = x_next[body] + Vec3<R>{g[6 * i], g[6 * i + 1], g[6 * i + 2]};
            phi_next[body] = phi_next[body] + Vec3<R>{g[6 * i + 3], g[6 * i + 4], g[6 * i + 5]};
            const Vec3<R> pull = sign * transposed_times(pose, cross(lever, arriving));  // of R ω⁻ × l
            gradient.v[body] = gradient.v[body] + sign * arriving;
            gradient.omega[body] = gradient.omega[body] + pull;
            gradient.phi[body] = gradient.phi[body] + cross(before, pull);
            if (world) continue;
            const Vec3<T> omega = load3(w + 6 * body + 3), spin = pose * omega;
            const Vec3<R> alpha = load3(&multiplier[6 * body + 3]);
            const Vec3<T> torque = transposed_times(pose, cross(lever, from.force));
            by_lever[i] = sign * (cross(from.force, pose * alpha) + cross(leaving, spin) + cross(arriving, pose * before));
            // δ(Rᵀ X) = (Rᵀ X) × φ, δ(R ω) = R (φ × ω)
            gradient.phi[body] = gradient.phi[body] + sign * (cross(alpha, torque) + cross(omega, transposed_times(pose, cross(lever, leaving))));
        }
        if (world) return;
        const Vec3<R> shift = 0.5 * (by_lever[1] - by_lever[0]);
        gradient.x[bodies[0]] = gradient.x[bodies[0]] + shift;
        gradient.x[bodies[1]] = gradient.x[bodies[1]] - shift;
    }

    void contact_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T *w) {
        if (contact.pair >= 0) return pair_product(problem, contact, data, w);
        const T *p = &problem.parameters[contact.parameters], *impulse = w + contact.impulse;
        const Vec3<T> omega = load3(w + 6 * contact.body + 3), sweep = cross(omega, data.lever);
        const T radius = p[parameter::radius];
        const R nu = multiplier[contact.impulse];
        Vec3<T> force = impulse[0] * data.n;
        const Vec3<T> normal = load3(p + parameter::normal);
        R direct = nu;  // of φ⁺ + shift
        Vec3<R> phi{};
        if (contact.restitution >= 0) direct = bounce_product(problem, contact, data, omega, nu, phi);
        phi = phi - direct * cross(load3(p + parameter::point), data.n);
        if (contact.recovery >= 0 || contact.stiffness >= 0) {
            // shift = −min(φ + h v_rec, 0) − softness·damping·min(φ, 0)
            T slope{};
            const T one = broadcast<T>(1.0);
            if (contact.recovery >= 0)
                slope += select(problem.laws[contact.law].distance + problem.timestep() * problem.parameters[contact.recovery] < T{}, one, T{});
            if (contact.stiffness >= 0)
                slope += select(problem.laws[contact.law].distance < T{}, problem.laws[contact.law].softness * problem.parameters[contact.stiffness + 1], T{});
            const Vec3<T> n = transposed_times(problem.bodies[contact.body].pose.R, normal);
            gradient.x[contact.body] = gradient.x[contact.body] + direct * (slope * normal);
            gradient.phi[contact.body] = gradient.phi[contact.body] + direct * (slope * cross(load3(p + parameter::point), n));
        }
        if (contact.friction) {
            const Vec3<R> &slip = touching[&contact - mechanism.contacts.data()];
            force = force + data.beta[0] * data.t1 + data.beta[1] * data.t2;
            phi = phi - slip.y * Problem<T>::slip_gradient(data, data.t1, omega, sweep, radius) -
                  slip.z * Problem<T>::slip_gradient(data, data.t2, omega, sweep, radius);
        }
        phi = phi + transposed_times(Problem<T>::torque_gradient(data, force, radius), load3(&multiplier[6 * contact.body + 3]));
        phi_next[contact.body] = phi_next[contact.body] + phi;
        x_next[contact.body] = x_next[contact.body] - direct * normal;
    }

    // −ν times Newton's law where it rules the gap, by the next orientation (added to `phi`) and the incoming velocity; ν where it does not.
    TD_INLINE R bounce_product(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const Vec3<T> &omega,
                               const R &nu, Vec3<R> &phi) {
        const T h = problem.timestep(), e = problem.parameters[contact.restitution], one = broadcast<T>(1.0);
        const T *p = &problem.parameters[contact.parameters];
        const BodyData<T> &body = problem.bodies[contact.body];
        const T law = select(problem.laws[contact.law].bouncing, h, T{});
        const Vec3<T> spin = transposed_times(body.next.R, problem.laws[contact.law].spin);
        phi = phi - nu * (law * Problem<T>::bounce_gradient(data, omega + e * spin, e * spin, p[parameter::radius]));
        // e n·(u⁻ with u⁻ = v + (R ω) × l⁺): of the current orientation and of the velocities in the state
        const Vec3<T> torque = transposed_times(body.pose.R, body.next.R * cross(data.lever, data.n));
        const R weight = nu * (law * e);
        const int i = contact.body;
        gradient.v[i] = gradient.v[i] - weight * load3(p + parameter::normal);
        gradient.omega[i] = gradient.omega[i] - weight * torque;
        gradient.phi[i] = gradient.phi[i] - weight * cross(load3(&problem.z[state_size * i + 10]), torque);
        return nu * select(problem.laws[contact.law].bouncing, T{}, one);
    }

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
