// Derivatives of the solved step by the implicit function theorem. The file has the transposed system, and products with the derivatives of
// the residual by the data (z, u, wrench).
//
// At the solution r(w; z, u, f) = 0. For a gradient g = ∂L/∂w, solve (∂r/∂w)ᵀ λ = g; then ∂L/∂(z, u, f) = −λᵀ ∂r/∂(z, u, f)  (Howell et al.
// 2025, section IV-C). Let λ be (α_v, α_ω) per body, μ per multiplier and (ν_φ, ν_μ, ν_t) per contact. Then −λᵀr is, up to terms without data,
//
//     Σ bodies  α·(constant momentum)  +  Σ joints λᵀ(impulses on both bodies) − μᵀ(rows)  +  Σ contacts α_ω·(l × P) − ν_φ φ − ν_tᵀ slip.
//
// Each element differentiates its own terms, which are derived by hand.
#pragma once

#include "gradient/tree_adjoint.hpp"
#include "solver/capacitance.hpp"

namespace torchdojo {

template <class T, class R>
class Adjoint : public AdjointState<T, R> {
public:
    using State = AdjointState<T, R>;
    using State::mechanism, State::gradient, State::multiplier, State::give, State::touching, State::phi_next, State::x_next;

    explicit Adjoint(const MechanismTable &m)
        : State(m), tree_adjoint(m), refinement(m), capacitance(m), misfit(m.schedule.num_rows), wanted(misfit),
          contact_rows(3 * m.num_contacts), contact_solution(contact_rows), nothing(m.num_unknowns), given_way(nothing),
          given_before(nothing), known_spin(m.num_bodies) {}

    Tree<T> *tree = nullptr;  // the prepared tree, if it is to solve instead of the sparse factors; for one right-hand side per matrix

    // Factors the derivative at w. `problem` must be prepared.
    void factor(Problem<T> &problem, Cones<T> &cones, const T *w) {
        cones.condense(problem, w);
        if (tree) {
            tree_adjoint.factor(*tree, problem, w);
        } else {
            linearize_step<false>(problem, w);
            refinement.condense(problem, give);
            capacitance.clear();
            std::fill(left_out.begin(), left_out.end(), 0);
            if constexpr (several_per_matrix) leave_out(problem);
            refinement.factor(problem);
            if constexpr (several_per_matrix) find_capacitance(problem);
        }
        for (int i = 0; i <= mechanism.num_bodies; ++i) turn[i] = rotation_matrix(problem.bodies[i].increment);
        for (int i = 0; i < mechanism.num_bodies; ++i) known_spin[i] = differentiate_known_spin(problem, i);
        Elements<T>::each([&](auto element) { element.differentiate(*this, problem, w); });
    }

    // λ for the gradient g of w, which is zero for slacks. Without `by_impulses`, g is nonzero for velocities alone; `sparse`: for a few.
    void solve(const Problem<T> &problem, const T *w, const R *g, bool by_impulses, bool sparse = false) {
        if constexpr (std::is_same_v<T, R>)
            if (tree) return solve_on_tree(problem, w, g, by_impulses);
        begin(problem, w, g);
        const MechanismTable &m = mechanism;
        const int passes = !any(refinement.needed) ? 0 : give ? constant::limit_refinements : m.has_loops ? constant::most_refinements : 1;
        if (passes) wanted = right;
        if (give) std::fill(given_before.begin(), given_before.end(), R{});
        if (by_impulses) {
            add_cone_multipliers(problem, g, nullptr);
            subtract_cones(problem, right.data());
        }
        ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), right.data(), sparse);
        if constexpr (several_per_matrix) add_left_out(problem, by_impulses ? g : nothing.data());
        add_cone_multipliers(problem, nothing.data(), right.data());
        Mask<R> refined = refine_lanes();
        R last = passes > 1 ? largest_multiplier(right) : R{};
        for (int pass = 0; pass < passes && any(refined); ++pass) {
            if (pass + 1 < passes) misfit = wanted;
            else misfit.swap(wanted);
            ldu_subtract_transposed_product<T, R>(m.schedule, refinement.matrix.data(), right.data(), misfit.data());
            if (give) {
                find_given_way();
                add_cone_multipliers(problem, given_way.data(), nullptr);
            }
            subtract_cones(problem, misfit.data());
            ldu_solve_transposed<T, R>(m.schedule, problem.values.data(), misfit.data());
            if (pass || lanes<T> == lanes<R>)
                for (R &value : misfit) value = select(refined, value, R{});
            for (int k = 0; k < m.schedule.num_rows; ++k) right[k] += misfit[k];
            add_cone_multipliers(problem, nothing.data(), misfit.data());
            if (give || passes == 1) continue;
            const R change = largest_multiplier(misfit);  // the next change is to this one as this one is to the last (kkt.py)
            refined = refined & (change * change > constant::refined * largest_multiplier(right) * last);
            last = change;
        }
        store(problem, w, g);
    }

    // Writes −λᵀ ∂r/∂(z, u, f) into `gradient`, at the w of `factor`.
    void multiply(const Problem<T> &problem, const T *w) {
        const MechanismTable &m = mechanism;
        const T h = problem.timestep();
        for (int i = 0; i <= m.num_bodies; ++i) gradient.x[i] = gradient.phi[i] = phi_next[i] = x_next[i] = Vec3<R>{};
        for (R &value : gradient.u) value = R{};
        for (int i = 0; i < m.num_bodies; ++i) {
            const Vec3<R> linear = load3(&multiplier[6 * i]), angular = load3(&multiplier[6 * i + 3]);
            gradient.v[i] = problem.body_parameters(i)[parameter::mass] * linear;
            gradient.omega[i] = known_spin[i] * angular;
            gradient.force[i] = h * linear;
            gradient.torque[i] = h * angular;
        }
        Elements<T>::each([&](auto element) { element.multiply(*this, problem, w); });
        // The next pose moves with the current one: x⁺ = x + …, φ⁺ = R(increment)ᵀ φ.
        for (int i = 0; i < m.num_bodies; ++i) {
            gradient.x[i] = gradient.x[i] + x_next[i];
            gradient.phi[i] = gradient.phi[i] + turn[i] * phi_next[i];
        }
    }

