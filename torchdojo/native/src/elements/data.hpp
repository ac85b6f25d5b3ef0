// Numbers of each kind of element at one point. The functions of the element fill them, and other functions read them.
#pragma once

#include "base/dual.hpp"
#include "elements/kinematics.hpp"

namespace torchdojo {

template <class T>
struct JointData {
    Mat3<T> offset;                   // R_off
    Quat<T> offset_quaternion;
    Relative<T> now, next, before;    // before: one step back, of dampers that take a mean rate; its displacement only for translations
    T wrench_parent[36], wrench_child[36];  // impulses on the bodies per multiplier, 6 x 6, constant during the step
    T free_force[6];                  // impulses of springs, inputs and middles of drives along the free directions [N·s, N·m·s]
    Vec3<T> pull;                     // impulse of springs along the rotation vector of p, where several rotations are free
    T moved[6];                       // h times the rates of the dampers
    T impulse[6];                     // impulses of dampers, armature, friction, drives and limits along the free directions
    T damping[6];                     // dampers, and h times the stiffness of implicit springs and servos where the joint has them
    T excess[6];                      // derivative of this stiffness by the force, where it is the larger one: see at_most_one_radian
    RotationVector<T> angle, turn;    // rotation vectors of p (springs of several rotations), and of the turn since one step back
};

// Joints with polynomials of springs and dampers (elements/curves.py): see free.hpp.
template <class T>
struct CurveData {
    static constexpr int size = 16;
    T *stretch;                       // c − rest at the current configuration, of four coordinates
    T *slope;                         // P′ at the point w
    T *impulse;                       // of the polynomials
    T *drag;                          // what the polynomials add to the derivative of the impulse by h times the rate, with a minus
};

// Joints with armature, limits or friction: see free.hpp.
template <class T>
struct FreeData {
    T rate[6], coordinate[6];         // ċ⁺ and c⁺
    TwistRow<T> rate_row[6], coordinate_row[6];
    Vec3<T> own_axis[3];              // axes of the child in the joint frame, about which friction acts where three rotations are free
    T own_rate[3];                    // rates about these axes
    TwistRow<T> own_row[3];
    RotationVector<T> turn, now, next;  // rotation vectors of p⁺ p⁻¹; of p and p⁺ where components of the rotation vector are limited
    T angle;                          // angle of a single limited rotation at the current configuration
    bool recovers;                    // whether a limit is violated by more than this step undoes, in some lane
    T incoming_rate[6];               // rate of the step before
    Relative<T> incoming;             // configuration before the step that led here
    RotationVector<T> incoming_turn;
    Vec3<T> limit_child[3], limit_parent[3];  // torques of limits on components of the rotation vector
    T extra_impulse[3];               // impulses of these limits
    T mass[6], limit_mass[3];         // effective masses of the directions
};

template <class T>
struct DriveData {
    T gain;                           // g = kd + h kp
    T excess;                         // derivative of kp by u: see at_most_one_radian
    T compliance;                     // 1/(g h)
    T offset;                         // (u − m)/g, with the middle m of the range
    T mass;
};

template <class T>
struct JointConeData {
    T inverse[2];                     // 1/s of a limit, 1/p and 1/q of friction
    T stiffness;                      // γ/s or k
    T left;                           // violation of a limit that the step leaves, at most zero: see prepare_limits
    T leaves;                         // 1 where it leaves something, else 0
    DriveData<T> drive;
};

// Friction, condensed: see contact_cone.hpp.
template <class T>
struct FrictionData {
    T coupling[2], compliance[4], cone_coupling[2];
    T eta_slip[2];                    // a and b of the row of δη₁
    Vec3<T> eta_xi;

