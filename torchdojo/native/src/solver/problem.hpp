// The numbers of one step: data, elements at a point w, residual and condensed matrix. equations.hpp fills them from bodies and elements.
#pragma once

#include <algorithm>

#include "elements/data.hpp"

namespace torchdojo {

template <class T>
struct Problem {
    const MechanismTable &mechanism;
    std::vector<T> parameters, z, u, wrench;
    const double *samples[lanes<T>] = {};  // the parameters with which samples of height fields come, of the environment in each lane
    std::vector<BodyData<T>> bodies;  // the world is the last
    std::vector<JointData<T>> joints;
    std::vector<ContactData<T>> contacts;
    FarField<T> far;                  // points without unknowns
    std::vector<LawData<T>> laws;
    std::vector<FreeData<T>> free;
    std::vector<T> curves;            // `CurveData` of all joints, where any has a curve
    std::vector<JointConeData<T>> joint_cones;
    std::vector<PairData<T>> pairs;
    std::vector<CoupleData<T>> couples;
    std::vector<CouplingData<T>> couplings;
    std::vector<CouplingEndData<T>> coupling_ends;
    std::vector<TendonData<T>> tendons;
    Mask<T> measured{};               // lanes whose tendons have their lengths and pulls before the step is prepared
    std::vector<Pull<T>> pulls;       // of the places of all tendons, and of strings that follow
    std::vector<Pull<T>> leader_pulls, row_pulls;  // in the places of strings that follow: of their leaders, and of their rows
    std::vector<T> residual;          // rows of the equations, in the places of w; cones.hpp has the complementarity rows
    std::vector<T> values;            // the condensed matrix
    T inverse_timestep{};
    double depenetration_speed = 0.0; // as in Options
    double kappa = 0.0;               // as in Options, for far points
    bool overlaps = false;            // whether a law of overlap acts on some contact in this step
    bool has_armature = false;
    bool columns = true;              // whether the impulses of joints on their bodies are wanted as columns of the matrix
    bool solves = true;  // whether a step is solved, and not just differentiated: then momentum and effective masses are wanted

    explicit Problem(const MechanismTable &m)
        : mechanism(m), parameters(m.num_parameters), z(state_size * m.num_bodies), u(m.num_inputs), wrench(6 * m.num_bodies),
          bodies(m.num_bodies + 1), joints(m.num_joints), contacts(m.num_contacts), laws(m.num_contacts), free(m.num_free_data),
          curves(m.curved ? CurveData<T>::size * m.num_joints : 0), joint_cones(m.num_joint_cones), pairs(m.num_pairs),
          couples(m.num_couples), couplings(m.num_couplings), coupling_ends(m.num_coupling_ends), tendons(m.num_tendons),
          pulls(m.num_tendon_bodies), leader_pulls(m.num_strings ? m.num_tendon_bodies : 0), row_pulls(leader_pulls),
          residual(m.num_unknowns), values(m.schedule.num_values) {
        BodyPose<T> origin{};
        origin.q.w = broadcast<T>(1.0);
        origin.R = rotation_matrix(origin.q);
        BodyData<T> &world = bodies[m.num_bodies];
        world = BodyData<T>{};
        world.pose = world.next = world.incoming = origin;
        world.increment.w = world.arrival.w = broadcast<T>(1.0);
        has_armature = std::any_of(m.joints.begin(), m.joints.end(), [](const JointTable &joint) { return joint.armature >= 0; });
    }

    // Whether trees take rates from turns of bodies, as a step does and a derivative does not.
    bool by_turns() const { return solves && !columns; }

    TD_INLINE T timestep() const { return parameters[parameter::timestep]; }
    TD_INLINE const T *body_parameters(int i) const { return &parameters[parameter::bodies + parameter::body_size * i]; }

