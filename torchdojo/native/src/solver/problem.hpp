// The equations of one step and their derivatives by hand (the same equations as dynamics/residual.py, which is the specification).
//
// Names: x, R, q pose; v, ω velocity; + the next configuration; M = dφ⁺/dω⁺ where φ⁺ is the body-frame rotation vector of the next
// orientation. With a = (h/2) ω⁺ and c = √(1 − |a|²), the next orientation is q ⊗ (c, a), and
//     M = h (c I + a aᵀ/c − [a]×).
// Joints: Q = R_a R_off is the joint frame, y = x_b + R_b p_b − x_a, d = Qᵀ y − R_offᵀ p_a, p = q_off⁻¹ q_a⁻¹ q_b.
#pragma once

#include <algorithm>

#include "abi/mechanism.hpp"
#include "base/math.hpp"

namespace torchdojo {

template <class T>
struct BodyPose {
    Vec3<T> x;
    Quat<T> q;
    Mat3<T> R;
};

template <class T>
struct BodyData {
    BodyPose<T> pose, next;
    T q_norm;                         // of the quaternion as given
    Vec3<T> linear, angular;          // known part of the balance of momentum, impulses of springs and inputs included
    Quat<T> increment;
    Mat3<T> M;

    // The current pose moved back by the next velocity, against which dampers measure.
    TD_INLINE BodyPose<T> one_step_back() const {
        const Quat<T> q = orientation_back();
        return {2.0 * pose.x - next.x, q, rotation_matrix(q)};
    }
    TD_INLINE Quat<T> orientation_back() const { return pose.q * conjugate(increment); }
};

// A displacement and a relative orientation seen from the joint frame.
template <class T>
struct Relative {
    Vec3<T> y;                        // child anchor from the parent's centre of mass, world frame
    Vec3<T> y_parent;                 // the same in the parent's frame
    Quat<T> p;
};

template <class T>
struct JointData {
    Mat3<T> offset;                   // R_off
    Quat<T> offset_quaternion;
    Relative<T> now, next, before;    // before: where a damper acts; its displacement where that acts along translations
    T wrench_parent[36], wrench_child[36];  // impulses on the bodies per multiplier, 6 x 6, constant during the step
    T free_force[6];                  // of springs and inputs on the free directions [N·s, N·m·s]
    T impulse[6];                     // of dampers, armature, friction and limits on the free directions
    RotationVector<T> angle, turn;    // of p (springs), and from p one step back to p (dampers)
};

// Derivative with respect to the twists (v, ω) of child and parent; that by the parent's v is minus the child's.
template <class T>
struct TwistRow {
    Vec3<T> linear, child, parent;

    TD_INLINE T times(const T *of_child, const T *of_parent) const {
        T sum = dot(linear, load3(of_child)) + dot(child, load3(of_child + 3));
        if (of_parent) sum += dot(parent, load3(of_parent + 3)) - dot(linear, load3(of_parent));
        return sum;
    }
};
template <class T>
TD_INLINE TwistRow<T> operator+(const TwistRow<T> &a, const TwistRow<T> &b) {
    return {a.linear + b.linear, a.child + b.child, a.parent + b.parent};
}
template <class T>
TD_INLINE TwistRow<T> operator*(const T &s, const TwistRow<T> &a) {
    return {s * a.linear, s * a.child, s * a.parent};
}

// Of joints with armature, limits or friction: see free.hpp.
template <class T>
struct FreeData {
    T rate[6], coordinate[6];         // ċ⁺ and c⁺
    TwistRow<T> rate_row[6], coordinate_row[6];
    RotationVector<T> turn, now, next;  // of p⁺ p⁻¹; of p and p⁺ where components of the rotation vector are limited
    T angle;                          // of a single limited rotation at the current configuration
    T incoming_rate[6];               // of the step before
    BodyPose<T> incoming_parent, incoming_child;
    Relative<T> incoming;             // before that step
    RotationVector<T> incoming_turn;
    Vec3<T> limit_child[3], limit_parent[3];  // torques of limits on components of the rotation vector
    T extra_impulse[3];               // and their impulses
    T mass[6], limit_mass[3];         // effective masses of the directions
};

// Of contacts between bodies or shapes: see pair.hpp. Derivatives are those by the next poses (x, φ of the body, then of the other).
template <class T>
struct PairData {
    Vec3<T> n, t1, t2, force, lever[2];
    T wrench[2][6][12];               // impulses on both bodies
    T rows[3][12];                    // gap and slip
    T other_wrench[18], other_rows[18];  // as `wrench` and `rows` of ContactData
    Vec3<T> couple;                   // of torsional and rolling friction, on the body
};

template <class T>
struct JointConeData {
    T inverse[2];                     // 1/s of a limit, 1/p and 1/q of friction
    T stiffness;                      // γ/s or k
    T rho[2], impulse[2], slack[2];   // right-hand side of the products, and direction