    // Takes the numbers of `other` in the lanes of `mask`, but for the coupling.
    TD_INLINE void take(const Mask<T> &mask, const FrictionData &other) {
        auto put = [&](T &number, const T &value) { number = select(mask, value, number); };
        for (int i = 0; i < 4; ++i) put(compliance[i], other.compliance[i]);
        for (int i = 0; i < 2; ++i) {
            put(cone_coupling[i], other.cone_coupling[i]);
            put(eta_slip[i], other.eta_slip[i]);
        }
        for (int i = 0; i < 3; ++i) put(eta_xi[i], other.eta_xi[i]);
    }
};

template <class T>
struct ContactData : FrictionData<T> {
    Vec3<T> n, t1, t2;                // contact frame in the next body frame
    Vec3<T> lever;                    // l = c − r n in the next body frame
    T wrench[18];                     // impulses on the body per (γ, ξ2, ξ3), 6 x 3
    T rows[18];                       // derivative of (φ, slip) with respect to the body's twist, 3 x 6
    T inverse;                        // 1/s, or less where the contact is compliant
    T stiffness;                      // K of the condensed contact, with the numbers of its friction: see contact_cone.hpp
    T beta[2];                        // tangential impulse
};

// A point that may be far from its half-space (far_points.hpp): its body, whether it has friction, and whether it is on the same body and has
// the same half-space as the point before.
struct FarTable {
    int32_t body;
    bool rubs, goes_on;
};

// What a call of a part of a mechanism has beside its rollout (abi/near_solves.hpp).
struct PartCall {
    static constexpr int size = parameter::friction + 1;  // numbers of a point
    std::vector<FarTable> points;  // sorted by bodies
    const double *values = nullptr;  // numbers of each point, for each environment
    int64_t value_stride = 0;  // from one environment to the next; 0: all have the same
    const double *weights = nullptr;  // for each environment and point: 1 where it is far and has no unknowns, else 0
    const double *parameters =
        nullptr;  // of an environment, the first `alike` numbers of which belong to all, the timestep excepted; and samples
    int64_t alike = 0;
};

// The points of a call that are far. values: their numbers, where environments have numbers of their own. reach: their largest distance from
// the origin of their body. slope: the largest sum, over the points of a body, of bounds of derivatives, at the last w.
template <class T>
struct FarField {
    const PartCall *call = nullptr;
    std::vector<T> values, weights;
    T reach{}, slope{};
};

// Contacts between bodies or shapes: see pair.hpp. Derivatives are by the next poses (x, φ of the body, then of the other).
template <class T>
struct PairData {
    Vec3<T> n, t1, t2, force, lever[2];
    T wrench[2][6][12];               // impulses on both bodies
    T rows[3][12];                    // gap and slip
    T other_wrench[18], other_rows[18];  // as `wrench` and `rows` of ContactData
    Vec3<T> couple;                   // couple of torsional and rolling friction on the body
};

// Laws of overlap change a gap by these numbers (gap_law.hpp).
template <class T>
struct Overlap {
    T distance;  // φ at the current configuration
    T shift, softness, slope;  // slope: −∂shift/∂φ
};

// Laws of the gap: see gap_law.hpp.
template <class T>
struct LawData : Overlap<T> {
    bool overlaps = false;  // whether a law of overlap acts in some lane: only then are the numbers of `Overlap` and distance_row of use
    T distance_row[12];  // derivative of φ by the current poses (x, φ of the body, then of the other)
    Mask<T> bounces, bouncing;  // whether the contact has restitution, and whether Newton's law rules the gap in this step
    T share;  // weight of Newton's law in the gap: below 1 where it belongs to a crossing of edges that counts in part
    Vec3<T> incoming, spin;  // velocity, and angular velocity in the world frame, that led here
};

// Torsional and rolling friction: see couple_friction.hpp.
template <class T>
struct CoupleData : FrictionData<T> {
    Vec3<T> torque[2][2];  // per axis and unit of impulse, on the body and on the other
    T weight;  // of the torques on the bodies: below 1 where the contact fades
    T rows[2][12], next[2][12];  // derivatives of the spin: by the twists, and by the next poses
};

template <class T>
struct CouplingEndData {
    RotationVector<T> angle, angle_next;  // at the current and the next configuration, for joints with several rotations
    Relative<T> relative_next;
    T coordinate, turns;  // at the current configuration: the coordinate, and the turns [rad] that an angle has on top
    T coordinate_next;  // the same at the next configuration, with the turns
    T coefficient;  // in the sum of leaders or of followers
    T weight, weight_next;  // factors of the multiplier along the coordinate, and of the coordinate in the row, by the configurations
    RowGradient<T, T> push;  // force and torques per unit along the coordinate, at the current configuration
    RowGradient<T, T> next;  // derivative of the weighted coordinate by the next poses
};

template <class T>
struct CouplingData {
    T on;  // 1, or 0 where the coupling is switched off
    T leading, leading_next;  // sums of the leaders' coordinates x at the current and the next configuration
    T gap_now;  // c
    T given, stretched;  // α/h and 1 + α d/h: the row has c⁺ stretched − c (stretched − 1) + λ given
    T gap;  // violation of the row, where it is on
    T following_next;  // length of a following string at the next configuration
};

template <class T>
struct TendonData {
    T given, damping, stiffness;  // h (k e + u); h D; the derivative of `given` by the length
    T length, incoming;  // now; and the rate of the step before, where it has armature
    T by_rate, by_length;  // at a point w: minus the derivative of the impulse by the rate, and the one by the length
};

// The derivative of a length: by the displacement of a body, world frame, and by its rotation, body frame.
template <class S>
struct Pull {
    Vec3<S> force, torque;
};
template <class T>
TD_INLINE Pull<T> select(const Mask<T> &mask, const Pull<T> &a, const Pull<T> &b) {
    Pull<T> chosen;
    for (int i = 0; i < 3; ++i) {
        chosen.force[i] = select(mask, a.force[i], b.force[i]);
        chosen.torque[i] = select(mask, a.torque[i], b.torque[i]);
    }
    return chosen;
}

// Gradients by the lengths of all tendons, and directions c of the gradients by their pulls g, as Σ g·c, in the places of the pulls. later:
// whether they are only stored, for drives that add theirs and pull back both at once.
template <class R>
struct TendonGradient {
    std::vector<R> by_length;
    std::vector<Pull<R>> along;
    bool later = false;
};

}  // namespace torchdojo
