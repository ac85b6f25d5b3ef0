// The whole derivative of a step in minimal coordinates, (q, q̇, u) to (q⁺, q̇⁺), row by row through the transposed system. Trees have a
// faster way (joint_jacobian.hpp), which does not cover smoothed and hard-limit derivatives, friction of balls and floating joints.
//
// q̇⁺ is a function of the poses at both ends of the step. The next pose moves with the current pose and with w. A row of the derivative
// gives one right-hand side for the transposed system: its gradient by v⁺ and ω⁺, zero for impulses. Its gradient by the current poses is
// added, and tree.hpp takes both to (q, q̇).
//
// Rows of q⁺ follow from q⁺ = q + h q̇⁺ for translations and single rotations. Components of a rotation vector of two or three rotations
// do not add up, and have their own right-hand sides. So a tree with n coordinates takes n solves, or a few more, instead of the 6 nb of
// jacobian.hpp, and stores (2n)² numbers.
#pragma once

#include "gradient/gradient.hpp"
#include "gradient/tree.hpp"

namespace torchdojo {

struct MinimalJob {
    GradientJob step;
    const double *q, *qd;             // coordinates and rates of the state step.step.z
    double *out;                      // shape (2n, 2n + nu)
};

template <class T, class R>
class MinimalJacobian {
public:
    static constexpr int width = lanes<R> / lanes<T>;  // rows per solve

    explicit MinimalJacobian(const MechanismTable &m)
        : mechanism(m), adjoint(m), product(m), right(m.num_unknowns), columns(2 * m.num_coordinates + m.num_inputs),
          next(m.num_bodies + 1) {
        for (int l = 0; l < int(m.tree.size()); ++l) {
            const JointTable &joint = m.joints[m.tree[l].joint];
            for (int i = 0; i < joint.free(); ++i) {
                targets.push_back({l, i, true});
                if (i >= joint.free_t() && joint.free_r() > 1) targets.push_back({l, i, false});
            }
        }
        gradients.resize(targets.size());
        next[m.num_bodies] = Next{};
    }

    // Takes up to `lanes<T>` jobs. `gradient` loads and smooths.
    void run(const MinimalJob *jobs, int count, const Options &options, const double *shared, StepGradient<T> &gradient) {
        GradientJob steps[lanes<T>];
        for (int lane = 0; lane < count; ++lane) steps[lane] = jobs[lane].step;
        gradient.load(steps, count, options, shared);
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const MinimalJob &job = jobs[std::min(lane, count - 1)];
            for (int k = 0; k < mechanism.num_coordinates; ++k) {
                set(product.q[k], lane, job.q[k]);
                set(product.qd[k], lane, job.qd[k]);
            }
        }
        const Problem<T> &problem = gradient.stepper.problem;
        const T *solution = gradient.solution.data();
        product.prepare(problem);
        differentiate_targets(problem, gradient.w.data());
        adjoint.give = options.limit ? gradient.give.data() : nullptr;
        adjoint.factor(gradient.stepper.problem, gradient.stepper.cones, solution);
        const int rows = int(targets.size());
        for (int first = 0; first < rows; first += width) {
            const int size = std::min(width, rows - first);
            std::fill_n(right.begin(), 6 * mechanism.num_bodies, R{});
            for (int k = 0; k < size; ++k) add_velocities(targets[first + k], gradients[first + k], k);
            adjoint.solve(problem, solution, right.data(), false, true);
            adjoint.multiply(problem, solution);
            for (int k = 0; k < size; ++k) add_poses(targets[first + k], gradients[first + k], k);
            product.multiply(adjoint.gradient);
            std::copy(product.by_q.begin(), product.by_q.end(), columns.begin());
            std::copy(product.by_qd.begin(), product.by_qd.end(), columns.begin() + mechanism.num_coordinates);
            std::copy(adjoint.gradient.u.begin(), adjoint.gradient.u.end(), columns.begin() + 2 * mechanism.num_coordinates);
            for (int lane = 0; lane < count; ++lane)
                for (int k = 0; k < size; ++k)
                    store(targets[first + k], jobs[lane].out, get(problem.timestep(), lane), width == 1 ? lane : k);
        }
    }

private:
    struct Target {                   // a row: coordinate i of a link of the tree, q̇⁺ or q⁺
        int link, i;
        bool rate;
    };
    struct Gradient {                 // by v⁺ of the child (the negative for the parent) and ω⁺; by x and φ of the current poses
        Vec3<T> v, omega_child, omega_parent, x, phi_child, phi_parent;
    };
    struct Next {                     // at the end of the step itself, not where derivatives are smoothed
        BodyPose<T> pose;
        Mat3<T> turn;                 // rotation of the increment
        Vec3<T> a;
        T c;
        // Mᵀφ / h, M = h (c I + a aᵀ/c − [a]×)
        TD_INLINE Vec3<T> by_velocity(const Vec3<T> &phi) const { return c * phi + (dot(a, phi) / c) * a + cross(a, phi); }
    };
    const MechanismTable &mechanism;
    Adjoint<T, R> adjoint;
    TreeProduct<T, R> product;
    std::vector<R> right, columns;
    std::vector<Next> next;           // of the bodies; the world is the last
    std::vector<Target> targets;
    std::vector<Gradient> gradients;

