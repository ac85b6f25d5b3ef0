// Newton's linear system of trees of bodies, without the multipliers of joints.
//
// A joint lets the motions of parent and child differ by δ_child − δ_parent = N q + c: N from its free directions at the next pose, c from
// the residuals of its rows. Its reaction does no work on n, the free directions at the current pose. With the child's matrix A, wrench a,
// and wrenches w_k of impulses λ_k = g_k − ρ_k·(δ_child − δ_parent) − d_k·δ_parent along free directions (dampers, armature, limits,
// friction, drives), leaves first:
//
//     a' = a − A c,   π = nᵀ A N + Σ (n·w_k)(ρ_k·N),   m = π⁻¹ (nᵀ A + Σ (n·w_k) d_kᵀ),   e = π⁻¹ (nᵀ a' + Σ (n·w_k)(g_k − ρ_k·c)),
//     A_parent += A − A N m,   a_parent += a' − A N e,
//
// then, root first, q = e − m δ_parent. The multipliers follow from the wrench A δ − a. This is the elimination of the same system that
// ldu.hpp factors, in another order: A is not symmetric, since rows belong to the current pose and columns to the next one. The articulated
// bodies of Featherstone 2008, "Rigid Body Dynamics Algorithms", chapter 7, are the case in which both are the same pose. The origin of a
// tree is the center of mass of its root.
#pragma once

#include "elements/far_points.hpp"
#include "elements/spatial_joint.hpp"

namespace torchdojo {

namespace constant {
// Pressed contacts add entries like 1/κ to a body's matrix, and the tree moves them to one origin, which costs digits: with entries of 1e4
// the directions have errors of 6e-11, with 1e8 of 6e-7, where the LDU factors in the frames of the bodies have 8e-13 and 1e-8.
constexpr double tree_kappa = 1e-8;  // κ from which on the tree is used
}  // namespace constant

template <class T>
class TreeAdjoint;
template <class T>
class JointJacobian;
template <class T>
struct JointRows;

template <class T>
class Tree {
public:
    // Whether a mechanism consists of trees and of contacts that each concern one body and have no law of impacts.
    static bool fits(const MechanismTable &m) {
        if (m.has_loops || m.num_couplings || m.num_couples || m.num_damped_tendons) return false;
        for (const PairTable &pair : m.pairs)
            if (pair.kind_b != geometry::heights) return false;
        std::vector<int> joints(m.num_bodies + 1);
        for (const JointTable &joint : m.joints)
            if (joint.repeats || ++joints[joint.child] > 1) return false;
        return std::none_of(m.contacts.begin(), m.contacts.end(), [](const ContactTable &contact) { return contact.restitution >= 0; });
    }

    explicit Tree(const MechanismTable &m)
        : usable(fits(m)), mechanism(m), bodies(m.num_bodies), joints(m.num_joints), matrices(36 * m.num_bodies),
          wrenches(6 * m.num_bodies), motions(wrenches), reactions(wrenches), pressed(wrenches), contacts(m.num_contacts) {
        if (!usable) return;
        for (const ContactTable &contact : m.contacts)
            if (std::find(touched.begin(), touched.end(), contact.body) == touched.end()) touched.push_back(contact.body);
        order();
        int size = 0;
        for (const Node &node : nodes) size += node.size();
        numbers.resize(size);
        T *place = numbers.data();
        for (Node &node : nodes) node.bind(place);
    }

    const bool usable;
    JointFrame<T> *next_frames =
        nullptr;  // per joint: gets the frames at the next pose from `linearize`, which then leaves out the balance of bodies

    // Computes the numbers that stay the same during the step.
    void prepare(const Problem<T> &problem) {
        for (Node &node : nodes) {
            SpatialBody<T> &spatial = bodies[node.body];
            const BodyData<T> &body = problem.bodies[node.body];
            spatial.r = body.pose.x - origin(problem, node);
            const Mat3<T> &R = body.pose.R, spin = R * load33(problem.body_parameters(node.body) + parameter::inertia);
            for (int i = 0; i < 3; ++i)
                for (int k = i; k < 3; ++k) spatial.inertia.m[3 * i + k] = spatial.inertia.m[3 * k + i] = dot(spin.row(i), R.row(k));
            if (node.joint >= 0) prepare_joint(problem, node);
        }
    }