private:
    using State::point, State::right, State::turning, State::pressing, State::turn, State::left_out;
    TreeAdjoint<T> tree_adjoint;
    // One step of iterative refinement restores the digits that pressed contacts lose. The multipliers ν of the cones are separate
    // unknowns, ν += K (B δα). K (B α) from the refined α would multiply its rounding error by the large number γ/s = γ²/κ.
    Refinement<T> refinement;
    Capacitance<T> capacitance;
    static constexpr bool several_per_matrix = lanes<T> < lanes<R>;  // right-hand sides are in lanes
    std::vector<R> misfit, wanted;  // by rows of the matrix
    std::vector<R> contact_rows, contact_solution;
    const std::vector<R> nothing;  // a gradient of zeros
    std::vector<R> given_way, given_before;  // gradients: see find_given_way
    std::vector<Mat3<T>> known_spin;  // derivative of the constant angular momentum by ω

    // Right-hand sides from the gradient g of w, and sums of multipliers, which start at zero.
    void begin(const Problem<T> &problem, const T *w, const R *g) {
        point = w;
        const MechanismTable &m = mechanism;
        for (int i = 0; i < m.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) right[m.bodies[i].right + k] = g[6 * i + k];
        for (const JointTable &joint : m.joints)
            for (int k = joint.held(); k < joint.size; ++k) right[joint.right + k] = R{};
        for (const MultiplierTable &row : m.multipliers) right[row.right] = g[row.row];
        if (m.num_tendons) Tendons<T>::begin(*this, problem, g);
        for (const ContactTable &friction : m.frictions)  // sums; other rows are assigned, or stay zero
            std::fill_n(&multiplier[friction.friction_impulse()], friction.friction_size(), R{});
        std::fill(touching.begin(), touching.end(), Vec3<R>{});
        std::fill(turning.begin(), turning.end(), R{});
        std::fill(pressing.begin(), pressing.end(), R{});
    }

    void store(const Problem<T> &problem, const T *w, const R *g) {
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) multiplier[6 * i + k] = right[mechanism.bodies[i].right + k];
        for (const MultiplierTable &row : mechanism.multipliers) multiplier[row.row] = right[row.right];
        ConeElements<T>::each([&](auto element) { element.store_multipliers(*this, problem, w, g); });
    }

    // `solve` on the tree. Impulses of limits and frictions of joints lose no digits there, only pressed contacts do.
    void solve_on_tree(const Problem<T> &problem, const T *w, const R *g, bool by_impulses) {
        begin(problem, w, g);
        tree_adjoint.begin(problem, right.data());
        if (by_impulses) {
            add_cone_multipliers(problem, g, nullptr);
            tree_adjoint.subtract_joint_cones(problem, pressing);
        }
        if (any(tree_adjoint.needed[0])) tree_adjoint.keep();
        if (by_impulses) tree_adjoint.subtract_contacts(touching);
        tree_adjoint.solve(problem, right.data(), by_impulses, any(negate(tree_adjoint.needed[0])));
        add_cone_multipliers(problem, nothing.data(), right.data());
        for (const Mask<T> &needed : tree_adjoint.needed) {
            if (!any(needed)) break;
            tree_adjoint.misfit(*this, problem, w, right.data());
            tree_adjoint.correct(problem, misfit.data(), needed);
            for (const MultiplierTable &row : mechanism.multipliers)  // solved for anew
            {
                right[row.right] = select(needed, misfit[row.right], right[row.right]);
                misfit[row.right] = R{};
            }
            for (int k = 0; k < mechanism.schedule.num_rows; ++k) {
                misfit[k] = select(needed, misfit[k], R{});
                right[k] += misfit[k];
            }
            add_cone_multipliers(problem, nothing.data(), misfit.data());
        }
        store(problem, w, g);
    }

    // Held impulses have no compliance in hard gradients. The added compliance takes compliance times ν from their right-hand sides. The
    // change since the last refinement remains. With this change in the place of g, refinement is the proximal point method (hard_maps.py).
    void find_given_way() {
        ConeElements<T>::each([&](auto element) {
            element.each_held(*this, [&](int place, const R &nu) {
                const R given_now = give[place] * nu;
                given_way[place] = given_now - given_before[place];
                given_before[place] = given_now;
            });
        });
    }

    Mask<R> refine_lanes() const {
        if constexpr (lanes<T> == lanes<R>) return refinement.needed;
        else return negate(Mask<R>{});
    }

    // Largest multiplier of a solution by rows of the matrix.
    R largest_multiplier(const std::vector<R> &x) const {
        R largest{};
        for (const MultiplierTable &row : mechanism.multipliers) largest = max(largest, abs(x[row.right]));
        return largest;
    }

    // ν of all cones grows by the multipliers that follow from the gradient g and from λ = x (null: zero).
    void add_cone_multipliers(const Problem<T> &problem, const R *g, const R *x) {
        ConeElements<T>::each([&](auto element) { element.add_multipliers(*this, problem, g, x); });
    }

    // y −= Cᵀ ν for all cones
    void subtract_cones(const Problem<T> &problem, R *y) const {
        ConeElements<T>::each([&](auto element) { element.subtract(*this, problem, y); });
    }

    // The capacitance matrix replaces refinement where it is possible and faster: see capacitance.hpp.
    void leave_out(Problem<T> &problem) {
        if (!refinement.needed || give || !refinement.only_contacts() || !capacitance.take(refinement, problem)) return;
        refinement.needed = false;
        for (const int c : capacitance.contacts) left_out[c] = 1;
    }

    // W and the capacitance matrix, with columns in lanes.
    void find_capacitance(const Problem<T> &problem) {
        const int size = capacitance.size, num_rows = mechanism.schedule.num_rows;
        auto each_row = [&](auto &&f) {  // f(contact, which of its rows, number of that row)
            int row = 0;
            for (const int c : capacitance.contacts)
                for (int k = 0; k < capacitance.rows(c); ++k) f(c, k, row++);
        };
        for (int first = 0; first < size; first += lanes<R>) {
            const int count = std::min(lanes<R>, size - first);
            std::fill(right.begin(), right.end(), R{});
            std::fill(touching.begin(), touching.end(), Vec3<R>{});
            each_row([&](int c, int k, int row) {
                if (row >= first && row < first + count) set(touching[c][k], row - first, -1.0);
            });
            for (const int c : capacitance.contacts) ContactCones<T>::subtract(*this, problem, c, right.data());
            ldu_solve_transposed<T, R>(mechanism.schedule, problem.values.data(), right.data(), true);
            for (int r = 0; r < num_rows; ++r)
                for (int lane = 0; lane < count; ++lane) capacitance.spread[size_t(size) * r + first + lane] = get(right[r], lane);
            for (const int c : capacitance.contacts)
                touching[c] = ContactCones<T>::multipliers(*this, problem, c, nothing.data(), right.data());
            each_row([&](int c, int k, int row) {
                for (int lane = 0; lane < count; ++lane) capacitance.set_entry(row, first + lane, get(touching[c][k], lane));
            });
        }
        if (size) capacitance.factor();
    }

    // Adds the omitted contacts to the solution without them.
    void add_left_out(const Problem<T> &problem, const R *g) {
        if (!capacitance.size) return;
        R *row = contact_rows.data();
        for (const int c : capacitance.contacts) {
            const Vec3<R> nu = ContactCones<T>::multipliers(*this, problem, c, g, right.data());
            for (int k = 0; k < capacitance.rows(c); ++k) *row++ = nu[k];
        }
        capacitance.solve(contact_rows.data(), contact_solution.data());
        capacitance.subtract_spread(contact_solution.data(), right.data());
        row = contact_solution.data();
        for (const int c : capacitance.contacts)
            for (int k = 0; k < capacitance.rows(c); ++k) touching[c][k] = *row++;
    }

    // The derivative of α·(s Jω − (h/2) ω × Jω), s = (1 − h²ω·ω/4)^½, by ω: a matrix that is multiplied with α.
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
        add_skew(by_omega, -b);
        return by_omega;
    }
};

}  // namespace torchdojo