    // Poses of the bodies and the given part of their momentum.
    void prepare_bodies() {
        const T h = timestep();
        inverse_timestep = inverse_of(h);
        const Vec3<T> gravity = load3(&parameters[parameter::gravity]);
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *state = &z[state_size * i], *force = &wrench[6 * i], *p = body_parameters(i);
            BodyData<T> &body = bodies[i];
            const T mass = p[parameter::mass];
            const Mat3<T> inertia = load33(p + parameter::inertia);
            const Quat<T> q = load4(state + 6);
            body.q_norm = root(q.w * q.w + dot(q.v, q.v));
            const T inverse = inverse_of(body.q_norm);
            body.pose.x = load3(state);
            body.pose.q = {inverse * q.w, inverse * q.v};
            body.pose.R = rotation_matrix(body.pose.q);
            const Vec3<T> v = load3(state + 3), omega = load3(state + 10);
            if (has_armature && !by_turns()) body.incoming = pose_before(body.pose, h, v, omega);
            if (!solves) continue;
            const Vec3<T> spin = inertia * omega;
            const T scale = root(1.0 - 0.25 * h * h * dot(omega, omega));
            if (has_armature) body.arrival = {scale, body.pose.R * ((0.5 * h) * omega)};
            body.linear = mass * v + h * (mass * gravity + load3(force));
            body.angular = scale * spin - (0.5 * h) * cross(omega, spin) + h * load3(force + 3);
            if (mechanism.num_joint_cones) body.inverse_inertia = symmetric_inverse(inertia);
        }
    }

    // M of a body.
    TD_INLINE void linearize_turn(BodyData<T> &body) const {
        const T h = timestep(), &c = body.increment.w, hc = h * c, hi = h * inverse_of(c);
        const Vec3<T> &a = body.increment.v;
        body.M = {{hc + hi * a.x * a.x, hi * a.x * a.y + h * a.z, hi * a.x * a.z - h * a.y, hi * a.y * a.x - h * a.z, hc + hi * a.y * a.y,
                   hi * a.y * a.z + h * a.x, hi * a.z * a.x + h * a.y, hi * a.z * a.y - h * a.x, hc + hi * a.z * a.z}};
    }

    // The next pose of a body at w. The angular momentum J ω √(1 − (h/2)²|ω|²) is largest at (h/2)|ω| = 1/√2. Faster velocities solve the
    // equations, too, but on another branch than the motion, so they count as not a number (StepProblem.residual).
    TD_INLINE void place_body(int i, const T *w) {
        const T h = timestep();
        BodyData<T> &body = bodies[i];
        const Vec3<T> a = (0.5 * h) * load3(w + 6 * i + 3);
        const T square = dot(a, a);
        body.increment.w =
            root(select(square > broadcast<T>(constant::largest_sine * constant::largest_sine), broadcast<T>(-1.0), 1.0 - square));
        body.increment.v = a;
        body.next.x = body.pose.x + h * load3(w + 6 * i);
        body.next.q = body.pose.q * body.increment;
    }

    template <bool derived>
    void linearize_body(int i, const T *w) {
        const T h = timestep();
        const T *p = body_parameters(i);
        BodyData<T> &body = bodies[i];
        const T mass = p[parameter::mass];
        const Mat3<T> J = load33(p + parameter::inertia);
        const Vec3<T> v = load3(w + 6 * i), omega = load3(w + 6 * i + 3);
        place_body(i, w);
        const Vec3<T> &a = body.increment.v;
        const T &c = body.increment.w;
        body.next.R = rotation_matrix(body.next.q);
        const Vec3<T> spin = J * omega;
        store3(&residual[6 * i], mass * v - body.linear);
        store3(&residual[6 * i + 3], c * spin + cross(a, spin) - body.angular);
        if constexpr (!derived) return;
        linearize_turn(body);
        const T inverse = inverse_of(c);
        T *D = &values[mechanism.bodies[i].diagonal];
        for (int k = 0; k < 36; ++k) D[k] = T{};
        for (int k = 0; k < 3; ++k) D[7 * k] = mass;
        // d/dω (c Jω + a × Jω) = c J − (h/2) Jω aᵀ/c + [a]× J − (h/2) [Jω]×
        for (int k = 0; k < 3; ++k) {
            const Vec3<T> column = c * J.column(k) + cross(a, J.column(k)) - ((0.5 * h) * inverse * a[k]) * spin;
            D[21 + k] = column.x;
            D[27 + k] = column.y;
            D[33 + k] = column.z;
        }
        const Vec3<T> half = (0.5 * h) * spin;
        add_skew(D + 21, 6, -half);
    }

