// Complementarity inside the interior-point method. Elements eliminate their cones from the condensed matrix (joint_cone.hpp,
// contact_cone.hpp). This file has everything that is the same for every pair and every disc.
#pragma once

#include "elements/contact_cone.hpp"
#include "elements/joint_cone.hpp"
#include "elements/list.hpp"
#include "solver/tree.hpp"

namespace torchdojo {

template <class T>
using ConeElements = List<JointCones<T>, ContactCones<T>>;

// Linear systems as cones see them: right-hand sides, to which contacts add their impulses, the solution, and the rows of contacts. Bodies
// have twists (v, ω), or motions of a tree. x has the places of the condensed matrix; its bodies have twists in both.
template <class T>
struct TwistSystem {
    const Problem<T> &problem;
    T *x;

    const T *solution(int body) const { return x + problem.mechanism.bodies[body].right; }
    void press(int c, const T &gamma, const T *beta) const {
        const MechanismTable &m = problem.mechanism;
        const ContactTable &contact = m.contacts[c];
        const auto push = [&](int body, const T *B) {
            T *to = x + m.bodies[body].right;
            for (int r = 0; r < 6; ++r) {
                to[r] += B[3 * r] * gamma;
                if (contact.friction) to[r] += B[3 * r + 1] * beta[0] + B[3 * r + 2] * beta[1];
            }
        };
        push(contact.body, problem.contacts[c].wrench);
        if (const int other = other_body(m, contact); other < m.num_bodies) push(other, problem.pairs[contact.pair].other_wrench);
    }
    const T *contact_rows(int c) const { return problem.contacts[c].rows; }
};
template <class T>
struct TreeSystem {
    const Problem<T> &problem;
    Tree<T> &tree;
    T *x;

    const T *solution(int body) const { return tree.solution(body); }
    void press(int c, const T &gamma, const T *beta) const {
        const ContactTable &contact = problem.mechanism.contacts[c];
        const T *frame = tree.contact_frame(problem, contact, c);
        Vec3<T> force = gamma * load3(frame);
        if (contact.friction) force = force + beta[0] * load3(frame + 3) + beta[1] * load3(frame + 6);
        tree.press(contact, c, force);
    }
    const T *contact_rows(int c) const { return tree.contact_rows(c); }
};

template <class T>
struct Cones : ConeState<T> {
    using ConeState<T>::mechanism, ConeState<T>::pairs, ConeState<T>::discs, ConeState<T>::scaling, ConeState<T>::scaled;
    using ConeState<T>::right, ConeState<T>::direction;

    explicit Cones(const MechanismTable &m) : ConeState<T>(m), flying(m.num_bodies), x(m.schedule.num_rows) {}

    // K of all cones at w, scaled in the lanes of `inside`.
    void condense(Problem<T> &problem, const T *w, const Mask<T> &inside = Mask<T>{}) {
        scaled = inside;
        ConeElements<T>::each([&](auto element) { element.condense(*this, problem, w); });
    }

    // Sets the products to aim at: `target` e, minus the second-order term of `direction` if `weight` is not null (0 or 1 per lane).
    void aim(const T *w, const T &target, const T *weight) {
        for (const auto &[impulse, slack] : pairs) {
            right[slack] = target - w[impulse] * w[slack];
            if (weight) right[slack] -= *weight * direction[impulse] * direction[slack];
        }
        const bool some_scaled = any(scaled);
        for (const auto &[impulse, slack, c] : discs) {
            const Vec3<T> xi = load3(w + impulse);
            Vec3<T> rho = -cone_product(xi, load3(w + slack));
            rho.x += target;
            Vec3<T> q = aim_plain(xi, rho);
            if (some_scaled) {
                const ConeScaling<T> &s = scaling[c];
                rho = -cone_product(s.point, s.point);
                rho.x += target;
                if (weight) rho = rho - *weight * cone_product(s.weigh(load3(&direction[impulse])), s.unweigh(load3(&direction[slack])));
                const Vec3<T> scaled_q = s.aim(rho);
                for (int k = 0; k < 3; ++k) q[k] = select(scaled, scaled_q[k], q[k]);
            }
            store3(&right[slack], q);
        }
    }

