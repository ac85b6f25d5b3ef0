// The whole derivative of a step of a tree in joint coordinates, (q, q̇, u) to (q⁺, q̇⁺), through a system with a row per coordinate.
//
// A step links three configurations: before, now and next. A joint with free directions n at the current pose has, for fixed n,
//
//     nᵀ (Σ R − W) = 0,    R: what bodies and contacts beyond the joint balance,    W: the wrench of the joint,
//
// all wrenches in world axes about one origin (elements/spatial.hpp). Reactions of held rows do no work on n and do not occur. Bodies move by
// N x at the next pose, S dq at the current one, and S⁻ dq − h S⁻' dq̇ at the one before (tree.hpp). With the derivatives A, B and C of R by
// the motions of the three, summed over the bodies beyond a joint, the derivatives x of the next configuration solve
//
//     H x = −K,    H = nᵀ A N,    K = nᵀ (B S + C S⁻) by q,  nᵀ C (−h S⁻') by q̇,
//
// with what the impulses of the joint along its free directions add. If all three configurations move together, W and R move along; weights,
// forces from outside and contacts do not. So with the wrench w∘ of a motion ∘, joints beyond that of a column have nᵀ (B − w∘) S, in which W
// has cancelled.
//
// Rows y of H⁻¹ come first, since they are fewer than columns of K. Sums over subtrees: Featherstone 2008, "Rigid Body Dynamics Algorithms",
// section 6.2; here three configurations make H unsymmetric.
#pragma once

#include <iterator>

#include "gradient/joint_rows.hpp"
#include "gradient/minimal_jacobian.hpp"
#include "gradient/stiff_contacts.hpp"

namespace torchdojo {

template <class T>
class JointJacobian {
public:
    static bool fits(const MechanismTable &m) {
        return Tree<T>::fits(m) && !m.num_pairs && !m.num_tendons && int(m.tree.size()) == m.num_bodies &&
               std::all_of(m.joints.begin(), m.joints.end(), [&](const JointTable &joint) {
                   return JointRows<T>::covers(joint) && (joint.size || joint.parent == m.num_bodies);  // others part the tree
               });
    }
    // Whether steps of these options are differentiated at their own solutions on the tree.
    static bool covers(const MechanismTable &m, const Options &options) {
        return fits(m) && options.kappa >= constant::tree_kappa && !options.limit;
    }

    explicit JointJacobian(const MechanismTable &m)
        : mechanism(m), usable(fits(m)), state(m), product(m), frames(m.num_joints), size(m.num_coordinates),
          columns(2 * m.num_coordinates + m.num_inputs), stiff(m) {
        if (!usable) return;
        rows.resize(m.num_bodies);
        now.resize(36 * m.num_bodies);
        before.resize(36 * m.num_bodies);
        for (std::vector<T> *motion : {&n, &N, &S, &earlier, &faster}) motion->resize(6 * size);
        K.resize(size_t(size) * columns);
        x.resize(K.size());
        y.resize(size_t(size) * chunk);
        line.resize(2 * columns);
    }

    // Takes up to `lanes<T>` jobs, whose derivatives are taken at their own solutions.
    void run(const MinimalJob *jobs, int count, const Options &options, const double *shared, StepGradient<T> &gradient) {
        GradientJob steps[lanes<T>];
        const double *q[lanes<T>], *qd[lanes<T>];
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const MinimalJob &job = jobs[std::min(lane, count - 1)];
            q[lane] = job.q;
            qd[lane] = job.qd;
            if (lane < count) steps[lane] = job.step;
        }
        gradient.load(steps, count, options, shared, true);
        interleave(q, size, product.q.data());
        interleave(qd, size, product.qd.data());
        Problem<T> &problem = gradient.stepper.problem;
        Tree<T> &tree = gradient.stepper.tree;
        if (links.empty()) order(tree);
        linearize(problem, tree, gradient.stepper.cones, gradient.w.data());
        assemble(problem, tree);
        if (stiff.some()) {
            system.keep();
            stiff.add(system);
        }
        system.factor();
        for (int first = 0; first < size; first += chunk) find_rows(first);
        for (const Link &link : links) store(problem, tree, link, jobs, count);
    }

private:
    static constexpr int chunk = BranchSystem<T>::chunk;
    struct Link {  // a node of the tree; leaves come first
        const typename Tree<T>::Node *node;
        int joint, parent;  // parent: a link, or −1
        int first, free, coordinate;  // coordinates: in the order of links, and in the order of q
        int by_q, by_qd, by_u;  // columns of the result; by_u: −1 without inputs
        std::vector<int> own, up, branch;  // coordinates: own ones, also those towards the root, and all beyond it, too
    };
    const MechanismTable &mechanism;
    const bool usable;
    AdjointState<T, T> state;  // numbers of joints
    TreeProduct<T, T> product;
    std::vector<JointFrame<T>> frames;  // per joint, at the next pose
    const int size, columns;
    std::vector<Link> links;
    std::vector<JointRows<T>> rows;  // per link
    std::vector<T> now, before;  // per body: B − w∘ and C, which become sums
    std::vector<T> n, N, S, earlier, faster;  // motions, 6 numbers each: S⁻ and −h S⁻' are the last two
    BranchSystem<T> system;  // Hᵀ
    StiffContacts<T> stiff;
    std::vector<T> K, y, x, line;  // −K; a chunk of H⁻ᵀ; the derivatives of x
    std::vector<int> roots, link_of, column_of;  // roots, links: per body; columns by q: per coordinate