    void differentiate_targets(const Problem<T> &problem, const T *w) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        for (int i = 0; i <= mechanism.num_bodies; ++i) {
            const BodyPose<T> &pose = problem.bodies[i].pose;
            Next &to = next[i];
            const bool world = i == mechanism.num_bodies;
            to.a = world ? Vec3<T>{} : (0.5 * h) * load3(w + 6 * i + 3);
            to.c = sqrt(1.0 - dot(to.a, to.a));
            to.turn = rotation_matrix(Quat<T>{to.c, to.a});
            to.pose.x = world ? pose.x : pose.x + h * load3(w + 6 * i);
            to.pose.q = pose.q * Quat<T>{to.c, to.a};
            to.pose.R = rotation_matrix(to.pose.q);
        }
        for (size_t k = 0; k < targets.size();) {
            const int link = targets[k].link;
            const JointTable &joint = mechanism.joints[mechanism.tree[link].joint];
            const JointData<T> &data = problem.joints[mechanism.tree[link].joint];
            const Next &parent = next[joint.parent], &child = next[joint.child];
            const Relative<T> after = problem.relative(joint, parent.pose, child.pose, data.offset_quaternion);
            const FreeAxes<T> axes(joint, problem.parameters.data());
            RotationVector<T> turn, angle;
            if (joint.free_r()) turn = rotation_vector(after.p * conjugate(data.now.p));
            if (joint.free_r() > 1) angle = rotation_vector(after.p);
            for (; k < targets.size() && targets[k].link == link; ++k) {
                const Target &target = targets[k];
                const RowGradient<T, T> then = by_next(problem, joint, axes, target, after, turn, angle);
                Gradient &to = gradients[k];
                to = {h * then.x_child, h * child.by_velocity(then.phi_child), h * parent.by_velocity(then.phi_parent),
                      then.x_child,     child.turn * then.phi_child,           parent.turn * then.phi_parent};
                if (!target.rate) continue;
                const RowGradient<T, T> current = by_now(problem, joint, axes, target, turn);
                to = {then.x_child,
                      child.by_velocity(then.phi_child),
                      parent.by_velocity(then.phi_parent),
                      inverse * (to.x - current.x_child),
                      inverse * (to.phi_child - current.phi_child),
                      inverse * (to.phi_parent - current.phi_parent)};
            }
        }
    }

    // Gradient of h times the rate, A_t (e⁺ − e) and A_r log(p⁺ p⁻¹), or of A_r log p⁺, by the next poses and in their body frames.
    RowGradient<T, T> by_next(const Problem<T> &problem, const JointTable &joint, const FreeAxes<T> &axes, const Target &target,
                              const Relative<T> &after, const RotationVector<T> &turn, const RotationVector<T> &angle) const {
        const int i = target.i - joint.free_t();
        if (i < 0) return translation(joint, axes, target.i, next[joint.parent].pose, next[joint.child].pose, after);
        const Vec3<T> f = axes.rotation(i);
        if (!target.rate) return {Vec3<T>{}, left_jacobian_inverse(angle, f), -(axes.offset * right_jacobian_inverse(angle, f))};
        return turn_gradient(axes.offset, now(problem, joint).p, turn, f);
    }

    // Gradient of A_t e and −A_r log(p⁺ p⁻¹) by the current poses.
    RowGradient<T, T> by_now(const Problem<T> &problem, const JointTable &joint, const FreeAxes<T> &axes, const Target &target,
                             const RotationVector<T> &turn) const {
        const int i = target.i - joint.free_t();
        if (i < 0)
            return translation(joint, axes, target.i, problem.bodies[joint.parent].pose, problem.bodies[joint.child].pose,
                               now(problem, joint));
        const Vec3<T> g = left_jacobian_inverse(turn, axes.rotation(i));
        return {Vec3<T>{}, transposed_times(rotation_matrix(now(problem, joint).p), g), -(axes.offset * g)};
    }

    static RowGradient<T, T> translation(const JointTable &joint, const FreeAxes<T> &axes, int i, const BodyPose<T> &parent,
                                         const BodyPose<T> &child, const Relative<T> &relative) {
        const Vec3<T> f = load3(axes.p + parameter::translations + 3 * (joint.held_t + i));
        return translation_gradient(parent, child, axes.offset, relative, axes.child_anchor(), f);
    }

    static const Relative<T> &now(const Problem<T> &problem, const JointTable &joint) {
        return problem.joints[&joint - problem.mechanism.joints.data()].now;
    }

    // Writes to lane k of R, or to all lanes where they are environments.
    template <class To>
    static TD_INLINE void add(To &&to, int k, const Vec3<T> &value) {
        for (int c = 0; c < 3; ++c) {
            if constexpr (width == 1) to[c] = to[c] + value[c];
            else set(to[c], k, get(to[c], k) + value[c]);
        }
    }

    void add_velocities(const Target &target, const Gradient &g, int k) {
        const JointTable &joint = mechanism.joints[mechanism.tree[target.link].joint];
        add(&right[6 * joint.child], k, g.v);
        add(&right[6 * joint.child + 3], k, g.omega_child);
        if (joint.parent == mechanism.num_bodies) return;
        add(&right[6 * joint.parent], k, -g.v);
        add(&right[6 * joint.parent + 3], k, g.omega_parent);
    }

    void add_poses(const Target &target, const Gradient &g, int k) {
        const JointTable &joint = mechanism.joints[mechanism.tree[target.link].joint];
        add(adjoint.gradient.x[joint.child], k, g.x);
        add(adjoint.gradient.phi[joint.child], k, g.phi_child);
        add(adjoint.gradient.x[joint.parent], k, -g.x);
        add(adjoint.gradient.phi[joint.parent], k, g.phi_parent);
    }

    void store(const Target &target, double *out, double h, int lane) const {
        const TreeTable &link = mechanism.tree[target.link];
        const JointTable &joint = mechanism.joints[link.joint];
        const int n = mechanism.num_coordinates, place = link.coordinate + target.i, size = int(columns.size());
        double *row = out + size_t(target.rate ? n + place : place) * size;
        for (int c = 0; c < size; ++c) row[c] = get(columns[c], lane);
        if (!target.rate || (target.i >= joint.free_t() && joint.free_r() > 1)) return;
        double *coordinate = out + size_t(place) * size;  // q⁺ = q + h q̇⁺
        for (int c = 0; c < size; ++c) coordinate[c] = h * row[c];
        coordinate[place] += 1.0;
    }
};

}  // namespace torchdojo