    TD_INLINE T along(const JointConeTable &cone) const {  // of the impulse in its row
        return cone.kind == JointConeTable::friction ? 0.5 * (impulse[0] - impulse[1]) : cone.sign() * impulse[0];
    }
};

// Friction, condensed: see cone.hpp.
template <class T>
struct FrictionData {
    T coupling[2], compliance[4], cone_coupling[2];
    T eta_slip[2];                    // a and b of the row of δη₁
    Vec3<T> eta_xi;

    // That of `other` in the lanes of `mask`, but for the coupling.
    TD_INLINE void take(const Mask<T> &mask, const FrictionData &other) {
        auto put = [&](T &own, const T &value) { own = select(mask, value, own); };
        for (int i = 0; i < 4; ++i) put(compliance[i], other.compliance[i]);
        for (int i = 0; i < 2; ++i) put(cone_coupling[i], other.cone_coupling[i]), put(eta_slip[i], other.eta_slip[i]);
        for (int i = 0; i < 3; ++i) put(eta_xi[i], other.eta_xi[i]);
    }
};

template <class T>
struct ContactData : FrictionData<T> {
    Vec3<T> n, t1, t2;                // contact frame in the next body frame
    Vec3<T> lever;                    // l = c − r n in the next body frame
    T wrench[18];                     // impulses on the body per (γ, ξ2, ξ3), 6 x 3
    T rows[18];                       // derivative of (φ, slip) with respect to the body's twist, 3 x 6
    T stiffness;                      // K of the condensed contact, with the numbers of its friction: see cone.hpp
    T beta[2];                        // tangential impulse
};

// Gradient of μ_T·d + μ_R·vec(p) with respect to (x_b, φ_b, φ_a); that for x_a is −x_b's. At any configuration.
template <class T, class R>
struct RowGradient {
    Vec3<Product<T, R>> x_child, phi_child, phi_parent;
};

template <class T, class R>
TD_INLINE RowGradient<T, R> translation_gradient(const BodyPose<T> &parent, const BodyPose<T> &child, const Mat3<T> &offset,
                                                 const Relative<T> &relative, const Vec3<T> &child_anchor, const Vec3<R> &mu) {
    const auto in_parent = offset * mu;
    const auto world = parent.R * in_parent;
    return {world, cross(child_anchor, transposed_times(child.R, world)), cross(in_parent, relative.y_parent)};
}

template <class T, class R>
TD_INLINE void add_rotation_gradient(RowGradient<T, R> &g, const Mat3<T> &offset, const Quat<T> &p, const Vec3<R> &mu) {
    const auto turned = cross(mu, p.v);
    const auto straight = p.w * mu;
    g.phi_child = g.phi_child + 0.5 * (straight + turned);
    g.phi_parent = g.phi_parent - offset * (0.5 * (straight - turned));
}

// Gradient of f·(rotation vector of p⁺ p⁻¹) by the next poses, and its opposite by the current ones but for the parent (see adjoint.hpp).
template <class T>
TD_INLINE RowGradient<T, T> turn_gradient(const Mat3<T> &offset, const Quat<T> &now, const RotationVector<T> &turn, const Vec3<T> &f) {
    return {Vec3<T>{}, transposed_times(rotation_matrix(now), left_jacobian_inverse(turn, f)), -(offset * right_jacobian_inverse(turn, f))};
}

// The angle about f of a relative orientation p: of those that differ by full turns the one next to `near`.
template <class T>
T angle_near(const Quat<T> &p, const Vec3<T> &f, const T &near) {
    constexpr double turn = 6.28318530717958647692;
    const T s = dot(f, p.v), sign = select(p.w < T{}, broadcast<T>(-1.0), broadcast<T>(1.0)), sine = sign * s;
    const T half = first_quadrant_angle(abs(sine), sign * p.w), angle = 2.0 * select(sine < T{}, -half, half);
    return angle + turn * each_lane<T>([](double x) { return std::nearbyint(x); }, (near - angle) / turn);
}

// Gradient of a rotational coordinate: of that angle (2 atan2(f·v, w)) for one free rotation, of f·(rotation vector) for several.
template <class T>
TD_INLINE RowGradient<T, T> angle_gradient(const JointTable &joint, const Mat3<T> &offset, const Quat<T> &p, const RotationVector<T> &angle,
                                           const Vec3<T> &f) {
    if (joint.free_r() > 1) return {Vec3<T>{}, left_jacobian_inverse(angle, f), -(offset * right_jacobian_inverse(angle, f))};
    const T s = dot(f, p.v), inverse = 1.0 / (p.w * p.w + s * s);
    const Vec3<T> straight = p.w * f, turned = cross(f, p.v);
    return {Vec3<T>{}, inverse * (p.w * (straight + turned) + s * p.v), -(offset * (inverse * (p.w * (straight - turned) + s * p.v)))};
}

template <class T>
struct LawData;
template <class T>
struct CoupleData;
template <class T>
struct CouplingData;
template <class T>
struct Problem;
template <class T>
void prepare_free(Problem<T> &, const JointTable &, const JointData<T> &, FreeData<T> &);
template <bool derived, class T, class Store>
void linearize_free(Problem<T> &, const JointTable &, JointData<T> &, const T *, const Store &);
template <class T>
void condense_free(Problem<T> &, const JointTable &);
template <class T>
void linearize_pair(Problem<T> &, const ContactTable &, ContactData<T> &, const T *);
template <class T>
void condense_pair(Problem<T> &, const ContactTable &, const ContactData<T> &);
template <class T>
void prepare_law(Problem<T> &, const ContactTable &);
template <class T>
void condense_couple(Problem<T> &, const CoupleTable &, const CoupleData<T> &);
template <class T>
void prepare_coupling(Problem<T> &, const CouplingTable &, CouplingData<T> &);
template <class T>
void linearize_coupling(Problem<T> &, const CouplingTable &, CouplingData<T> &, const T *);

template <class T>
struct Problem {
    const MechanismTable &mechanism;
    std::vector<T> parameters, z, u, wrench;
    std::vector<BodyData<T>> bodies;  // and the world behind them
    std::vector<JointData<T>> joints;
    std::vector<ContactData<T>> contacts;
    std::vector<LawData<T>> laws;
    std::vector<FreeData<T>> free;
    std::vector<JointConeData<T>> joint_cones;
    std::vector<PairData<T>> pairs;
    std::vector<CoupleData<T>> couples;
    std::vector<CouplingData<T>> couplings;
    std::vector<T> residual;          // rows of the equations, in the places of w; complementarity rows are left to cone.hpp
    std::vector<T> values;            // the condensed matrix