    void order(const Tree<T> &tree) {
        link_of.resize(mechanism.num_bodies);
        roots.resize(mechanism.num_bodies);
        std::vector<const TreeTable *> table(mechanism.num_bodies);
        for (const TreeTable &entry : mechanism.tree) table[mechanism.joints[entry.joint].child] = &entry;
        int first = 0;
        for (const auto &node : tree.nodes) {
            const TreeTable &entry = *table[node.body];
            const int free = mechanism.joints[entry.joint].free();
            link_of[node.body] = int(links.size());
            roots[node.body] = node.root;
            links.push_back({&node, entry.joint, -1, first, free, entry.coordinate, 0, 0, -1, {}, {}, {}});
            for (int i = 0; i < free; ++i) links.back().own.push_back(first + i);
            first += free;
        }
        for (Link &link : links)
            if (link.node->parent >= 0) link.parent = link_of[link.node->parent];
        for (int l = 0; l < int(links.size()); ++l) {
            Link &link = links[l];
            const int input = mechanism.joints[link.joint].input;
            link.by_q = link.coordinate;
            link.by_qd = size + link.coordinate;
            link.by_u = input < 0 ? -1 : 2 * size + input;
            for (int to = l; to >= 0; to = links[to].parent)
                for (int i = 0; i < links[to].free; ++i) {
                    link.up.push_back(links[to].first + i);
                    if (to == l || i) continue;
                    for (int k = 0; k < link.free; ++k) links[to].branch.push_back(link.first + k);
                }
        }
        column_of.resize(size);
        for (const Link &link : links)
            for (int i = 0; i < link.free; ++i) column_of[link.first + i] = link.by_q + i;
        std::vector<std::vector<int>> above(size);
        for (Link &link : links) {
            link.branch.insert(link.branch.end(), link.up.begin(), link.up.end());
            for (int k = link.first; k < link.first + link.free; ++k)
                std::copy_if(link.up.begin(), link.up.end(), std::back_inserter(above[k]), [&](int up) { return up > k; });
        }
        system.set(std::move(above));
    }

    // Numbers of bodies, contacts and joints at the solution.
    void linearize(Problem<T> &problem, Tree<T> &tree, Cones<T> &cones, const T *w) {
        cones.condense(problem, w);
        tree.next_frames = frames.data();
        tree.place(problem, w);
        stiff.find(problem);
        tree.template linearize<true>(problem, w);
        tree.next_frames = nullptr;
        for (int i = 0; i <= mechanism.num_bodies; ++i) state.turn[i] = rotation_matrix(problem.bodies[i].increment);
        state.point = w;
        JointAdjoint<T>::differentiate(state, problem, w);
        product.prepare(problem,
                        [&](int body) -> Vec3<T> { return body == mechanism.num_bodies ? Vec3<T>{} : problem.bodies[roots[body]].pose.x; });
        for (const Link &link : links) {
            add_body(problem, tree, *link.node, w);
            set_motions(problem, link);
        }
        for (int c = 0; c < mechanism.num_contacts; ++c) add_contact(problem, tree, c);
        stiff.place(n.data(), N.data(), S.data(),
                    [&](int c, T *rows, T *current, T *wrench) { return set_stiff(problem, tree, c, rows, current, wrench); });
    }

