// The transposed system of a tree of bodies (solver/tree.hpp), for derivatives of a step.
//
// The forward system has rows at the current pose and columns at the next one. Its transpose swaps them: the solution y of a body is a
// motion at the current pose, which the columns w of impulses do work on, and its right-hand side b is a wrench at the next pose,
//
//     Aᵀ y + Σ ± (Gᵀ μ + Σ ρ_k μ_k) + Σ d_k μ_k = b,    y_child − y_parent = n q + c,    μ_k = w_k·(y_child − y_parent).
//
// G are the held rows at the next pose, with multipliers μ. c is zero unless impulses of held rows have gradients g: then −Wᵀ c = g. With
// N ⊥ G, and m, π and A N of the factors of the forward system, leaves first:
//
//     e = Nᵀ (b − Aᵀ c) − Σ (ρ_k·N)(w_k·c),   b_parent += b − Aᵀ c − Σ d_k (w_k·c) − mᵀ e,
//
// then, root first, q = π⁻ᵀ (e − (A N)ᵀ y_parent). The multipliers μ follow from b − Aᵀ y − Σ ρ_k μ_k.
#pragma once

#include "gradient/adjoint_state.hpp"
#include "solver/tree.hpp"

namespace torchdojo {

namespace constant {
// Gain of a pressed contact, its condensed entry over the mass of its body, from which solutions on the tree are refined; and refined
// twice. Gradients by inputs of 64 settled robots each of scripts/bench_cases.py, with kappa from 1e-4 to 1e-8, are within 2e-13 of the
// reference, with 1e5 within 2e-11.
constexpr double tree_gain = 1e3, tree_gain_twice = 1e7;
}  // namespace constant

// The condensed entry of a contact over the mass of its body at the lever, at most.
template <class T>
TD_INLINE T contact_gain(const Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const Vec3<T> &lever) {
    const T *p = problem.body_parameters(contact.body), *J = p + parameter::inertia;
    T gain = problem.timestep() * data.stiffness;
    if (contact.friction) gain = max(gain, max(abs(data.compliance[0]), abs(data.compliance[3])));
    return gain * (1.0 / p[parameter::mass] + 3.0 * dot(lever, lever) / (J[0] + J[4] + J[8]));
}

template <class T>
class TreeAdjoint {
public:
    explicit TreeAdjoint(const MechanismTable &m)
        : mechanism(m), frames(m.num_joints), y(6 * m.num_bodies), kept(y), shifts(6 * m.num_joints) {}

    Mask<T> needed[2];  // lanes whose solution is refined, and refined again; a lane does not depend on the others

    // Factors the derivative at w, with K of the cones as cones.hpp has set it. The tree and the problem must be prepared.
    void factor(Tree<T> &new_tree, Problem<T> &problem, const T *w) {
        tree = &new_tree;
        tree->next_frames = frames.data();
        tree->place(problem, w);
        tree->template linearize<true>(problem, w);
        for (const ContactTable &contact : mechanism.contacts)  // numbers of elements, in the frames of bodies
            HalfSpace<T>::template linearize<false>(problem, contact, problem.contacts[&contact - mechanism.contacts.data()], w);
        tree->next_frames = nullptr;
        tree->factor();
        find_needed(problem);
    }

    // Sets right-hand sides from gradients by twists in x, which has the places of the condensed matrix.
    void begin(const Problem<T> &problem, const T *x) {
        const T inverse_h = 1.0 / problem.timestep();
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *g = x + mechanism.bodies[i].right;
            const BodyData<T> &body = problem.bodies[i];
            const Vec3<T> linear = load3(g), angular = load3(g + 3);
            const Vec3<T> turn = body.next.R * (body.increment.w * angular - cross(body.increment.v, angular));
            T *b = tree->right(i);
            store3(b, inverse_h * linear);
            store3(b + 3, inverse_h * (cross(tree->bodies[i].r_next, linear) + turn));
        }
    }