    explicit Problem(const MechanismTable &m)
        : mechanism(m), parameters(m.num_parameters), z(state_size * m.num_bodies), u(m.num_inputs), wrench(6 * m.num_bodies),
          bodies(m.num_bodies + 1), joints(m.num_joints), contacts(m.num_contacts), laws(m.num_laws), free(m.num_free_data),
          joint_cones(m.num_joint_cones), pairs(m.num_pairs), couples(m.num_couples), couplings(m.num_couplings),
          residual(m.num_unknowns), values(m.schedule.num_values) {
        BodyPose<T> origin{};
        origin.q.w = broadcast<T>(1.0);
        origin.R = rotation_matrix(origin.q);
        BodyData<T> &world = bodies[m.num_bodies];
        world = BodyData<T>{};
        world.pose = world.next = origin;
        world.increment.w = broadcast<T>(1.0);
    }

    TD_INLINE T timestep() const { return parameters[parameter::timestep]; }
    TD_INLINE const T *body_parameters(int i) const { return &parameters[parameter::bodies + parameter::body_size * i]; }

    // What stays the same during the step.
    void prepare() {
        const T h = timestep();
        const Vec3<T> gravity = load3(&parameters[parameter::gravity]);
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *state = &z[state_size * i], *force = &wrench[6 * i], *p = body_parameters(i);
            BodyData<T> &body = bodies[i];
            const T mass = p[parameter::mass];
            const Mat3<T> inertia = load33(p + parameter::inertia);
            const Quat<T> q = load4(state + 6);
            body.q_norm = sqrt(q.w * q.w + dot(q.v, q.v));
            const T inverse = 1.0 / body.q_norm;
            body.pose.x = load3(state);
            body.pose.q = {inverse * q.w, inverse * q.v};
            body.pose.R = rotation_matrix(body.pose.q);
            const Vec3<T> v = load3(state + 3), omega = load3(state + 10);
            const Vec3<T> spin = inertia * omega;
            const T scale = sqrt(1.0 - 0.25 * h * h * dot(omega, omega));
            body.linear = mass * v + h * (mass * gravity + load3(force));
            body.angular = scale * spin - (0.5 * h) * cross(omega, spin) + h * load3(force + 3);
        }
        for (int j = 0; j < mechanism.num_joints; ++j) prepare_joint(mechanism.joints[j], joints[j]);
        for (const ContactTable &contact : mechanism.contacts)
            if (contact.law >= 0) prepare_law(*this, contact);
        for (int c = 0; c < mechanism.num_couplings; ++c) prepare_coupling(*this, mechanism.couplings[c], couplings[c]);
    }

