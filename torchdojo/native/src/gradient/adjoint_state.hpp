// The derivative of the solved step: multipliers, gradients, and numbers of the elements that do not depend on the right-hand side.
//
// Scalars: the problem has T. The adjoint has R, which is T, or Pack over a double problem with one right-hand side per lane.
#pragma once

#include "solver/problem.hpp"

namespace torchdojo {

// Gradient with respect to the tangent of the data: per body x, φ, v, ω; u; external force and torque.
template <class R>
struct DataGradient {
    std::vector<Vec3<R>> x, phi, v, omega, force, torque;  // the world behind the bodies
    std::vector<R> u;

    explicit DataGradient(const MechanismTable &m) : x(m.num_bodies + 1), phi(x), v(x), omega(x), force(x), torque(x), u(m.num_inputs) {}
};

// Derivatives of the arguments of free directions by the current poses: coordinates for springs, h times the rates of dampers.
// The poses are x of the child and φ of both bodies. The derivative by x of the parent is the negative of the child's.
template <class T>
struct FreeGradient {
    RowGradient<T, T> coordinate[6], difference[6];
};

// Derivatives for joints with armature, limits or friction: h ċ⁺ by the next and the current poses, and c⁺ by the next poses. The rate ċ
// belongs to the step that led here, so h ċ has derivatives by the current poses and by the poses before.
template <class T>
struct MovingGradient {
    RowGradient<T, T> rate_next[6], rate_now[6], coordinate_next[6], incoming_now[6];
    struct Before {
        Vec3<T> x, phi, omega;  // the poses before, by the current poses and by the velocities that led here
    } before_child[6], before_parent[6];
};

// A contact of a sphere with a half-space, by the next orientation: gap, slips along both tangents, and torque with a row per component.
template <class T>
struct ContactByTurn {
    Vec3<T> gap, slip[2];
    Mat3<T> torque;
};

template <class T>
struct JointImpulse {
    Vec3<T> force;
    Vec3<T> held, turned, pushes;  // multipliers m of held rotations, torques along free ones, impulses along components of `angle`
    const RotationVector<T> *angle;  // rotation vector of p; null where no limit and no spring pushes along it
    bool coned = false;  // whether `turned` has a torque along the rotation vector, of a cone
    T cone{};  // this torque over the rotation vector

    // ½ (p_w m + p_v × m), and J_l⁻ᵀ times the impulses along the rotation vector.
    TD_INLINE Vec3<T> torque(const Quat<T> &p) const {
        const Vec3<T> sum = 0.5 * (p.w * held + cross(p.v, held)) + turned;
        return angle ? sum + right_jacobian_inverse(*angle, pushes) : sum;
    }
};

// An impulse of a joint, or of an end of a coupling, in the frames of the parent (a) and the child (b).
template <class T>
struct ImpulseInFrames {
    JointImpulse<T> impulse;
    Vec3<T> f_a, tau_a, f_b, tau_b;

    void set(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, const JointImpulse<T> &in_joint) {
        impulse = in_joint;
        const Mat3<T> &Ra = problem.bodies[joint.parent].pose.R, &Rb = problem.bodies[joint.child].pose.R;
        f_a = data.offset * in_joint.force;
        tau_a = data.offset * in_joint.torque(data.now.p);
        f_b = transposed_times(Rb, Ra * f_a);
        tau_b = transposed_times(Rb, Ra * tau_a);
    }
};

template <class T, class R>
struct AdjointState {
    const MechanismTable &mechanism;
    DataGradient<R> gradient;
    std::vector<R> multiplier;  // λ in the places of w (zero in complementarity rows, which no datum enters; with several right-hand
    // sides per matrix zero in rows of friction, too, which only its coefficient enters)
    const T *give = nullptr;  // for hard gradients: compliance of held impulses (Limit::apply), which refinement removes
    const T *point = nullptr;  // w
    std::vector<R> right;  // λ by rows of the matrix
    std::vector<Vec3<R>> touching;  // ν_φ and ν_t of contacts
    std::vector<char> left_out;  // contacts without columns in the matrix (capacitance.hpp)
    std::vector<R> turning;  // ν of the spins of torsional and rolling friction
    std::vector<R> pressing;  // ν of limits and frictions of joints
    std::vector<Vec3<R>> phi_next, x_next;  // derivatives of −λᵀr by the next poses
    std::vector<Mat3<T>> turn;  // rotations of the increments
    std::vector<ContactByTurn<T>> by_turn;
    std::vector<FreeGradient<T>> free;
    std::vector<MovingGradient<T>> moving;
    std::vector<ImpulseInFrames<T>> impulses, coupling_impulses;
    std::vector<R> of_tendons;  // gradients by impulses of tendons
    TendonGradient<R> tendons;

    explicit AdjointState(const MechanismTable &m)
        : mechanism(m), gradient(m), multiplier(m.num_unknowns), right(m.schedule.num_rows), touching(m.num_contacts),
          left_out(m.num_contacts), turning(2 * m.num_couples), pressing(m.num_joint_cones), phi_next(m.num_bodies + 1), x_next(phi_next),
          turn(m.num_bodies + 1), by_turn(m.num_contacts), free(m.num_joints), moving(m.num_free_data), impulses(m.num_joints),
          coupling_impulses(m.num_coupling_ends), of_tendons(m.num_tendons),
          tendons{std::vector<R>(m.num_tendons), std::vector<Pull<R>>(m.num_tendon_bodies)} {}

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

// Derivatives of V by the geometry of a touch, in the world frame: the distance φ⁺, the contact frame, and the lever on each body.
template <class T>
struct TouchGradient {
    T distance;
    Vec3<T> n, t1, t2, lever[2];
};

// The gradient of parameters for one step, in their places. The gradient of the timestep is separate.
template <class T>
struct ParameterSum {
    std::vector<T> sum;
    T by_timestep;
    double *row[lanes<T>] = {};  // per environment: where sums are added, samples of height fields at once; null: counts for nothing
};

}  // namespace torchdojo