    // Sets products that should become −delta, plainly linearized.
    void aim_at(const T *w, const T *delta) {
        for (const auto &[impulse, slack] : pairs) right[slack] = -delta[slack];
        for (const auto &[impulse, slack, c] : discs) store3(&right[slack], aim_plain(load3(w + impulse), -load3(delta + slack)));
    }

    // Computes Newton's `direction`, which removes `residual` (in the places of w; null leaves the equations as they are), and fills
    // `right`. The matrix of the problem, or of the tree, is factored first unless it is factored already.
    void solve(Problem<T> &problem, const T *w, const T *residual, bool factored) {
        TwistSystem<T> system{problem, x.data()};
        set_right(residual);
        ConeElements<T>::each([&](auto element) { element.begin(*this, problem, w, residual, system); });
        if (factored) ldu_solve(mechanism.schedule, problem.values.data(), x.data());
        else ldu_factor_and_solve(mechanism.schedule, problem.values.data(), x.data());
        ConeElements<T>::each([&](auto element) { element.finish(*this, problem, w, residual, system); });
        take_direction();
    }
    void solve(Problem<T> &problem, Tree<T> &tree, const T *w, const T *residual, bool factored) {
        TreeSystem<T> system{problem, tree, x.data()};
        set_right(residual);
        tree.begin(problem, x.data());
        ConeElements<T>::each([&](auto element) { element.begin(*this, problem, w, residual, system); });
        if (!factored) tree.factor();
        tree.solve(problem, x.data(), residual);
        ConeElements<T>::each([&](auto element) { element.finish(*this, problem, w, residual, system); });
        take_direction();
    }

    // Largest inverse step to the boundary of the cones along `direction`.
    T inverse_step(const T *w) const {
        T inverse{};
        for (const auto &[impulse, slack] : pairs)
            inverse = max(inverse, max(-direction[impulse] / w[impulse], -direction[slack] / w[slack]));
        for (const auto &[impulse, slack, c] : discs)
            for (const int place : {impulse, slack}) inverse = max(inverse, cone_limit(load3(w + place), load3(&direction[place])));
        return inverse;
    }

    // Mean over cones of impulseᵀ slack at w + α·direction, or at w if α is null.
    T mean_product(const T *w, const T *alpha) const {
        T sum{};
        auto value = [&](int place) { return alpha ? w[place] + *alpha * direction[place] : w[place]; };
        for (const auto &[impulse, slack] : pairs) sum += value(impulse) * value(slack);
        for (const auto &[impulse, slack, c] : discs)
            sum += value(impulse) * value(slack) + value(impulse + 1) * value(slack + 1) + value(impulse + 2) * value(slack + 2);
        return sum / double(mechanism.num_cones > 0 ? mechanism.num_cones : 1);
    }

    // Largest deviation of the products from `target` e, and the sum of all products, which is not finite if one product is not.
    T violation(const T *w, const T &target, T &sum) const {
        T worst{};
        auto add = [&](const T &gap) {
            worst = max(worst, abs(gap));
            sum += gap;
        };
        for (const auto &[impulse, slack] : pairs) add(w[impulse] * w[slack] - target);
        for (const auto &[impulse, slack, c] : discs) {
            Vec3<T> p = cone_product(load3(w + impulse), load3(w + slack));
            p.x -= target;
            worst = max(worst, max(abs(p.x), max(abs(p.y), abs(p.z))));
            sum += p.x + p.y + p.z;
        }
        return worst;
    }

    // Largest deviation of the products from `target` e, relative to it.
    T distance(const T *w, const T &target) const {
        T unused{};
        return violation(w, target, unused) / target;
    }