    const std::vector<int> *set_stiff(const Problem<T> &problem, const Tree<T> &tree, int c, T *rows, T *current, T *wrench) const {
        const ContactTable &contact = mechanism.contacts[c];
        const SpatialBody<T> &body = tree.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        std::copy_n(tree.contact_rows(c), contact.friction ? 18 : 6, rows);
        current_rows(problem, tree, c, current);
        for (int i = 0; i < (contact.friction ? 3 : 1); ++i) {
            const Vec3<T> d = load3(i ? p + parameter::tangents + 3 * (i - 1) : p + parameter::normal);
            store3(wrench + 6 * i, d);
            store3(wrench + 6 * i + 3, body.back * cross(tree.contacts[c].lever, d) + cross(body.r, d));
        }
        return &links[link_of[contact.body]].up;
    }

    void set_motions(const Problem<T> &problem, const Link &link) {
        const T h = problem.timestep();
        for (int i = 0; i < link.free; ++i) {
            const int place = 6 * (link.first + i);
            const auto &motion = product.motion(link.coordinate + i);
            store3(&S[place], motion.now.linear);
            store3(&S[place + 3], motion.now.angular);
            store3(&earlier[place], motion.now.linear - h * motion.change.linear);
            store3(&earlier[place + 3], motion.now.angular - h * motion.change.angular);
            store3(&faster[place], -h * motion.speed.linear);
            store3(&faster[place + 3], -h * motion.speed.angular);
            for (int k = 0; k < 6; ++k) {
                n[place + k] = link.node->joint < 0 ? broadcast<T>(i == k) : link.node->n[6 * i + k];
                N[place + k] = link.node->joint < 0 ? broadcast<T>(i == k) : link.node->N[6 * i + k];
            }
        }
    }

    // Adds ω × v to the force that a motion gives, and r × (ω × v) to its torque.
    static TD_INLINE void add_spin(T *to, const Vec3<T> &r, const Vec3<T> &v) {
        add_skew(to + 3, 6, -v);
        const T trace = dot(r, v);
        for (int k = 0; k < 3; ++k)
            for (int j = 0; j < 3; ++j) to[21 + 6 * k + j] += j == k ? trace - v[k] * r[k] : -(v[k] * r[j]);
    }

    // Derivatives of a body's balance by the motions before and now, from that by the next one and from what does not move along.
    void add_body(Problem<T> &problem, Tree<T> &tree, const typename Tree<T>::Node &node, const T *w) {
        const int i = node.body;
        const T h = problem.timestep(), inverse_h = 1.0 / h;
        const T *p = problem.body_parameters(i), *velocities = &problem.z[state_size * i];
        const T &own_mass = p[parameter::mass], mass = inverse_h * own_mass;
        SpatialBody<T> &spatial = tree.bodies[i];
        T *B = &now[36 * i], *C = &before[36 * i], A[36];
        body_matrix(problem, i, tree.origin(problem, node), spatial, w, A);
        // The momentum s Jω + a × Jω of the incoming velocity, with the opposite sign of a, by ω; and by the motion before.
        const Vec3<T> omega = problem.bodies[i].pose.R * load3(velocities + 10), spin = spatial.inertia * omega;
        const Vec3<T> a = (0.5 * h) * omega, half = (0.5 * h) * spin, earlier_r = spatial.r - h * load3(velocities + 3);
        const T s = sqrt(1.0 - dot(a, a)), bend = 0.5 * h / s;
        Mat3<T> G;
        for (int k = 0; k < 3; ++k) {
            const Vec3<T> column = spatial.inertia.column(k), g = s * column - cross(a, column) - (bend * a[k]) * spin;
            for (int j = 0; j < 3; ++j) G.m[3 * j + k] = g[j];
        }
        add_skew(G, half);
        std::fill_n(C, 36, T{});
        const Vec3<T> &r = spatial.r, lever = mass * r;
        C[0] = C[7] = C[14] = mass;
        store_skew(C + 18, 6, lever);
        for (int k = 0; k < 3; ++k) {
            const Vec3<T> g = G.row(k), row = inverse_h * (s * g + cross(g, a));
            for (int j = 0; j < 3; ++j) C[21 + 6 * k + j] = row[j];
        }
        add_spin(C, r, mass * earlier_r);
        for (int k = 0; k < 36; ++k) B[k] = -(A[k] + C[k]);
        const Vec3<T> weight = own_mass * load3(&problem.parameters[parameter::gravity]) + load3(&problem.wrench[6 * i]);
        add_spin(B, r, h * weight + load3(&tree.pressed[6 * i]));
    }

