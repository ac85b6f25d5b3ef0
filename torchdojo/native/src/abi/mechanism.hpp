// The mechanism as tables, decoded once from what `torchdojo/native/program.py` packs: which numbers belong to which body, joint, contact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "solver/ldu.hpp"

namespace torchdojo {

// Positions inside the packed parameters of one environment: [h, gravity(3) | bodies | joints | contacts].
namespace parameter {
constexpr int timestep = 0, gravity = 1, bodies = 4;
constexpr int mass = 0, inertia = 1, body_size = 10;
// Rows of the two bases: held directions first, then free ones, in the joint frame.
constexpr int translations = 0, rotations = 9, parent_anchor = 18, child_anchor = 21, orientation = 24, free_values = 28;
constexpr int point = 0, radius = 3, offset = 4, normal = 5, tangents = 8, friction = 14;
}  // namespace parameter

constexpr int most_facets = 32;
constexpr int state_size = 13, tangent_size = 12;

struct JointTable {
    int32_t parent, child;            // the world is the number of bodies
    int32_t held_t, held_r;           // constrained directions
    int32_t row, input;               // positions in w and in u (-1: not actuated)
    int32_t parameters;               // position in the packed parameters
    int32_t has_spring, has_damper;
    int32_t armature;                 // position in the packed parameters (-1: none)
    int32_t lower, upper, limited_r;  // positions of all limits, and of single rotations which act (1: lower, 2: upper); of several, if any
    int32_t extra;                    // rows of limits on components of a rotation vector
    int32_t first_cone, num_cones;    // its limits and frictions
    int32_t has_friction;
    int32_t free_data;                // number among the joints with armature, limits or friction (-1: none)
    int32_t size;                     // rows of its node: held directions, free ones where a damper or the like acts, extra ones; 0: no node
    int32_t right;                    // position in the right-hand side
    int32_t diagonal, child_joint, joint_child, parent_joint, joint_parent;  // blocks of the condensed matrix

    int held() const { return held_t + held_r; }
    int free_t() const { return 3 - held_t; }
    int free_r() const { return 3 - held_r; }
    int free() const { return 6 - held(); }
};

struct JointConeTable {
    enum Kind : int32_t { lower, upper, friction };
    int32_t joint, coordinate, row;   // row: in the joint's node
    int32_t kind;
    int32_t impulse, slack, stride;   // positions in w; from p to q of friction
    int32_t parameter;                // position in the packed parameters

    double sign() const { return kind == upper ? -1.0 : 1.0; }
    int pairs() const { return kind == friction ? 2 : 1; }
};

struct ContactTable {
    int32_t body, friction;           // friction: 0 for an impact contact, 1 for a second-order cone, 2 for a pyramid
    int32_t facets;                   // of the pyramid
    int32_t impulse, slack;           // positions in w
    int32_t parameters;
    int32_t pair;                     // number among the contacts between bodies or shapes (-1: a sphere on a half-space of the world)
    int32_t restitution, recovery, stiffness;  // positions in the packed parameters (-1: none); damping is behind stiffness
    int32_t law;                      // number among the contacts that have one of these (-1: none)
    int32_t cone;                     // from the first impulse (and slack) to those of friction
    int32_t first_couple, num_couples;  // its torsional and rolling friction

    int size() const { return 1 + friction_size() + 3 * num_couples; }  // impulses, and slacks
    int friction_size() const { return friction == 0 ? 0 : friction == 1 ? 3 : 1 + facets; }
    int friction_impulse() const { return impulse + cone; }
    int friction_slack() const { return slack + cone; }
    bool is_pyramid() const { return friction == 2; }
    // Directions of a pyramid in the tangent plane, in pairs d, −d. The rounding makes the axes exact.
    double direction_x(int i) const { return (i % 2 ? -1.0 : 1.0) * std::round(1e15 * std::cos(angle(i))) * 1e-15; }
    double direction_y(int i) const { return (i % 2 ? -1.0 : 1.0) * std::round(1e15 * std::sin(angle(i))) * 1e-15; }

private:
    double angle(int i) const { return 6.28318530717958647692 * (i / 2) / facets; }
};

struct PairTable {
    int32_t other;                    // body; the world is the number of bodies
    int32_t kind_a, kind_b;           // of geometry.hpp
    int32_t shape_a, shape_b;         // positions in the packed parameters
    int32_t body_other, other_body;   // blocks of the condensed matrix
};

// Torsional or rolling friction of a contact: as the friction of a contact of its own, whose slips are angular velocities and whose
// normal impulse is that of the contact it belongs to. About the normal, friction is a pyramid with the directions 1 and −1.
struct CoupleTable {
    int32_t contact;
    int32_t parameter;                // position of the coefficient in the packed parameters
    ContactTable friction;