    // Residual and condensed matrix at w, with K of each contact as cone.hpp has set it; or without B K C, which `condense` adds later.
    // Not `derived`: the residual alone. The matrix is of no use then: bodies, joints and contacts with half-spaces leave it as it is, rarer
    // elements add to that.
    template <bool condensed = true, bool derived = true>
    void linearize(const T *w) {
        if constexpr (derived)
            for (const auto &[offset, count] : mechanism.fill) std::fill_n(&values[offset], count, T{});
        for (int i = 0; i < mechanism.num_bodies; ++i) linearize_body<derived>(i, w);
        for (int j = 0; j < mechanism.num_joints; ++j) {
            linearize_joint<derived>(mechanism.joints[j], joints[j], w);
            if constexpr (condensed) condense_free(*this, mechanism.joints[j]);
        }
        for (int c = 0; c < mechanism.num_couplings; ++c) linearize_coupling(*this, mechanism.couplings[c], couplings[c], w);
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            if (mechanism.contacts[c].pair < 0) linearize_contact<derived>(mechanism.contacts[c], contacts[c], w);
            else linearize_pair(*this, mechanism.contacts[c], contacts[c], w);
            if constexpr (condensed) condense(mechanism.contacts[c], contacts[c]);
        }
        if constexpr (condensed) condense_couples();
    }
    void evaluate(const T *w) { linearize<false, false>(w); }

    void condense() {
        for (const JointTable &joint : mechanism.joints) condense_free(*this, joint);
        for (int c = 0; c < mechanism.num_contacts; ++c) condense(mechanism.contacts[c], contacts[c]);
        condense_couples();
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

    // Residuals of friction in a cone of a given height, from the slip along both tangents.
    TD_INLINE void friction_rows(const ContactTable &friction, const T &height, const T *impulse, const T *slack, const T &s1, const T &s2,
                                 T *row) const {
        if (friction.is_pyramid()) {
            row[0] = height - slack[0];
            for (int i = 0; i < friction.facets; ++i) {
                row[0] -= impulse[1 + i];
                row[1 + i] = friction.direction_x(i) * s1 + friction.direction_y(i) * s2 + impulse[0] - slack[1 + i];
            }
        } else if (friction.friction) {
            row[0] = impulse[0] - height;
            row[1] = s1 - slack[1], row[2] = s2 - slack[2];
        }
    }

    // K C of a condensed contact.
    TD_INLINE void stiffen(const ContactTable &contact, const ContactData<T> &data, const T *C, T *KC) const {
        for (int c = 0; c < 6; ++c) {
            KC[c] = data.stiffness * C[c];
            if (contact.friction)
                for (int i = 0; i < 2; ++i)
                    KC[6 * (1 + i) + c] = data.coupling[i] * C[c] + data.compliance[2 * i] * C[6 + c] + data.compliance[2 * i + 1] * C[12 + c];
        }
    }

    // What the pair of a limit or a friction depends on, by the twists, and its effective mass.
    TD_INLINE const TwistRow<T> &cone_row(const JointConeTable &cone) const {
        const FreeData<T> &data = free[mechanism.joints[cone.joint].free_data];
        return cone.kind == JointConeTable::friction ? data.rate_row[cone.coordinate] : data.coordinate_row[cone.coordinate];
    }
    TD_INLINE T cone_mass(const JointConeTable &cone) const {
        const JointTable &joint = mechanism.joints[cone.joint];
        const int extra = cone.row - joint.held() - joint.free();
        return extra < 0 ? free[joint.free_data].mass[cone.coordinate] : free[joint.free_data].limit_mass[extra];
    }

private:
    // Impulses on child and parent of one direction of the joint frame, at the current configuration.
    TD_INLINE void wrench_column(const JointTable &joint, JointData<T> &data, int column, bool translation, const Vec3<T> &direction) {
        const BodyPose<T> &parent = bodies[joint.parent].pose, &child = bodies[joint.child].pose;
        const T *p = &parameters[joint.parameters];
        T *on_child = data.wrench_child + column, *on_parent = data.wrench_parent + column;
        const Vec3<T> in_parent = data.offset * direction;
        const Vec3<T> in_child = transposed_times(child.R, parent.R * in_parent);
        const bool world = joint.parent == mechanism.num_bodies;  // (nothing acts on it: its columns stay zero)
        const Vec3<T> force = translation ? parent.R * in_parent : Vec3<T>{};
        const Vec3<T> torque = translation ? cross(load3(p + parameter::child_anchor), in_child) : in_child;
        for (int r = 0; r < 3; ++r) on_child[r * 6] = force[r], on_child[(3 + r) * 6] = torque[r];
        if (world) return;
        const Vec3<T> torque_parent = translation ? cross(in_parent, data.now.y_parent) : -in_parent;
        for (int r = 0; r < 3; ++r) on_parent[r * 6] = -force[r], on_parent[(3 + r) * 6] = torque_parent[r];
    }

    void prepare_joint(const JointTable &joint, JointData<T> &data) {
        const T h = timestep();
        const T *p = &parameters[joint.parameters];
        const BodyPose<T> &parent = bodies[joint.parent].pose, &child = bodies[joint.child].pose;
        data.offset_quaternion = load4(p + parameter::orientation);
        data.offset = rotation_matrix(data.offset_quaternion);
        data.now = relative(joint, parent, child, data.offset_quaternion);
        const Quat<T> &rel = data.now.p;
        int column = 0;
        for (int i = 0; i < joint.held_t; ++i) wrench_column(joint, data, column++, true, load3(p + parameter::translations + 3 * i));
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> c = load3(p + parameter::rotations + 3 * i);
            wrench_column(joint, data, column++, false, 0.5 * (rel.w * c + cross(rel.v, c)));
        }
        if (!joint.has_spring && !joint.has_damper && joint.input < 0 && joint.free_data < 0) return;
        for (int i = joint.held_t; i < 3; ++i) wrench_column(joint, data, column++, true, load3(p + parameter::translations + 3 * i));
        for (int i = joint.held_r; i < 3; ++i) wrench_column(joint, data, column++, false, load3(p + parameter::rotations + 3 * i));

        const int free = joint.free();
        const T *spring = p + joint.spring(), *rest = p + joint.rest();
        for (int i = 0; i < free; ++i) data.free_force[i] = joint.input < 0 ? T{} : h * u[joint.input + i];
        if (joint.has_spring) {
            const Vec3<T> d = displacement(joint, data, data.now);
            data.angle = rotation_vector(rel);
            for (int i = 0; i < free; ++i) {
                const bool translation = i < joint.free_t();
                const int row = translation ? joint.held_t + i : joint.held_r + i - joint.free_t();
                const T coordinate = translation ? dot(load3(p + parameter::translations + 3 * row), d)
                                                 : dot(load3(p + parameter::rotations + 3 * row), data.angle.theta);
                data.free_force[i] += h * spring[i] * (rest[i] - coordinate);
            }
        }
        for (int i = 0; i < free; ++i) add_impulse(joint, data, joint.held() + i, data.free_force[i]);
        if (joint.free_data >= 0) prepare_free(*this, joint, data, this->free[joint.free_data]);
    }

    // To the known part of the balance: + impulse on child and parent.
    TD_INLINE void add_impulse(const JointTable &joint, const JointData<T> &data, int column, const T &impulse) {
        auto add = [&](BodyData<T> &body, const T *b) {
            body.linear = body.linear + impulse * Vec3<T>{b[0], b[6], b[12]};
            body.angular = body.angular + impulse * Vec3<T>{b[18], b[24], b[30]};
        };
        add(bodies[joint.child], data.wrench_child + column);
        if (joint.parent < mechanism.num_bodies) add(bodies[joint.parent], data.wrench_parent + column);
    }

    template <bool derived>
    void linearize_body(int i, const T *w) {
        const T h = timestep();
        const T *p = body_parameters(i);
        BodyData<T> &body = bodies[i];
        const T mass = p[parameter::mass];
        const Mat3<T> J = load33(p + parameter::inertia);
        const Vec3<T> v = load3(w + 6 * i), omega = load3(w + 6 * i + 3), a = (0.5 * h) * omega;
        // The angular momentum J ω √(1 − (h/2)²|ω|²) is largest at (h/2)|ω| = 1/√2. Faster velocities solve the equations, too, but on a
        // branch that is not the motion's: they count as not a number (StepProblem.residual).
        const T square = dot(a, a);
        const T c = sqrt(select(square > broadcast<T>(constant::largest_sine * constant::largest_sine), broadcast<T>(-1.0), 1.0 - square));
        body.increment = {c, a};
        body.next.x = body.pose.x + h * v;
        body.next.q = body.pose.q * body.increment;
        body.next.R = rotation_matrix(body.next.q);
        const Vec3<T> spin = J * omega;
        store3(&residual[6 * i], mass * v - body.linear);
        store3(&residual[6 * i + 3], c * spin + cross(a, spin) - body.angular);
        if constexpr (!derived) return;
        const T inverse = 1.0 / c, hc = h * c, hi = h * inverse;
        body.M = {{hc + hi * a.x * a.x, hi * a.x * a.y + h * a.z, hi * a.x * a.z - h * a.y, hi * a.y * a.x - h * a.z,
                   hc + hi * a.y * a.y, hi * a.y * a.z + h * a.x, hi * a.z * a.x + h * a.y, hi * a.z * a.y - h * a.x,
                   hc + hi * a.z * a.z}};
        T *D = &values[mechanism.bodies[i].diagonal];
        for (int k = 0; k < 36; ++k) D[k] = T{};
        for (int k = 0; k < 3; ++k) D[7 * k] = mass;
        // d/dω (c Jω + a × Jω) = c J − (h/2) Jω aᵀ/c + [a]× J − (h/2) [Jω]×
        for (int k = 0; k < 3; ++k) {
            const Vec3<T> column = c * J.column(k) + cross(a, J.column(k)) - ((0.5 * h) * inverse * a[k]) * spin;
            D[21 + k] = column.x, D[27 + k] = column.y, D[33 + k] = column.z;
        }
        const Vec3<T> half = (0.5 * h) * spin;
        D[22] += half.z, D[23] -= half.y, D[27] -= half.z, D[29] += half.x, D[33] += half.y, D[34] -= half.x;
    }

    template <bool derived>
    void linearize_joint(const JointTable &joint, JointData<T> &data, const T *w) {
        if (!joint.size) return;
        const T h = timestep();
        const T *p = &parameters[joint.parameters];
        const BodyData<T> &parent = bodies[joint.parent], &child = bodies[joint.child];
        const bool world = joint.parent == mechanism.num_bodies;
        const Vec3<T> anchor = load3(p + parameter::child_anchor);
        const int K = joint.size, held = joint.held();
        data.next = relative(joint, parent.next, child.next, data.offset_quaternion);
        T *D = &values[joint.diagonal], *Cc = &values[joint.joint_child], *Bc = &values[joint.child_joint];
        T *Cp = world ? nullptr : &values[joint.joint_parent], *Bp = world ? nullptr : &values[joint.parent_joint];
        for (int k = 0; derived && k < K * K; ++k) D[k] = T{};
        auto store_row = [&](int row, const Vec3<T> &linear, const Vec3<T> &at_child, const Vec3<T> &at_parent) {
            store3(Cc + 6 * row, linear), store3(Cc + 6 * row + 3, at_child);
            if (!world) store3(Cp + 6 * row, -linear), store3(Cp + 6 * row + 3, at_parent);
        };

        const Vec3<T> d = displacement(joint, data, data.next);
        for (int i = 0; i < joint.held_t; ++i) {
            const Vec3<T> c = load3(p + parameter::translations + 3 * i);
            residual[joint.row + i] = dot(c, d);
            if constexpr (!derived) continue;
            const auto g = translation_gradient(parent.next, child.next, data.offset, data.next, anchor, c);
            store_row(i, h * g.x_child, transposed_times(child.M, g.phi_child), transposed_times(parent.M, g.phi_parent));
        }
        for (int i = 0; i < joint.held_r; ++i) {
            const Vec3<T> c = load3(p + parameter::rotations + 3 * i);
            residual[joint.row + joint.held_t + i] = dot(c, data.next.p.v);
            if constexpr (!derived) continue;
            RowGradient<T, T> g{};
            add_rotation_gradient(g, data.offset, data.next.p, c);
            store_row(joint.held_t + i, Vec3<T>{}, transposed_times(child.M, g.phi_child), transposed_times(parent.M, g.phi_parent));
        }
        if (joint.has_damper || joint.free_data >= 0) linearize_free<derived>(*this, joint, data, w, store_row);

        T impulse[6];
        const int plain = K - joint.extra;
        for (int k = 0; k < plain; ++k) impulse[k] = k < held ? w[joint.row + k] : data.impulse[k - held];
        auto apply = [&](int body, const T *b, T *block) {
            T *rows = &residual[6 * body];
            ldu::with_size(plain, [&](auto size) {  // (in registers)
                constexpr int count = decltype(size)::value <= 6 ? decltype(size)::value : 0;
                for (int r = 0; r < 6; ++r) {
                    T sum{};
#pragma GCC unroll 6
                    for (int k = 0; k < count; ++k) {
                        const T entry = b[r * 6 + k];
                        sum += entry * impulse[k];
                        if constexpr (derived) block[r * K + k] = -entry;
                    }
                    rows[r] -= sum;
                }
            });
            if (!joint.extra) return;
            const FreeData<T> &data = free[joint.free_data];
            for (int e = 0; e < joint.extra; ++e)
                for (int r = 0; r < 3; ++r) {
                    const T torque = (body == joint.child ? data.limit_child : data.limit_parent)[e][r];
                    rows[3 + r] -= torque * data.extra_impulse[e];
                    if constexpr (derived) block[r * K + plain + e] = T{}, block[(3 + r) * K + plain + e] = -torque;
                }
        };
        apply(joint.child, data.wrench_child, Bc);
        if (!world) apply(joint.parent, data.wrench_parent, Bp);
    }

    template <bool derived>
    void linearize_contact(const ContactTable &contact, ContactData<T> &data, const T *w) {
        const T h = timestep();
        const T *p = &parameters[contact.parameters];
        const BodyData<T> &body = bodies[contact.body];
        const Vec3<T> point = load3(p + parameter::point), normal = load3(p + parameter::normal), omega = load3(w + 6 * contact.body + 3);
        const Vec3<T> v = load3(w + 6 * contact.body);
        const T radius = p[parameter::radius];
        const T *impulse = w + contact.impulse, *slack = w + contact.slack;
        T *row = &residual[contact.impulse];
        data.n = transposed_times(body.next.R, normal);
        data.lever = point - radius * data.n;
        T gap = dot(normal, body.next.x) + dot(data.n, point) - p[parameter::offset] - radius;
        if (contact.recovery >= 0 || contact.stiffness >= 0) gap += laws[contact.law].shift + laws[contact.law].softness * impulse[0];

        T *D = &values[mechanism.bodies[contact.body].diagonal], *B = data.wrench, *C = data.rows;
        auto store_column = [&](int column, const Vec3<T> &direction, const Vec3<T> &local) {
            const Vec3<T> torque = cross(data.lever, local);
            for (int r = 0; r < 3; ++r) B[3 * r + column] = direction[r], B[3 * (3 + r) + column] = torque[r];
            return torque;
        };
        store_column(0, normal, data.n);
        if constexpr (derived) store3(C, h * normal), store3(C + 3, transposed_times(body.M, cross(point, data.n)));
        if (contact.restitution >= 0) {
            // Newton's law h n·(u⁺ + e u⁻), where that is less
            const T e = parameters[contact.restitution];
            const Vec3<T> spin = transposed_times(body.next.R, laws[contact.law].spin), turning = omega + e * spin, torque = cross(data.lever, data.n);
            const T speed = dot(normal, v + e * laws[contact.law].incoming) + dot(torque, turning);
            laws[contact.law].bouncing = select_mask(laws[contact.law].bounces, h * speed < gap, Mask<T>{});
            gap = select(laws[contact.law].bouncing, h * speed, gap);
            const Vec3<T> turned = h * (torque + transposed_times(body.M, bounce_gradient(data, turning, e * spin, radius)));
            for (int k = 0; k < 3; ++k) C[3 + k] = select(laws[contact.law].bouncing, turned[k], C[3 + k]);
        }
        row[0] = gap - slack[0];
        Vec3<T> force = impulse[0] * data.n;  // in the next body frame
        if (contact.friction) {
            const Vec3<T> world[2] = {load3(p + parameter::tangents), load3(p + parameter::tangents + 3)};
            const Vec3<T> sweep = cross(omega, data.lever);
            T slip[2];
            data.beta[0] = impulse[2], data.beta[1] = impulse[3];
            if (contact.is_pyramid()) {
                data.beta[0] = data.beta[1] = T{};
                for (int i = 0; i < contact.facets; ++i)
                    data.beta[0] += contact.direction_x(i) * impulse[2 + i], data.beta[1] += contact.direction_y(i) * impulse[2 + i];
            }
            for (int i = 0; i < 2; ++i) {
                const Vec3<T> t = transposed_times(body.next.R, world[i]);
                (i ? data.t2 : data.t1) = t;
                const Vec3<T> moment = store_column(1 + i, world[i], t);
                slip[i] = dot(world[i], v) + dot(moment, omega);
                if constexpr (!derived) continue;
                const Vec3<T> turn = slip_gradient(data, t, omega, sweep, radius);
                store3(C + 6 * (1 + i), world[i]), store3(C + 6 * (1 + i) + 3, moment + transposed_times(body.M, turn));
                force = force + data.beta[i] * t;
            }
            friction_rows(contact, p[parameter::friction] * impulse[0], impulse + 1, slack + 1, slip[0], slip[1], row + 1);
        }
        for (int r = 0; r < 6; ++r) {
            T sum = B[3 * r] * impulse[0];
            if (contact.friction) sum += B[3 * r + 1] * data.beta[0] + B[3 * r + 2] * data.beta[1];
            residual[6 * contact.body + r] -= sum;
        }
        if constexpr (!derived) return;
        // The torque l × R⁺ᵀP turns with the body: its derivative is S M.
        const Mat3<T> S = torque_gradient(data, force, radius), SM = S * body.M;
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) D[21 + 6 * r + c] -= SM.m[3 * r + c];
    }

    void condense_couples() {
        for (int c = 0; c < mechanism.num_couples; ++c) condense_couple(*this, mechanism.couples[c], couples[c]);
    }

    // The condensed cones: B K C.
    TD_INLINE void condense(const ContactTable &contact, const ContactData<T> &data) {
        if (contact.pair >= 0) return condense_pair(*this, contact, data);
        T *__restrict D = &values[mechanism.bodies[contact.body].diagonal];
        const T *__restrict B = data.wrench, *__restrict C = data.rows;
        T KC[18];
        stiffen(contact, data, C, KC);
        if (!contact.friction) {
            for (int r = 0; r < 6; ++r)
                for (int c = 0; c < 6; ++c) D[6 * r + c] += B[3 * r] * KC[c];
            return;
        }
        for (int r = 0; r < 6; ++r) {
            const T normal = B[3 * r], first = B[3 * r + 1], second = B[3 * r + 2];
#pragma GCC unroll 6
            for (int c = 0; c < 6; ++c) {
                T sum = normal * KC[c];
                sum += first * KC[6 + c] + second * KC[12 + c];
                D[6 * r + c] += sum;
            }
        }
    }