    // Derivatives of gap and slip of a contact by the current pose: of the slip and, under a law of overlap, of the gap. Whether there are.
    bool current_rows(const Problem<T> &problem, const Tree<T> &tree, int c, T *C) const {
        const ContactTable &contact = mechanism.contacts[c];
        const LawData<T> *law = problem.overlaps ? &problem.laws[contact.law] : nullptr;
        const bool overlaps = law && law->overlaps;
        if (!contact.friction && !overlaps) return false;
        const SpatialBody<T> &spatial = tree.bodies[contact.body];
        const BodyData<T> &body = problem.bodies[contact.body];
        const T inverse_h = 1.0 / problem.timestep();
        if (overlaps) {
            const Vec3<T> x = load3(law->distance_row), turn = body.pose.R * load3(law->distance_row + 3);
            store3(C, -law->slope * x);
            store3(C + 3, -law->slope * (turn + cross(spatial.r, x)));
        }
        for (int i = 0; contact.friction && i < 2; ++i) {
            const Vec3<T> t = load3(&problem.parameters[contact.parameters] + parameter::tangents + 3 * i);
            const Vec3<T> m = cross(tree.contacts[c].lever, t);
            store3(C + 6 * (1 + i), -inverse_h * t);
            store3(C + 6 * (1 + i) + 3, -inverse_h * (cross(spatial.r, t) + body.increment.w * m - cross(spatial.a, m)));
        }
        return true;
    }

    void add_contact(const Problem<T> &problem, const Tree<T> &tree, int c) {
        const ContactTable &contact = mechanism.contacts[c];
        T C[18] = {}, KC[18], F[18];
        if (!current_rows(problem, tree, c, C)) return;
        const SpatialBody<T> &spatial = tree.bodies[contact.body];
        const T *p = &problem.parameters[contact.parameters];
        const Vec3<T> &lever = tree.contacts[c].lever, &o = spatial.r, normal = load3(p + parameter::normal);
        const Vec3<T> tangent[2] = {load3(p + parameter::tangents), load3(p + parameter::tangents + 3)};
        stiffen(contact, problem.contacts[c], C, KC);
        T *B = &now[36 * contact.body];
        for (int r = 0; r < 3; ++r)
            for (int k = 0; k < 6; ++k) {
                T sum = normal[r] * KC[k];
                if (contact.friction) sum += tangent[0][r] * KC[6 + k] + tangent[1][r] * KC[12 + k];
                F[6 * r + k] = sum;
                B[6 * r + k] += sum;
            }
        const Vec3<T> about[3] = {{T{}, -o.z, o.y}, {o.z, T{}, -o.x}, {-o.y, o.x, T{}}};
        for (int r = 0; r < 3; ++r) {
            const Vec3<T> moment = cross(spatial.back.row(r), lever) + about[r];
            for (int k = 0; k < 6; ++k) B[18 + 6 * r + k] += moment.x * F[k] + moment.y * F[6 + k] + moment.z * F[12 + k];
        }
    }

    // M v for a matrix, and Mᵀ v, of 6 x 6.
    static TD_INLINE void times(const T *M, const T *v, T *to) {
        for (int r = 0; r < 6; ++r) to[r] = dot6(M + 6 * r, v);
    }
    static TD_INLINE void transposed(const T *M, const T *v, T *to) {
        for (int k = 0; k < 6; ++k)
            to[k] = M[k] * v[0] + M[6 + k] * v[1] + M[12 + k] * v[2] + M[18 + k] * v[3] + M[24 + k] * v[4] + M[30 + k] * v[5];
    }