    TD_INLINE Relative<T> relative(const JointTable &joint, const BodyPose<T> &parent, const BodyPose<T> &child,
                                   const Quat<T> &offset) const {
        const T *p = &parameters[joint.parameters];
        Relative<T> r;
        r.y = child.x + child.R * load3(p + parameter::child_anchor) - parent.x;
        r.y_parent = transposed_times(parent.R, r.y);
        r.p = conjugate(parent.q * offset) * child.q;
        return r;
    }

    // d, in the joint frame
    TD_INLINE Vec3<T> displacement(const JointTable &joint, const JointData<T> &data, const Relative<T> &r) const {
        const T *p = &parameters[joint.parameters];
        return transposed_times(data.offset, r.y_parent - load3(p + parameter::parent_anchor));
    }

    // Block of the matrix: row body i, column body j of a pair (0: the body, 1: the other).
    TD_INLINE int32_t pair_block(const ContactTable &contact, int i, int j) const {
        const PairTable &pair = mechanism.pairs[contact.pair];
        return i == j ? mechanism.bodies[i ? pair.other : contact.body].diagonal : i ? pair.other_body : pair.body_other;
    }

    // Dampers along the free directions, with h times the stiffness of implicit springs and servos where the joint has them.
    TD_INLINE const T *damping(const JointTable &joint, const JointData<T> &data) const {
        return joint.stiffness < 0 ? &parameters[joint.parameters + joint.damper()] : data.damping;
    }

    // The data of the curves of a joint that has them.
    TD_INLINE CurveData<T> curve(const JointTable &joint) {
        T *first = &curves[(&joint - mechanism.joints.data()) * CurveData<T>::size];
        return {first, first + 4, first + 8, first + 12};
    }
    TD_INLINE const CurveData<T> curve(const JointTable &joint) const { return const_cast<Problem *>(this)->curve(joint); }

    // The axis of the child about which a friction acts, in joints with three free rotations (JointFriction); −1: along a free direction.
    TD_INLINE int own_axis(const JointConeTable &cone) const {
        const JointTable &joint = mechanism.joints[cone.joint];
        return cone.kind == JointConeTable::friction && joint.free_r() == 3 ? std::max(int(cone.coordinate) - joint.free_t(), -1) : -1;
    }
    // Calls f(row of the joint, weight) for the rows in which the impulse of a cone acts.
    template <class F>
    TD_INLINE void each_row(const JointConeTable &cone, const F &f) const {
        const int axis = own_axis(cone);
        if (axis < 0) return f(int(cone.row), broadcast<T>(1.0));
        const JointTable &joint = mechanism.joints[cone.joint];
        for (int j = 0; j < 3; ++j) f(joint.held() + joint.free_t() + j, free[joint.free_data].own_axis[axis][j]);
    }

    // The rate of a friction or drive; the derivative by the twists of the coordinate or rate on which a cone acts; its effective mass.
    TD_INLINE const T &cone_rate(const JointConeTable &cone) const {
        const FreeData<T> &data = free[mechanism.joints[cone.joint].free_data];
        const int axis = own_axis(cone);
        return axis < 0 ? data.rate[cone.coordinate] : data.own_rate[axis];
    }
    TD_INLINE const TwistRow<T> &cone_row(const JointConeTable &cone) const {
        const FreeData<T> &data = free[mechanism.joints[cone.joint].free_data];
        const int axis = own_axis(cone);
        if (axis >= 0) return data.own_row[axis];
        return cone.on_rate() ? data.rate_row[cone.coordinate] : data.coordinate_row[cone.coordinate];
    }
    TD_INLINE T cone_mass(const JointConeTable &cone) const {
        const JointTable &joint = mechanism.joints[cone.joint];
        if (cone.kind == JointConeTable::drive) return joint_cones[&cone - mechanism.joint_cones.data()].drive.mass;
        const int extra = cone.row - joint.held() - joint.free();
        return extra < 0 ? free[joint.free_data].mass[cone.coordinate] : free[joint.free_data].limit_mass[extra];
    }
};

