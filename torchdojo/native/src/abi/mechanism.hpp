// The mechanism as tables, decoded once from the rows that `torchdojo/native/lowering.py` writes: which numbers belong to which element.
// `torchdojo/native/tables.py` declares and explains the fields. The build generates their structures in the namespace `rows`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/polytope.hpp"
#include "solver/ldu.hpp"
#include "torchdojo_tables.hpp"

namespace torchdojo {

struct JointTable : rows::Joint {
    int held() const { return held_t + held_r; }
    int free_t() const { return 3 - held_t; }
    int free_r() const { return 3 - held_r; }
    int free() const { return 6 - held(); }
    bool has_vector() const { return free_r() > 1; }  // whether its rotational coordinates are components of a rotation vector
    bool drives(int i) const { return driven >> i & 1; }  // whether a drive has the input of coordinate i
    // Places behind `parameters`; each holds a number per free direction.
    int spring() const { return parameter::free_values + parameter::free::spring * free(); }
    int damper() const { return parameter::free_values + parameter::free::damper * free(); }
    int rest() const { return parameter::free_values + parameter::free::rest * free(); }
};

struct JointConeTable : rows::JointCone {
    double sign() const { return kind == upper || kind == highest_rate ? -1.0 : 1.0; }
    bool limits_rate() const { return kind == lowest_rate || kind == highest_rate; }
    bool is_pair() const { return kind == friction || kind == drive; }  // with impulses p and q
    bool on_rate() const { return is_pair() || limits_rate(); }
    int pairs() const { return is_pair() ? 2 : 1; }
};

struct ContactTable : rows::Contact {
    int size() const { return 1 + friction_size() + 3 * num_couples; }  // impulses, and slacks
    int friction_size() const { return friction == frictionless ? 0 : friction == disc ? 3 : 1 + facets; }
    int friction_impulse() const { return impulse + cone; }
    int friction_slack() const { return slack + cone; }
    bool is_pyramid() const { return friction == pyramid; }
    // Directions of a pyramid in the tangent plane, in pairs d, −d. The rounding makes the axes exact.
    double direction_x(int i) const { return (i % 2 ? -1.0 : 1.0) * std::round(1e15 * std::cos(angle(i))) * 1e-15; }
    double direction_y(int i) const { return (i % 2 ? -1.0 : 1.0) * std::round(1e15 * std::sin(angle(i))) * 1e-15; }

private:
    double angle(int i) const { return 6.28318530717958647692 * (i / 2) / facets; }
};

// Torsional or rolling friction of a contact. The table describes this friction as a contact of its own, whose slips are angular
// velocities. Both contacts share the normal impulse. About the normal, friction is a pyramid with the directions 1 and −1.
struct CoupleTable {
    int32_t contact, parameter;
    ContactTable friction;

    explicit CoupleTable(const rows::Couple &row) : contact(row.contact), parameter(row.parameter), friction{row.friction} {}

    int first_axis() const { return friction.is_pyramid() ? 0 : 1; }  // index into (n, t1, t2)
    int num_axes() const { return friction.is_pyramid() ? 1 : 2; }
};

using BodyTable = rows::Body;
struct PairTable : rows::Pair {
    const Polytope *cores[2] = {nullptr, nullptr};

    explicit PairTable(const rows::Pair &row) : rows::Pair(row) {}
};
using CouplingTable = rows::Coupling;
using CouplingEndTable = rows::CouplingEnd;
using TreeTable = rows::Link;
using TendonTable = rows::Tendon;
using Fill = rows::Fill;

// An equality row with a multiplier: held directions of joints, and couplings.
struct MultiplierTable {
    int32_t row, right, diagonal;  // positions in w, in the right-hand side, and of the row's own entry in the condensed matrix
};

// The contents of the rows.
struct Tables : rows::Head {
    std::vector<BodyTable> bodies;
    std::vector<JointTable> joints;
    std::vector<ContactTable> contacts;
    std::vector<JointConeTable> joint_cones;
    std::vector<PairTable> pairs;
    std::vector<CoupleTable> couples;
    std::vector<CouplingTable> couplings;
    std::vector<CouplingEndTable> coupling_ends;
    std::vector<TendonTable> tendons;
    std::vector<TendonTable> strings;  // of couplings, followers and leaders in turn: their path, the rest is empty
    std::vector<int32_t> tendon_bodies, tendon_blocks;  // bodies of their places, and blocks for pairs of places (−1: none)
    std::vector<rows::TendonPart> tendon_parts;
    std::vector<double> polytope_numbers;
    std::vector<Polytope> polytopes;
    std::vector<TreeTable> tree;  // the spanning tree, from the world outward; empty where it does not reach a body
    std::vector<int32_t> impulses;  // positions in w of StepOutput.impulses
    std::vector<Fill> fill;  // blocks that are zero in the matrix and nonzero in its factors

    // A copy without contacts and what belongs to them, of which a part has few.
    struct WithoutContacts {};
    Tables(const Tables &m, WithoutContacts)
        : rows::Head(m), bodies(m.bodies), joints(m.joints), joint_cones(m.joint_cones), couplings(m.couplings),
          coupling_ends(m.coupling_ends), tendons(m.tendons), strings(m.strings), tendon_bodies(m.tendon_bodies),
          tendon_blocks(m.tendon_blocks), tendon_parts(m.tendon_parts), tree(m.tree) {}