    // Largest deviation of the scaled products from `target` e.
    T spread(const T *w, const T &target) const {
        T worst{};
        for (const auto &[impulse, slack] : pairs) worst = max(worst, abs(w[impulse] * w[slack] - target));
        for (const auto &[impulse, slack, c] : discs) {
            const Vec3<T> p = cone_product(scaling[c].point, scaling[c].point);
            worst = max(worst, max(abs(p.x - target), max(abs(p.y), abs(p.z))));
        }
        return worst;
    }

    // Whether all impulses and slacks of a w of one environment lie inside their cones.
    bool interior(const double *w) const {
        for (const auto &[impulse, slack] : pairs)
            if (!(w[impulse] > 0) || !(w[slack] > 0)) return false;
        for (const auto &[impulse, slack, c] : discs)
            for (const double *x : {w + impulse, w + slack})
                if (!(x[0] > 0 && x[0] * x[0] > x[1] * x[1] + x[2] * x[2])) return false;
        return true;
    }

    // Sets cone variables in the lanes of `mask` for the velocities in w, with products of about `level`. Every equation but the balance of
    // momentum then nearly holds.
    void start(Problem<T> &problem, T *w, const T &level, const Mask<T> &mask) const {
        ConeElements<T>::each([&](auto element) { element.start(*this, problem, w, level, mask); });
    }

    // Sets contacts of flying bodies to the gap and slip to which gravity and the wrench alone lead (forecast_flight in path_newton.py).
    // Returns the lanes in which some body flies.
    Mask<T> forecast(const Problem<T> &problem, T *w, const T &kappa, const Mask<T> &mask) {
        std::fill(flying.begin(), flying.end(), mask);
        return ContactCones<T>::forecast(*this, problem, w, kappa, flying);
    }

    // Moves the cone variables of w onto the central path in the lanes of `mask`, by a smoothed projection.
    //   orthant: with c = γ − a s, γ = (c + √(c² + 4κa))/2 and s = κ/γ (Chen and Harker 1993; Kanzow 1996; Smale 1987);
    //   friction: with the height ξ₁ = μγ given, t = β − b η₂₃ is split into β inside the disc of that radius and the slip.
    // a and b only decide how far an impulse jumps where a contact opens or closes, sticks or slips. They are at least a = m/3h and b = m
    // of the body, and more where other bodies hold it and the last two Newton points say so (weight_of in path_maps.py). `before` has the
    // Newton points of the last call, in the places of w, which are valid in the lanes of `known`. It becomes w as given.
    void project(Problem<T> &problem, const T &kappa, const Mask<T> &mask, T *w, T *before, const Mask<T> &known) const {
        ConeElements<T>::each([&](auto element) { element.project(*this, problem, kappa, mask, w, before, known); });
    }

private:
    std::vector<Mask<T>> flying;  // per body
    std::vector<T> x;  // by rows of the matrix

    void set_right(const T *residual) {
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) x[mechanism.bodies[i].right + k] = residual ? -residual[6 * i + k] : T{};
        for (const JointTable &joint : mechanism.joints)
            for (int k = joint.held(); k < joint.size; ++k) x[joint.right + k] = T{};
        for (const MultiplierTable &row : mechanism.multipliers) x[row.right] = residual ? -residual[row.row] : T{};
    }

    void take_direction() {
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) direction[6 * i + k] = x[mechanism.bodies[i].right + k];
        for (const MultiplierTable &row : mechanism.multipliers) direction[row.row] = x[row.right];
    }

    // (p, q₂₃) of a plainly linearized product that should change by ρ.
    static TD_INLINE Vec3<T> aim_plain(const Vec3<T> &xi, const Vec3<T> &rho) {
        const T inverse = inverse_of(xi.x);
        const T y = quotient(xi.x * rho.x - xi.y * rho.y - xi.z * rho.z, xi.x * xi.x - xi.y * xi.y - xi.z * xi.z);
        return {inverse * rho.x, inverse * (rho.y - y * xi.y), inverse * (rho.z - y * xi.z)};
    }
};

}  // namespace torchdojo