    // The next poses at w, and the balance of the bodies without joints and contacts.
    void place(Problem<T> &problem, const T *w) {
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (next_frames) {
                BodyData<T> &body = problem.bodies[i];
                problem.place_body(i, w);
                body.next.R = rotation_matrix(body.next.q);
            } else {
                problem.template linearize_body<false>(i, w);
            }
            const BodyData<T> &body = problem.bodies[i];
            bodies[i].a = body.pose.R * body.increment.v;
            bodies[i].back = rotation_matrix(Quat<T>{body.increment.w, -bodies[i].a});
        }
        for (const int i : touched) bodies[i].omega = problem.bodies[i].next.R * load3(w + 6 * i + 3);
    }

    // Residual and, if `derived`, matrix at w, at which the bodies have been placed, with K of the cones as cones.hpp has set it.
    template <bool derived>
    void linearize(Problem<T> &problem, const T *w) {
        if constexpr (derived)
            for (const Node &node : nodes) body_matrix(problem, node.body, origin(problem, node), bodies[node.body], w, matrix(node.body));
        std::fill(reactions.begin(), reactions.end(), T{});
        std::fill(pressed.begin(), pressed.end(), T{});
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            touch<derived>(problem, contact, bodies[contact.body], w, contacts[c], &pressed[6 * contact.body], matrix(contact.body));
        }
        add_pressed(reactions.data());
        linearize_joints<derived>(problem, w);
        if (next_frames) return;  // derivatives need no residual
        FarPoints<T>::add(problem, w);
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const Vec3<T> force = load3(&reactions[6 * i]), torque = load3(&reactions[6 * i + 3]) - cross(bodies[i].r, force);
            add3(&problem.residual[6 * i], -force);
            add3(&problem.residual[6 * i + 3], -transposed_times(problem.bodies[i].pose.R, torque));
        }
    }

    // The right-hand side of a body: a wrench. Its solution: a motion. The rows (3 x 6) of a contact.
    T *right(int body) { return &wrenches[6 * body]; }
    const T *solution(int body) const { return &motions[6 * body]; }
    const T *contact_rows(int c) const { return contacts[c].rows; }
    // Normal and tangents, one after the other.
    const T *contact_frame(const Problem<T> &problem, const ContactTable &contact, int c) const {
        return contact.pair < 0 ? &problem.parameters[contact.parameters + parameter::normal] : contacts[c].frame;
    }
    // Adds the force of a contact to the right-hand side.
    TD_INLINE void press(const ContactTable &contact, int c, const Vec3<T> &force) {
        add3(&pressed[6 * contact.body], force);
        add3(&pressed[6 * contact.body + 3], cross(contacts[c].lever, force));
    }

    // Sets right-hand sides of the bodies from those in x, which has the places of the condensed matrix.
    void begin(const Problem<T> &problem, const T *x) {
        for (const Node &node : nodes) {
            const T *from = x + mechanism.bodies[node.body].right;
            T *a = right(node.body);
            const Vec3<T> force = load3(from);
            store3(a, force);
            store3(a + 3, problem.bodies[node.body].pose.R * load3(from + 3) + cross(bodies[node.body].r, force));
        }
        std::fill(pressed.begin(), pressed.end(), T{});
    }

    void factor() {
        for (const Node &node : nodes) {
            if (node.joint < 0) ldu::factor<6>(matrix(node.body), 6);
            else with_free(node, [&](auto free) { eliminate<decltype(free)::value>(node); });
        }
    }

    // Solves for the motions, and for velocities and multipliers in x, which has the right-hand sides g of joints. `violated`: whether the
    // rows of joints count with their residuals, or as satisfied.
    void solve(const Problem<T> &problem, T *x, bool violated) {
        add_pressed(wrenches.data());
        for (const Node &node : nodes) {
            if (node.joint < 0) ldu::divide<6, 1>(matrix(node.body), right(node.body), 6, 1);
            else with_free(node, [&](auto free) { reduce<decltype(free)::value>(node, x, violated); });
        }
        const T &inverse_h = problem.inverse_timestep;
        for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
            if (node->joint < 0) std::copy_n(right(node->body), 6, &motions[6 * node->body]);
            else with_free(*node, [&](auto free) { expand<decltype(free)::value>(*node, x, violated); });
            twist_of(problem.bodies[node->body], bodies[node->body], inverse_h, solution(node->body),
                     x + mechanism.bodies[node->body].right);
        }
    }