    // b −= Cᵀ ν for contacts.
    void subtract_contacts(const std::vector<Vec3<T>> &nu) {
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const T *rows = tree->contact_rows(c);
            T *b = tree->right(contact.body);
            for (int k = 0; k < 6; ++k) b[k] -= rows[k] * nu[c].x;
            if (!contact.friction) continue;
            for (int k = 0; k < 6; ++k) b[k] = b[k] - rows[6 + k] * nu[c].y - rows[12 + k] * nu[c].z;
        }
    }

    // The same for limits, frictions and drives of joints, whose rows are by motions.
    void subtract_joint_cones(const Problem<T> &problem, const std::vector<T> &pressing) {
        for (int c = 0; c < mechanism.num_joint_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            const JointTable &joint = mechanism.joints[cone.joint];
            const TwistRow<T> row = (cone.sign() * pressing[c]) * problem.cone_row(cone);
            T *child = tree->right(joint.child);
            for (int k = 0; k < 3; ++k) {
                child[k] -= row.linear[k];
                child[3 + k] -= row.child[k];
            }
            if (joint.parent == mechanism.num_bodies) continue;
            T *parent = tree->right(joint.parent);
            for (int k = 0; k < 3; ++k) {
                parent[k] += row.linear[k];
                parent[3 + k] -= row.parent[k];
            }
        }
    }

    // Keeps the right-hand sides for `misfit`.
    void keep() { kept = tree->wrenches; }

    // Solves for multipliers of bodies and joints in x. `by_held`: whether x has gradients by the impulses of held rows; else they are zero.
    // `all`: whether held rows are wanted, too.
    void solve(const Problem<T> &problem, T *x, bool by_held, bool all) {
        substitute(problem, x, by_held, all);
        y.swap(tree->motions);
    }

    // Solves for what `misfit` leaves, in x, and adds it in the lanes of `mask`. Held rows get their whole multipliers.
    void correct(const Problem<T> &problem, T *x, const Mask<T> &mask) {
        substitute(problem, x, false, true);
        for (size_t k = 0; k < y.size(); ++k) y[k] += select(mask, tree->motions[k], T{});
    }

    // The misfit of the solution x: kept right-hand sides less the product with the matrix without condensed contacts. Multipliers of held rows
    // count as zero: they are solved for anew.
    template <class R>
    void misfit(const AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w, const T *x) {
        T A[36];
        for (const Node &node : tree->nodes) {
            const T *motion = &y[6 * node.body];
            T *b = tree->right(node.body);
            body_matrix(problem, node.body, tree->origin(problem, node), tree->bodies[node.body], w, A);
            for (int k = 0; k < 6; ++k) b[k] = kept[6 * node.body + k] - column_product(A, k, motion);
        }
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const int body = mechanism.contacts[c].body;
            const Vec3<T> angular = load3(x + mechanism.bodies[body].right + 3);
            add3(tree->right(body) + 3, problem.bodies[body].next.R * transposed_times(adjoint.by_turn[c].torque, angular));
        }
        subtract_contacts(adjoint.touching);
        for (const Node &node : tree->nodes) {
            if (node.joint < 0) continue;
            const T *mu = x + mechanism.joints[node.joint].right + mechanism.joints[node.joint].held();
            T *child = tree->right(node.body), *parent = node.parent < 0 ? nullptr : tree->right(node.parent);
            for (int k = 0; k < node.rows; ++k)
                for (int r = 0; r < 6; ++r) {
                    const T pushed = node.row[6 * k + r] * mu[k];
                    child[r] -= pushed;
                    if (!parent) continue;
                    parent[r] += node.two_sided ? pushed - node.drift[6 * k + r] * mu[k] : pushed;
                }
        }
    }

