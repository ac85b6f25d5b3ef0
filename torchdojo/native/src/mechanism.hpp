// The mechanism as tables, decoded once from what `torchdojo/native/program.py` packs: which numbers belong to which body, joint, contact.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ldu.hpp"

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

    int size() const { return friction == 0 ? 1 : friction == 1 ? 4 : 2 + facets; }  // impulses, and slacks
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

struct BodyTable {
    int32_t diagonal, right;
};

struct Fill {
    int32_t offset, count;
};

struct MechanismTable {
    int32_t num_bodies, num_unknowns, num_inputs, num_parameters, num_joints, num_contacts, num_impulses, num_cones, has_loops, num_fill;
    int32_t num_joint_cones, num_free_data, num_pairs, num_laws;
    std::vector<BodyTable> bodies;
    std::vector<JointTable> joints;
    std::vector<ContactTable> contacts;
    std::vector<JointConeTable> joint_cones;
    std::vector<PairTable> pairs;
    std::vector<int32_t> impulses;    // positions in w of StepOutput.impulses
    std::vector<Fill> fill;           // blocks that the matrix lacks and its factors have
    std::vector<char> is_free;        // per body: no joint holds it, limits it or rubs on it
    Schedule schedule;

    MechanismTable(const int32_t *table, const int32_t *schedule_table) : schedule(schedule_table) {
        const int32_t *p = table;
        for (int32_t *field : {&num_bodies, &num_unknowns, &num_inputs, &num_parameters, &num_joints, &num_contacts, &num_impulses,
                               &num_cones, &has_loops, &num_fill, &num_joint_cones, &num_free_data, &num_pairs, &num_laws})
            *field = *p++;
        p = read(p, bodies, num_bodies);
        p = read(p, joints, num_joints);
        p = read(p, contacts, num_contacts);
        impulses.assign(p, p + num_impulses);
        p = read(p + num_impulses, fill, num_fill);
        p = read(p, joint_cones, num_joint_cones);
        read(p, pairs, num_pairs);
        is_free.assign(num_bodies + 1, 1);
        for (const ContactTable &contact : contacts)
            if (contact.pair >= 0 && pairs[contact.pair].other < num_bodies) is_free[contact.body] = is_free[pairs[contact.pair].other] = 0;
        for (const JointTable &joint : joints)
            if (joint.held() || joint.num_cones) is_free[joint.child] = is_free[joint.parent] = 0;
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