    int first_axis() const { return friction.is_pyramid() ? 0 : 1; }  // of (n, t1, t2)
    int num_axes() const { return friction.is_pyramid() ? 1 : 2; }
};

// A linear coupling of coordinates of two joints, leader and follower (couplings.py).
struct CouplingTable {
    int32_t joint[2], coordinate[2];
    int32_t row;                      // position in w
    int32_t parameters;               // ratio and offset in the packed parameters
    int32_t right, diagonal;          // of its node in the condensed matrix, a single row
    int32_t body[4];                  // parent and child of the leader, then of the follower; bodies may be the same
    int32_t body_coupling[4], coupling_body[4];  // blocks
};

// A joint of the tree whose coordinates are the minimal ones, and the position of its own in q.
struct TreeTable {
    int32_t joint, coordinate;
};

struct BodyTable {
    int32_t diagonal, right;
};

// An equality row with a multiplier: held directions of joints, and couplings.
struct MultiplierTable {
    int32_t row, right, diagonal;     // positions in w, in the right-hand side, and of the row's own entry in the condensed matrix
};

struct Fill {
    int32_t offset, count;
};

struct MechanismTable {
    int32_t num_bodies, num_unknowns, num_inputs, num_parameters, num_joints, num_contacts, num_impulses, num_cones, has_loops, num_fill;
    int32_t num_joint_cones, num_free_data, num_pairs, num_laws, num_couples, num_couplings, num_links, num_coordinates;
    std::vector<BodyTable> bodies;
    std::vector<JointTable> joints;
    std::vector<ContactTable> contacts;
    std::vector<JointConeTable> joint_cones;
    std::vector<PairTable> pairs;
    std::vector<CoupleTable> couples;
    std::vector<ContactTable> frictions;  // those of the contacts, then of the couples
    std::vector<CouplingTable> couplings;
    std::vector<TreeTable> tree;      // from the world outwards; none where coordinates depend on each other (loops, couplings)
    std::vector<MultiplierTable> multipliers;
    std::vector<int32_t> equations;   // positions in w of all rows but those of the bodies and of complementarity
    std::vector<int32_t> impulses;    // positions in w of StepOutput.impulses
    std::vector<Fill> fill;           // blocks that the matrix lacks and its factors have
    std::vector<char> is_free;        // per body: no joint holds it, limits it, rubs on it or is coupled
    Schedule schedule;

    MechanismTable(const int32_t *table, const int32_t *schedule_table) : schedule(schedule_table) {
        const int32_t *p = table;
        for (int32_t *field : {&num_bodies, &num_unknowns, &num_inputs, &num_parameters, &num_joints, &num_contacts, &num_impulses,
                               &num_cones, &has_loops, &num_fill, &num_joint_cones, &num_free_data, &num_pairs, &num_laws, &num_couples,
                               &num_couplings, &num_links, &num_coordinates})
            *field = *p++;
        p = read(p, bodies, num_bodies);
        p = read(p, joints, num_joints);
        p = read(p, contacts, num_contacts);
        impulses.assign(p, p + num_impulses);
        p = read(p + num_impulses, fill, num_fill);
        p = read(p, joint_cones, num_joint_cones);
        p = read(p, pairs, num_pairs);
        p = read(p, couples, num_couples);
        p = read(p, couplings, num_couplings);
        read(p, tree, num_links);
        frictions = contacts;
        for (const CoupleTable &couple : couples) frictions.push_back(couple.friction);
        for (const JointTable &joint : joints)
            for (int k = 0; k < joint.held(); ++k)
                multipliers.push_back({joint.row + k, joint.right + k, joint.diagonal + k * (joint.size + 1)});
        for (const CouplingTable &coupling : couplings) multipliers.push_back({coupling.row, coupling.right, coupling.diagonal});
        for (const MultiplierTable &multiplier : multipliers) equations.push_back(multiplier.row);
        for (const ContactTable &contact : contacts)
            for (int k = 0; k < contact.size(); ++k) equations.push_back(contact.impulse + k);
        for (const JointConeTable &cone : joint_cones)
            for (int k = 0; k < cone.pairs(); ++k) equations.push_back(cone.impulse + k * cone.stride);
        is_free.assign(num_bodies + 1, 1);
        for (const ContactTable &contact : contacts)
            if (contact.pair >= 0 && pairs[contact.pair].other < num_bodies) is_free[contact.body] = is_free[pairs[contact.pair].other] = 0;
        for (const JointTable &joint : joints)
            if (joint.held() || joint.num_cones) is_free[joint.child] = is_free[joint.parent] = 0;
        for (const CouplingTable &coupling : couplings)
            for (const int32_t body : coupling.body) is_free[body] = 0;
    }

    bool has_pyramids() const {
        return std::any_of(frictions.begin(), frictions.end(), [](const ContactTable &friction) { return friction.is_pyramid(); });
    }

private:
    template <class Row>
    static const int32_t *read(const int32_t *p, std::vector<Row> &rows, int count) {
        constexpr int width = sizeof(Row) / sizeof(int32_t);
        rows.resize(count);
        if (count) std::memcpy(rows.data(), p, sizeof(Row) * count);
        return p + width * count;
    }
};

}  // namespace torchdojo