private:
    using Node = typename Tree<T>::Node;
    const MechanismTable &mechanism;
    Tree<T> *tree = nullptr;
    std::vector<JointFrame<T>> frames;  // per joint, at the next pose
    std::vector<T> y, kept;  // solution, and right-hand sides
    std::vector<T> shifts;  // c, per joint

    void substitute(const Problem<T> &problem, T *x, bool by_held, bool all) {
        for (const Node &node : tree->nodes)
            if (node.joint >= 0) Tree<T>::with_free(node, [&](auto free) { fold<decltype(free)::value>(node, x, by_held); });
        for (auto node = tree->nodes.rbegin(); node != tree->nodes.rend(); ++node) {
            T *motion = &tree->motions[6 * node->body];
            if (node->joint < 0) {
                std::copy_n(tree->right(node->body), 6, motion);
                ldu::divide_transposed<6>(tree->matrix(node->body), motion, 6);
            } else {
                Tree<T>::with_free(*node, [&](auto free) { expand<decltype(free)::value>(problem, *node, x, by_held, all); });
            }
            const BodyData<T> &body = problem.bodies[node->body];
            const Vec3<T> linear = load3(motion), angular = load3(motion + 3);
            T *to = x + mechanism.bodies[node->body].right;
            store3(to, linear + cross(angular, tree->bodies[node->body].r));
            store3(to + 3, transposed_times(body.pose.R, angular));
        }
    }

    static TD_INLINE T column_product(const T *A, int k, const T *x) {
        return A[k] * x[0] + A[6 + k] * x[1] + A[12 + k] * x[2] + A[18 + k] * x[3] + A[24 + k] * x[4] + A[30 + k] * x[5];
    }

    void find_needed(const Problem<T> &problem) {
        needed[0] = needed[1] = Mask<T>{};
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            const ContactData<T> &data = problem.contacts[c];
            const T gain = contact_gain(problem, contact, data, data.lever);
            needed[0] |= gain > broadcast<T>(constant::tree_gain);
            needed[1] |= gain > broadcast<T>(constant::tree_gain_twice);
        }
    }

    // c of a joint with gradients g of the impulses of its held rows.
    void set_shift(const Node &node, const T *g) {
        const JointTable &joint = mechanism.joints[node.joint];
        Vec3<T> shift{}, turn{};
        for (int i = 0; i < joint.held_t; ++i) shift = shift - g[i] * load3(node.axes + 3 * i);
        for (int i = 0; i < joint.held_r; ++i) turn = turn - g[joint.held_t + i] * load3(node.duals + 3 * i);
        T *c = &shifts[6 * node.joint];
        store3(c, shift + cross(load3(node.anchor), turn));
        store3(c + 3, turn);
    }

    template <int F>
    void fold(const Node &node, const T *x, bool by_held) {
        const T *A = tree->matrix(node.body), *b = tree->right(node.body), *c = &shifts[6 * node.joint];
        if (by_held) set_shift(node, x + mechanism.joints[node.joint].right);
        T rest[6], e[F > 0 ? F : 1];
        for (int r = 0; r < 6; ++r) rest[r] = by_held ? b[r] - column_product(A, r, c) : b[r];
        for (int i = 0; i < F; ++i) e[i] = dot6(node.N + 6 * i, rest);
        for (int k = 0; by_held && k < node.rows; ++k) {
            const T pushed = dot6(node.wrench + 6 * k, c);
            for (int i = 0; i < F; ++i) e[i] -= node.along[k * F + i] * pushed;
            for (int r = 0; node.two_sided && r < 6; ++r) rest[r] -= node.drift[6 * k + r] * pushed;
        }
        for (int i = 0; i < F; ++i) node.e[i] = e[i];
        if (node.parent < 0) return;
        T *to = tree->right(node.parent);
        for (int r = 0; r < 6; ++r) {
            for (int i = 0; i < F; ++i) rest[r] -= node.m[6 * i + r] * e[i];
            to[r] += rest[r];
        }
    }

    template <int F>
    void expand(const Problem<T> &problem, const Node &node, T *x, bool by_held, bool all) {
        const JointTable &joint = mechanism.joints[node.joint];
        const T *A = tree->matrix(node.body), *b = tree->right(node.body), *c = &shifts[6 * node.joint];
        const T *above = node.parent < 0 ? nullptr : &tree->motions[6 * node.parent];
        T *motion = &tree->motions[6 * node.body], q[F > 0 ? F : 1], sum[6], wrench[6];
        for (int k = 0; k < 6; ++k) sum[k] = above ? above[k] : T{};
        for (int i = 0; i < F; ++i) {
            q[i] = node.e[i];
            for (int r = 0; above && r < 6; ++r) q[i] -= node.AN[r * F + i] * above[r];
        }
        if constexpr (F > 0) ldu::divide_transposed<F>(node.pivot, q, F);
        for (int i = 0; i < F; ++i)
            for (int k = 0; k < 6; ++k) sum[k] += q[i] * node.n[6 * i + k];
        for (int k = 0; by_held && k < 6; ++k) sum[k] += c[k];
        for (int k = 0; k < 6; ++k) motion[k] = sum[k];
        T *out = x + joint.right, *mu = out + joint.held();
        for (int k = 0; k < node.rows; ++k) {
            T power = by_held ? dot6(node.wrench + 6 * k, c) : T{};
            for (int i = 0; i < F; ++i) power += node.share[i * node.rows + k] * q[i];
            mu[k] = power;
        }
        if (!all || !joint.held()) return;
        for (int r = 0; r < 6; ++r) wrench[r] = b[r] - column_product(A, r, sum);
        for (int k = 0; k < node.rows; ++k)
            for (int r = 0; r < 6; ++r) wrench[r] -= mu[k] * node.row[6 * k + r];
        const JointFrame<T> &frame = frames[node.joint];
        const Vec3<T> force = load3(wrench), torque = load3(wrench + 3) - cross(frame.anchor, force);
        const T *p = &problem.parameters[joint.parameters];
        if (joint.held_t) {
            const Vec3<T> in_frame = transposed_times(frame.R, force);
            for (int i = 0; i < joint.held_t; ++i) out[i] = dot(load3(p + parameter::translations + 3 * i), in_frame);
        }
        for (int i = 0; i < joint.held_r; ++i) out[joint.held_t + i] = dot(frame.duals[i], torque);
    }
};

}  // namespace torchdojo