    explicit Tables(const int32_t *table) {
        const int32_t *p = read<rows::Head>(table, *this);
        p = read<rows::Body>(p, bodies, num_bodies);
        p = read<rows::Joint>(p, joints, num_joints);
        p = read<rows::Contact>(p, contacts, num_contacts);
        p = read<int32_t>(p, impulses, num_impulses);
        p = read<rows::Fill>(p, fill, num_fill);
        p = read<rows::JointCone>(p, joint_cones, num_joint_cones);
        p = read<rows::Pair>(p, pairs, num_pairs);
        p = read<rows::Couple>(p, couples, num_couples);
        p = read<rows::Coupling>(p, couplings, num_couplings);
        p = read<rows::CouplingEnd>(p, coupling_ends, num_coupling_ends);
        p = read<rows::Link>(p, tree, num_links);
        p = read<rows::Tendon>(p, tendons, num_tendons);
        p = read<rows::Tendon>(p, strings, num_strings);
        p = read<int32_t>(p, tendon_bodies, num_tendon_bodies);
        p = read<rows::TendonPart>(p, tendon_parts, num_tendon_parts);
        p = read<int32_t>(p, tendon_blocks, num_tendon_blocks);
        if (num_polytope_words) {  // an empty vector has no address that memcpy may take
            polytope_numbers.resize(num_polytope_words / 2);
            std::memcpy(polytope_numbers.data(), p, num_polytope_words * sizeof(int32_t));
            read_polytopes();
        }
    }

private:
    void read_polytopes() {
        const double *p = polytope_numbers.data();
        for (int n = int(*p++); n; --n) {
            Polytope core{int(p[0]), int(p[1]), int(p[2]), p[3], p + 5};
            const bool smooth = p[4] > 0;
            core.face = core.vertex + 3 * core.vertices;
            core.edge = core.face + 4 * core.faces;
            p = core.edge + Polytope::edge_size * core.edges;
            if (smooth) {
                core.ellipsoid = p;
                p += Polytope::ellipsoid_size;
            }
            core.prepare();
            polytopes.push_back(std::move(core));
        }
        for (PairTable &pair : pairs)
            if (pair.core_a >= 0) {
                pair.cores[0] = &polytopes[pair.core_a];
                pair.cores[1] = &polytopes[pair.core_b];
            }
    }
    template <class Row>
    static const int32_t *read(const int32_t *p, Row &row) {
        std::memcpy(&row, p, sizeof(Row));
        return p + sizeof(Row) / sizeof(int32_t);
    }
    template <class Row, class Table>
    static const int32_t *read(const int32_t *p, std::vector<Table> &rows, int count) {
        rows.reserve(count);
        for (Row row; count > 0; --count) {
            p = read(p, row);
            rows.push_back(Table{row});
        }
        return p;
    }
};

// A mechanism: its tables, and what follows from them.
struct MechanismTable : Tables {
    std::vector<ContactTable> frictions;  // first the frictions of contacts, then the couples
    std::vector<MultiplierTable> multipliers;
    std::vector<int32_t> equations;  // positions in w of all rows except balance and complementarity
    std::vector<char> is_free;  // per body: no joint holds it, limits it, rubs on it or is coupled
    std::vector<char> is_braced;  // per friction: of a contact with the world, on a body that several such contacts hold
    Schedule schedule;

    // braced: `is_braced` of the contacts, in place of what follows from these; or null.
    MechanismTable(Tables &&tables, const int32_t *schedule_table, const std::vector<char> *braced = nullptr)
        : Tables(std::move(tables)), schedule(schedule_table) {
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
        for (const CouplingEndTable &end : coupling_ends)
            for (const int32_t body : end.body) is_free[body] = 0;
        for (const int32_t body : tendon_bodies) is_free[body] = 0;
        is_braced.assign(frictions.size(), 0);
        for (int c = 0; c < num_contacts; ++c) {
            const auto holds = [&](const ContactTable &contact) {
                return contact.body == contacts[c].body && contact.friction_size() && touches_world(contact);
            };
            if (braced) is_braced[c] = (*braced)[c];
            else is_braced[c] = holds(contacts[c]) && std::count_if(contacts.begin(), contacts.end(), holds) >= constant::bracing_contacts;
        }
    }

    bool touches_world(const ContactTable &contact) const { return contact.pair < 0 || pairs[contact.pair].other == num_bodies; }

    bool has_pyramids() const {
        return std::any_of(frictions.begin(), frictions.end(), [](const ContactTable &friction) { return friction.is_pyramid(); });
    }

    // Numbers per lane that an iteration reads or writes, to about a tenth: of data.hpp and solver/tree.hpp, and nine vectors of unknowns.
    int64_t numbers_in_use() const {
        int64_t count = 170 * int64_t(num_bodies) + 80 * int64_t(num_contacts) + 100 * int64_t(num_free_data) + 9 * int64_t(num_unknowns);
        for (const JointTable &joint : joints)
            if (joint.size) count += 150 + 50 * joint.free();
        return count;
    }
};

}  // namespace torchdojo