private:
    friend class TreeAdjoint<T>;
    friend class JointJacobian<T>;
    friend struct JointRows<T>;
    // A body with the joint to its parent. All numbers of a direction stand together.
    struct Node {
        int body, root;
        int joint = -1, parent = -1;  // none: a free body; a parent of −1 with a joint is the world
        int free = 0, rows = 0;
        bool two_sided = false;  // whether impulses depend on the parent's motion, too: the vectors d
        T *n, *N, *AN, *m, *pivot, *e, *c;  // 6 numbers for each free direction, and `free` x `free`
        T *wrench, *row, *drift, *share, *along;  // w_k, ρ_k, d_k, n·w_k (free x rows), ρ_k·N (rows x free)
        T *axes, *turns, *duals, *anchor;  // for the multipliers, at the current pose: 3 numbers each

        int size() const {
            if (joint < 0) return 0;
            return 24 * free + free * free + free + 6 + 12 * rows + (two_sided ? 6 * rows : 0) + 2 * free * rows + 9 + 9 + 9 + 3;
        }
        void bind(T *&place) {
            if (joint < 0) return;
            const auto take = [&](T *&to, int count) {
                to = place;
                place += count;
            };
            take(n, 6 * free);
            take(N, 6 * free);
            take(AN, 6 * free);
            take(m, 6 * free);
            take(pivot, free * free);
            take(e, free);
            take(c, 6);
            take(wrench, 6 * rows);
            take(row, 6 * rows);
            take(drift, two_sided ? 6 * rows : 0);
            take(share, free * rows);
            take(along, rows * free);
            take(axes, 9);
            take(turns, 9);
            take(duals, 9);
            take(anchor, 3);
        }
    };

    const MechanismTable &mechanism;
    std::vector<Node> nodes;  // leaves first
    std::vector<int> node_of;  // per joint; −1: it holds nothing and nothing acts on it
    std::vector<SpatialBody<T>> bodies;
    std::vector<SpatialJoint<T>> joints;
    std::vector<int> touched;  // bodies with contacts
    std::vector<T> matrices, wrenches, motions, reactions;
    std::vector<T> pressed;  // forces of contacts, and their moments about the center of mass at the next pose
    std::vector<SpatialContact<T>> contacts;
    std::vector<T> numbers;

    T *matrix(int body) { return &matrices[36 * body]; }
    TD_INLINE Vec3<T> origin(const Problem<T> &problem, const Node &node) const { return problem.bodies[node.root].pose.x; }

    // Adds what contacts press as wrenches: their moments turn with the body.
    void add_pressed(T *to) {
        for (const int i : touched) {
            const Vec3<T> force = load3(&pressed[6 * i]);
            add3(to + 6 * i, force);
            add3(to + 6 * i + 3, bodies[i].back * load3(&pressed[6 * i + 3]) + cross(bodies[i].r, force));
        }
    }

    void order() {
        const int count = mechanism.num_bodies;
        std::vector<Node> unordered(count);
        std::vector<int> depth(count, 0);
        for (int i = 0; i < count; ++i) unordered[i].body = unordered[i].root = i;
        for (int j = 0; j < mechanism.num_joints; ++j) {
            const JointTable &joint = mechanism.joints[j];
            if (!joint.size) continue;  // six free directions on which nothing acts
            Node &node = unordered[joint.child];
            node.joint = j;
            node.free = joint.free();
            node.rows = joint.size - joint.held();
            node.parent = joint.parent < count ? joint.parent : -1;
            node.two_sided = joint.has_damper && node.parent >= 0;
        }
        for (Node &node : unordered)
            for (int body = node.body; unordered[body].parent >= 0; node.root = body) {
                body = unordered[body].parent;
                ++depth[node.body];
            }
        std::vector<int> places(count);
        for (int i = 0; i < count; ++i) places[i] = i;
        std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return depth[a] > depth[b]; });
        node_of.assign(mechanism.num_joints, -1);
        for (const int i : places) {
            if (unordered[i].joint >= 0) node_of[unordered[i].joint] = int(nodes.size());
            nodes.push_back(unordered[i]);
        }
    }

    template <class F>
    static TD_INLINE void with_free(const Node &node, F &&f) {
        switch (node.free) {
            case 0: return f(ldu::Size<0>{});
            case 1: return f(ldu::Size<1>{});
            case 2: return f(ldu::Size<2>{});
            case 3: return f(ldu::Size<3>{});
            case 4: return f(ldu::Size<4>{});
            case 5: return f(ldu::Size<5>{});
            default: return f(ldu::Size<6>{});
        }
    }

    void prepare_joint(const Problem<T> &problem, Node &node) {
        const JointTable &joint = mechanism.joints[node.joint];
        const JointData<T> &data = problem.joints[node.joint];
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        JointFrame<T> frame;
        frame.anchor = bodies[node.body].r + child.pose.R * load3(p + parameter::child_anchor);
        frame.R = parent.pose.R * data.offset;
        frame.hold(p, joint, data.now.p);
        for (int j = 0; joint.has_vector() && j < joint.free_r(); ++j)
            frame.lines[j] = joint.extra && joint.cone < 0 ? -(parent.pose.R * problem.free[joint.free_data].limit_parent[j])
                                                           : frame.R * load3(p + parameter::rotations + 3 * (joint.held_r + j));
        frame.set(p, joint, node.n);
        joints[node.joint].prepare(problem, joint, data, frame);
        store3(node.anchor, frame.anchor);
        for (int i = 0; i < joint.held_t; ++i) store3(node.axes + 3 * i, frame.R * load3(p + parameter::translations + 3 * i));
        for (int i = 0; i < joint.held_r; ++i) {
            store3(node.turns + 3 * i, frame.held[i]);
            store3(node.duals + 3 * i, frame.duals[i]);
        }
        for (int k = 0; k < node.rows; ++k) {
            T *wrench = node.wrench + 6 * k;
            if (k < joint.free_t()) {
                const Vec3<T> force = frame.R * load3(p + parameter::translations + 3 * (joint.held_t + k));
                store3(wrench, force);
                store3(wrench + 3, cross(frame.anchor, force));
            } else {
                const int turn = k - joint.free_t(), extra = k - joint.free();
                store3(wrench, Vec3<T>{});
                store3(wrench + 3, extra < 0 ? frame.R * load3(p + parameter::rotations + 3 * (joint.held_r + turn))
                                             : -(parent.pose.R * problem.free[joint.free_data].limit_parent[extra]));
            }
            for (int i = 0; i < node.free; ++i) node.share[i * node.rows + k] = dot6(node.n + 6 * i, wrench);
        }
    }

    // Rows of joints, and their reactions in the balance of the bodies.
    template <bool derived>
    void linearize_joints(Problem<T> &problem, const T *w) {
        for (int j = 0; j < mechanism.num_joints; ++j)
            if (const int n = node_of[j]; n >= 0) {
                linearize_joint<derived>(problem, nodes[n], w);
                if (!next_frames) add_reaction(problem, nodes[n], w);
            }
    }

    void add_reaction(const Problem<T> &problem, const Node &node, const T *w) {
        const JointTable &joint = mechanism.joints[node.joint];
        const T *multiplier = w + joint.row, *along = problem.joints[node.joint].impulse;
        Vec3<T> force{}, torque{};
        for (int i = 0; i < joint.held_t; ++i) force = force + multiplier[i] * load3(node.axes + 3 * i);
        for (int i = 0; i < joint.held_r; ++i) torque = torque + multiplier[joint.held_t + i] * load3(node.turns + 3 * i);
        for (int k = 0; k < node.rows; ++k) {
            const T &impulse = k < joint.free() ? along[k] : problem.free[joint.free_data].extra_impulse[k - joint.free()];
            if (k < joint.free_t()) force = force + impulse * load3(node.wrench + 6 * k);
            else torque = torque + impulse * load3(node.wrench + 6 * k + 3);
        }
        torque = torque + cross(load3(node.anchor), force);
        add3(&reactions[6 * node.body], force);
        add3(&reactions[6 * node.body + 3], torque);
        if (node.parent < 0) return;
        add3(&reactions[6 * node.parent], -force);
        add3(&reactions[6 * node.parent + 3], -torque);
    }

    template <bool derived>
    void linearize_joint(Problem<T> &problem, const Node &node, const T *w) {
        const JointTable &joint = mechanism.joints[node.joint];
        JointData<T> &data = problem.joints[node.joint];
        if (next_frames) JointEquations<T>::template linearize_rows<false>(problem, joint, data, w, nullptr);  // numbers for parameters
        JointFrame<T> frame;
        TwistRow<T> rows[9];
        joints[node.joint].template linearize<derived>(problem, joint, data, bodies.data(), node.turns,
                                                       node.wrench + 6 * joint.free_t() + 3, w, next_frames, frame, rows);
        if constexpr (!derived) return;
        frame.set(&problem.parameters[joint.parameters], joint, node.N);
        if (next_frames) next_frames[node.joint] = frame;
        for (int k = 0; k < node.rows; ++k) {
            store3(node.row + 6 * k, rows[k].linear);
            store3(node.row + 6 * k + 3, rows[k].child);
            if (node.two_sided) {
                store3(node.drift + 6 * k, Vec3<T>{});
                store3(node.drift + 6 * k + 3, rows[k].child + rows[k].parent);
            }
        }
        Vec3<T> shift{}, turn{};
        for (int i = 0; i < joint.held_t; ++i) shift = shift - problem.residual[joint.row + i] * joints[node.joint].slide[i];
        for (int i = 0; i < joint.held_r; ++i) turn = turn - problem.residual[joint.row + joint.held_t + i] * frame.duals[i];
        store3(node.c, problem.bodies[joint.parent].next.R * shift + cross(frame.anchor, turn));
        store3(node.c + 3, turn);
    }

    template <int F>
    void eliminate(const Node &node) {
        const T *__restrict A = matrix(node.body), *N = node.N, *n = node.n;
        T *__restrict to = node.parent < 0 ? nullptr : matrix(node.parent);
        if constexpr (F == 0) {
            for (int k = 0; to && k < 36; ++k) to[k] += A[k];
        } else {
            T AN[6 * F], m[F * 6], pivot[F * F];
            for (int r = 0; r < 6; ++r)
                for (int i = 0; i < F; ++i) AN[r * F + i] = dot6(A + 6 * r, N + 6 * i);
            for (int i = 0; i < F; ++i)
                for (int k = 0; k < 6; ++k) {
                    T sum = n[6 * i] * A[k];
                    for (int r = 1; r < 6; ++r) sum += n[6 * i + r] * A[6 * r + k];
                    m[6 * i + k] = sum;
                }
            for (int i = 0; i < F; ++i)
                for (int j = 0; j < F; ++j) {
                    T sum{};
                    for (int r = 0; r < 6; ++r) sum += n[6 * i + r] * AN[r * F + j];
                    pivot[i * F + j] = sum;
                }
            for (int k = 0; k < node.rows; ++k)
                for (int j = 0; j < F; ++j) {
                    const T along = dot6(node.row + 6 * k, N + 6 * j);
                    node.along[k * F + j] = along;
                    for (int i = 0; i < F; ++i) pivot[i * F + j] += node.share[i * node.rows + k] * along;
                }
            for (int k = 0; node.two_sided && k < node.rows; ++k)
                for (int i = 0; i < F; ++i)
                    for (int c = 0; c < 6; ++c) m[6 * i + c] += node.share[i * node.rows + k] * node.drift[6 * k + c];
            ldu::factor<F>(pivot, F);
            ldu::divide<F, 6>(pivot, m, F, 6);
            std::copy_n(AN, 6 * F, node.AN);
            std::copy_n(m, 6 * F, node.m);
            std::copy_n(pivot, F * F, node.pivot);
            if (!to) return;
            for (int r = 0; r < 6; ++r)
                for (int c = 0; c < 6; ++c) {
                    T sum = A[6 * r + c];
                    for (int i = 0; i < F; ++i) sum -= AN[r * F + i] * m[6 * i + c];
                    to[6 * r + c] += sum;
                }
        }
    }

    template <int F>
    void reduce(const Node &node, const T *x, bool violated) {
        const T *A = matrix(node.body), *g = x + mechanism.joints[node.joint].right + mechanism.joints[node.joint].held();
        const T *a = right(node.body);
        T rest[6];
        for (int r = 0; r < 6; ++r) rest[r] = violated ? a[r] - dot6(A + 6 * r, node.c) : a[r];
        if constexpr (F > 0) {
            T e[F];
            for (int i = 0; i < F; ++i) e[i] = dot6(node.n + 6 * i, rest);
            for (int k = 0; k < node.rows; ++k) {
                const T pushed = violated ? g[k] - dot6(node.row + 6 * k, node.c) : g[k];
                for (int i = 0; i < F; ++i) e[i] += node.share[i * node.rows + k] * pushed;
            }
            ldu::divide<F, 1>(node.pivot, e, F, 1);
            for (int i = 0; i < F; ++i) node.e[i] = e[i];
            for (int r = 0; r < 6; ++r)
                for (int i = 0; i < F; ++i) rest[r] -= node.AN[r * F + i] * e[i];
        }
        if (node.parent < 0) return;
        T *to = right(node.parent);
        for (int r = 0; r < 6; ++r) to[r] += rest[r];
    }

    template <int F>
    void expand(const Node &node, T *x, bool violated) {
        const JointTable &joint = mechanism.joints[node.joint];
        const T *A = matrix(node.body), *a = right(node.body);
        const T *above = node.parent < 0 ? nullptr : &motions[6 * node.parent];
        T *delta = &motions[6 * node.body], between[6], wrench[6];
        for (int k = 0; k < 6; ++k) between[k] = violated ? node.c[k] : T{};
        for (int i = 0; i < F; ++i) {
            T q = node.e[i];
            if (above) q -= dot6(node.m + 6 * i, above);
            for (int k = 0; k < 6; ++k) between[k] += q * node.N[6 * i + k];
        }
        for (int k = 0; k < 6; ++k) delta[k] = above ? above[k] + between[k] : between[k];
        if (!joint.held()) return;
        for (int r = 0; r < 6; ++r) wrench[r] = dot6(A + 6 * r, delta) - a[r];
        T *out = x + joint.right;
        for (int k = 0; k < node.rows; ++k) {
            T pushed = out[joint.held() + k] - dot6(node.row + 6 * k, between);
            if (node.two_sided) pushed -= dot6(node.drift + 6 * k, above);
            for (int r = 0; r < 6; ++r) wrench[r] -= pushed * node.wrench[6 * k + r];
        }
        const Vec3<T> force = load3(wrench), torque = load3(wrench + 3) - cross(load3(node.anchor), force);
        for (int i = 0; i < joint.held_t; ++i) out[i] = dot(load3(node.axes + 3 * i), force);
        for (int i = 0; i < joint.held_r; ++i) out[joint.held_t + i] = dot(load3(node.duals + 3 * i), torque);
    }
};

}  // namespace torchdojo