// Direction k of the joint frame: first the held directions, then the free ones.
template <class T>
TD_INLINE Vec3<T> joint_direction(const Problem<T> &problem, const JointTable &joint, int k, bool &translation) {
    const bool is_free = k >= joint.held();
    const int i = is_free ? k - joint.held() : k, split = is_free ? joint.free_t() : joint.held_t;
    translation = i < split;
    const int row = translation ? (is_free ? joint.held_t : 0) + i : (is_free ? joint.held_r : 0) + i - split;
    return load3(&problem.parameters[joint.parameters] + (translation ? parameter::translations : parameter::rotations) + 3 * row);
}

// The impulse of a unit multiplier along a direction of the joint frame, at the current configuration: a force on the child, whose opposite
// acts on the parent, and torques in the body frames.
template <class T>
struct JointWrench {
    Vec3<T> force, on_child, on_parent;
};
template <class T>
TD_INLINE JointWrench<T> joint_wrench(const Problem<T> &problem, const JointTable &joint, const JointData<T> &data, bool translation,
                                      const Vec3<T> &direction) {
    const Vec3<T> in_parent = data.offset * direction, in_world = problem.bodies[joint.parent].pose.R * in_parent;
    const Vec3<T> in_child = transposed_times(problem.bodies[joint.child].pose.R, in_world);
    if (!translation) return {Vec3<T>{}, in_child, -in_parent};
    const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
    return {in_world, cross(anchor, in_child), cross(in_parent, data.now.y_parent)};
}

// The product from which an attempt starts in a lane: `level`, or less for a tiny weight, and at least κ (solver/start_level.py).
template <class T>
double start_level(const Problem<T> &problem, int lane, double level, double kappa) {
    if (!problem.mechanism.num_cones) return std::max(level, kappa);  // nothing has a product
    double mass = 0.0;
    for (int i = 0; i < problem.mechanism.num_bodies; ++i) mass += get(problem.body_parameters(i)[parameter::mass], lane);
    const T *gravity = &problem.parameters[parameter::gravity];
    const double x = get(gravity[0], lane), y = get(gravity[1], lane), z = get(gravity[2], lane);
    const double weight = mass * std::sqrt(x * x + y * y + z * z) * get(problem.timestep(), lane);
    const double scale = weight > 0.0 ? std::min(weight / constant::least_weight, 1.0) : 1.0;
    return std::max(scale * level, kappa);
}

// The same for attempts on the path: less where near contacts act, whose impulses fade with the gap (solver/start_level.py).
template <class T>
double fading_level(const Problem<T> &problem, int lane, double level, double kappa) {
    const MechanismTable &m = problem.mechanism;
    level = start_level(problem, lane, level, kappa);
    const bool near = std::any_of(m.pairs.begin(), m.pairs.end(), [&](const PairTable &pair) {
        const T *slot = &problem.parameters[pair.shape_a];
        return pair.cores[0] && get(slot[0], lane) >= 0.0;
    });
    if (!near) return level;
    double mass = 0.0, fastest = 0.0;
    for (int i = 0; i < m.num_bodies; ++i) {
        mass += get(problem.body_parameters(i)[parameter::mass], lane);
        double square = 0.0;
        for (int k = 3; k < 6; ++k) square += std::pow(get(problem.z[state_size * i + k], lane), 2);
        fastest = std::max(fastest, square);
    }
    const double h = get(problem.timestep(), lane), gap = 0.5 * constant::near_terms::reach + h * std::sqrt(fastest);
    return std::min(level, std::max(mass / m.num_bodies * gap * gap / h, kappa));
}

// The other body of a contact, or the world.
inline int other_body(const MechanismTable &m, const ContactTable &contact) {
    return contact.pair < 0 ? m.num_bodies : m.pairs[contact.pair].other;
}

}  // namespace torchdojo