    // H and K. The columns of K are negative. Sums over subtrees go from leaves to roots.
    void assemble(const Problem<T> &problem, Tree<T> &tree) {
        for (size_t l = 0; l < links.size(); ++l) {
            const Link &link = links[l];
            const int body = link.node->body;
            T *A = tree.matrix(body), *B = &now[36 * body], *C = &before[36 * body];
            rows[l].set(problem, state, tree, *link.node, link.joint, &n[6 * link.first]);
            set_columns(int(l), A, B, C);
            add_joint(problem, tree, link, rows[l]);
            if (link.parent < 0) continue;
            set_rows(link, rows[l], A, B, C);
            const int parent = links[link.parent].node->body;
            T *A_to = tree.matrix(parent), *B_to = &now[36 * parent], *C_to = &before[36 * parent];
            for (int k = 0; k < 36; ++k) {
                A_to[k] += A[k];
                B_to[k] += B[k];
                C_to[k] += C[k];
            }
        }
    }

    // Columns of a link in its own rows and in those towards the root. W, the wrench of the joint, moves along.
    TD_INLINE void set_columns(int number, const T *A, const T *B, const T *C) {
        const Link &link = links[number];
        const Vec3<T> force = rows[number].force, torque = rows[number].torque;
        for (int j = 0; j < link.free; ++j) {
            const int column = link.first + j;
            const T *motion = &S[6 * column];
            T next[6], by_q[6], by_qd[6], back[6];
            times(A, &N[6 * column], next);
            times(B, motion, by_q);
            times(C, &earlier[6 * column], back);
            times(C, &faster[6 * column], by_qd);
            const Vec3<T> v = load3(motion), omega = load3(motion + 3);
            add3(by_q, cross(omega, force));
            add3(by_q + 3, cross(omega, torque) + cross(v, force));
            for (int k = 0; k < 6; ++k) by_q[k] += back[k];
            for (int up = number; up >= 0; up = links[up].parent)
                for (int a = links[up].first; a < links[up].first + links[up].free; ++a) {
                    entry(a, column) = dot6(&n[6 * a], next);
                    right(a, link.by_q + j) = -dot6(&n[6 * a], by_q);
                    right(a, link.by_qd + j) = -dot6(&n[6 * a], by_qd);
                }
        }
    }

    // Adds the impulses of a joint along its free directions, in its own rows and columns.
    TD_INLINE void add_joint(const Problem<T> &problem, const Tree<T> &tree, const Link &link, const JointRows<T> &joint_rows) {
        for (int i = 0; i < link.free; ++i) {
            const int row = link.first + i;
            const auto &sum = joint_rows.sums[i];
            for (int j = 0; j < link.free; ++j) {
                const int column = link.first + j;
                entry(row, column) += dot6(sum.next, &N[6 * column]);
                right(row, link.by_q + j) -= dot6(sum.now, &S[6 * column]) + dot6(sum.before, &earlier[6 * column]);
                right(row, link.by_qd + j) -= dot6(sum.before, &faster[6 * column]);
                if (link.free > 1)
                    right(row, link.by_q + j) += joint_rows.turned(problem, state, tree, link.joint, &n[6 * row], &S[6 * column]);
                if (link.by_u >= 0) right(row, link.by_u + j) = sum.by_input[j];
            }
        }
    }

    // Rows of a link in the columns towards the root.
    TD_INLINE void set_rows(const Link &link, const JointRows<T> &joint_rows, const T *A, const T *B, const T *C) {
        for (int i = 0; i < link.free; ++i) {
            const int row = link.first + i;
            const auto &sum = joint_rows.sums[i];
            T next[6], by_now[6], by_before[6];
            transposed(A, &n[6 * row], next);
            transposed(B, &n[6 * row], by_now);
            transposed(C, &n[6 * row], by_before);
            for (int k = 0; joint_rows.drifts && k < 3; ++k) {
                next[3 + k] += sum.next_drift[k];
                by_now[3 + k] += sum.now_drift[k];
            }
            for (int up = link.parent; up >= 0; up = links[up].parent) {
                const Link &to = links[up];
                for (int j = 0; j < to.free; ++j) {
                    const int column = to.first + j;
                    entry(row, column) = dot6(next, &N[6 * column]);
                    right(row, to.by_q + j) = -(dot6(by_now, &S[6 * column]) + dot6(by_before, &earlier[6 * column]));
                    right(row, to.by_qd + j) = -dot6(by_before, &faster[6 * column]);
                }
            }
        }
    }

    TD_INLINE T &entry(int row, int column) { return system(column, row); }
    TD_INLINE T &right(int row, int column) { return K[size_t(columns) * row + column]; }