public:
    // Derivative of the slip along t (both in the next body frame) with respect to φ⁺: (ω × l) × t − r (t × ω) × n.
    static TD_INLINE Vec3<T> slip_gradient(const ContactData<T> &data, const Vec3<T> &t, const Vec3<T> &omega, const Vec3<T> &sweep,
                                           const T &radius) {
        return cross(sweep, t) - radius * cross(cross(t, omega), data.n);
    }
    // Derivative of n·(w × l) with respect to φ⁺, for w = ω + s of which s is fixed in the world: (w × l) × n + (l × n) × s − r (w − (n·w) n).
    static TD_INLINE Vec3<T> bounce_gradient(const ContactData<T> &data, const Vec3<T> &turning, const Vec3<T> &spin, const T &radius) {
        return cross(cross(turning, data.lever), data.n) + cross(cross(data.lever, data.n), spin) -
               radius * (turning - dot(data.n, turning) * data.n);
    }
    // Derivative of l × P with respect to φ⁺: P lᵀ − (l·P) I + r (n Pᵀ − (n·P) I), all in the next body frame.
    static TD_INLINE Mat3<T> torque_gradient(const ContactData<T> &data, const Vec3<T> &force, const T &radius) {
        const T trace = dot(data.lever, force) + radius * dot(data.n, force);
        Mat3<T> S;
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) {
                const T value = force[r] * data.lever[c] + radius * data.n[r] * force[c];
                S.m[3 * r + c] = r == c ? value - trace : value;
            }
        return S;
    }
};

}  // namespace torchdojo