    // A chunk of rows of H⁻¹ and of the derivatives of x.
    void find_rows(int first) {
        const int count = std::min(chunk, size - first);
        std::fill(y.begin(), y.end(), T{});
        for (int c = 0; c < count; ++c) y[chunk * (first + c) + c] = broadcast<T>(1.0);
        system.solve_unit(y.data(), first);
        if (stiff.some()) stiff.refine(system, size, first, y.data());
        T *to = &x[size_t(columns) * first];
        for (const Link &link : links)
            for (int i = 0; i < link.free; ++i) {
                multiply(link.by_q + i, link.branch, count, to);
                multiply(link.by_qd + i, link.branch, count, to);
                if (link.by_u >= 0) multiply(link.by_u + i, link.own, count, to);
            }
        stiff.each_now([&](int coordinate, const T *sum) {
            for (int c = 0; c < count; ++c) to[size_t(columns) * c + column_of[coordinate]] += sum[c];
        });
    }

    // A column of −H⁻¹ K, which has these coordinates.
    TD_INLINE void multiply(int column, const std::vector<int> &coordinates, int count, T *to) {
        T sum[chunk] = {};
        for (const int k : coordinates) {
            const T part = right(k, column), *from = &y[chunk * k];
            for (int c = 0; c < chunk; ++c) sum[c] += part * from[c];
        }
        for (int c = 0; c < count; ++c) to[size_t(columns) * c + column] = sum[c];
    }

    // Rows of q⁺ and q̇⁺ from the motions of a joint. For translations and single rotations, q⁺ = q + h q̇⁺.
    void store(const Problem<T> &problem, Tree<T> &tree, const Link &link, const MinimalJob *jobs, int count) {
        const JointTable &joint = mechanism.joints[link.joint];
        const JointData<T> &data = problem.joints[link.joint];
        const T inverse_h = 1.0 / problem.timestep();
        const T *p = &problem.parameters[joint.parameters];
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const Mat3<T> frame = parent.next.R * data.offset;
        const Vec3<T> anchor = tree.bodies[joint.child].r_next + child.next.R * load3(p + parameter::child_anchor);
        RotationVector<T> turn, angle;
        Mat3<T> frame_now;
        if (joint.has_vector()) {
            const Quat<T> next = conjugate(parent.next.q * data.offset_quaternion) * child.next.q;
            turn = rotation_vector(next * conjugate(data.now.p));
            angle = rotation_vector(next);
            frame_now = parent.pose.R * data.offset;
        }
        for (int i = 0; i < link.free; ++i) {
            bool translation;
            const Vec3<T> f = joint_direction(problem, joint, joint.held() + i, translation);
            const bool vector = !translation && joint.has_vector();
            const Vec3<T> axis = frame * (vector ? right_jacobian_inverse(angle, f) : f);
            const Vec3<T> moved = vector ? frame * right_jacobian_inverse(turn, f) : axis;
            T *by_q = line.data(), *by_qd = by_q + columns;
            for (int a = 0; a < link.free; ++a) {
                const T *motion = &N[6 * (link.first + a)], *derivatives = &x[size_t(columns) * (link.first + a)];
                const Vec3<T> v = load3(motion), omega = load3(motion + 3);
                const T weight = translation ? dot(axis, v + cross(omega, anchor)) : dot(axis, omega);
                const T rate = inverse_h * (vector ? dot(moved, omega) : weight);
                if (a) {
                    for (int c = 0; c < columns; ++c) {
                        by_q[c] += weight * derivatives[c];
                        by_qd[c] += rate * derivatives[c];
                    }
                } else {
                    for (int c = 0; c < columns; ++c) {
                        by_q[c] = weight * derivatives[c];
                        by_qd[c] = rate * derivatives[c];
                    }
                }
            }
            if (vector) {
                const Vec3<T> back = inverse_h * (frame_now * left_jacobian_inverse(turn, f));
                for (int b = 0; b < link.free; ++b) by_qd[link.coordinate + b] -= dot(back, load3(&S[6 * (link.first + b) + 3]));
            } else {
                by_qd[link.coordinate + i] -= inverse_h;
            }
            double *to[lanes<T>];
            for (int lane = 0; lane < count; ++lane) to[lane] = jobs[lane].out + size_t(columns) * (link.coordinate + i);
            separate(by_q, columns, to, count);
            for (int lane = 0; lane < count; ++lane) to[lane] += size_t(columns) * size;
            separate(by_qd, columns, to, count);
        }
    }
};

}  // namespace torchdojo
