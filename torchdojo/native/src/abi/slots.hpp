// Slots of near contacts (elements/near_contact.py), most of which are empty, and the mechanism without the empty ones.
//
// An empty slot acts on nothing, so a step needs variables, cones and blocks of the matrix for those slots alone that have a term. Slots of
// one pair of shapes have the same equations with numbers of their own. So a part of the mechanism is known by how many slots it has of each
// pair, and every environment puts its own slots with terms there, the numbers of a slot together. A part is a mechanism like any other:
// the solver knows nothing of slots.
//
// A point of a body that touches a half-space is a slot, too, which counts as empty where it is far: a robot has a hundred points, a few of
// which are near the ground. Only steps leave out far points (near_points.hpp); gradients have all of them.
#pragma once

#include <array>
#include <map>

#include "abi/mechanism.hpp"
#include "elements/far_points.hpp"
#include "elements/friction.hpp"

namespace torchdojo {

class Slots {
public:
    struct Run {
        int32_t from, count;
    };
    enum Vector : int { unknowns, parameters, impulses };  // vectors whose numbers belong to slots
    struct Slot {
        int32_t contact, term;  // its number, and the position of its term in the parameters
        std::array<Run, 4> runs;  // impulses and slacks, parameters, impulses among the outputs
        struct Range {
            const Run *first, *last;
            const Run *begin() const { return first; }
            const Run *end() const { return last; }
        };
        Range in(Vector v) const {
            constexpr int bounds[] = {0, 2, 3, 4};
            return {runs.data() + bounds[v], runs.data() + bounds[v + 1]};
        }
    };

    // `wanted`: a part has no parts of its own.
    explicit Slots(const MechanismTable &m, bool wanted = true) : whole(m) {
        if (!wanted) return;
        std::vector<int32_t> starts{m.num_parameters}, output(m.num_unknowns, -1);
        for (const ContactTable &contact : m.contacts) starts.push_back(contact.parameters);
        for (const CouplingTable &coupling : m.couplings) starts.push_back(coupling.parameters);
        for (const TendonTable &tendon : m.tendons) starts.push_back(tendon.parameters);
        std::sort(starts.begin(), starts.end());
        for (int k = 0; k < m.num_impulses; ++k) output[m.impulses[k]] = k;
        std::map<std::array<int32_t, 10>, std::vector<int32_t>> alike, alike_points;
        const auto add = [&](int c, int32_t term, int32_t count, std::vector<int32_t> &group) {
            const int32_t start = m.contacts[c].parameters, size = m.contacts[c].size(), impulse = m.contacts[c].impulse;
            group.push_back(int32_t(slots.size()));
            slots.push_back({c, term, {{{impulse, size}, {m.contacts[c].slack, size}, {start, count}, {output[impulse], size}}}});
        };
        const auto count_from = [&](int32_t start) { return *std::upper_bound(starts.begin(), starts.end(), start) - start; };
        for (int c = 0; c < m.num_contacts; ++c) {
            const ContactTable &contact = m.contacts[c];
            if (contact.pair < 0 || !m.pairs[contact.pair].cores[0]) continue;
            const PairTable &pair = m.pairs[contact.pair];
            const int32_t start = contact.parameters, count = count_from(start);
            const auto law = [&](int32_t place) { return place < 0 ? place : place - start; };
            const std::array<int32_t, 10> key{contact.body,
                                              pair.other,
                                              pair.core_a,
                                              pair.core_b,
                                              count,
                                              law(contact.restitution),
                                              law(contact.recovery_speed),
                                              law(contact.stiffness),
                                              law(contact.damping),
                                              couples_of(m, contact)};
            add(c, pair.shape_a, count, alike[key]);
        }
        num_near = int32_t(slots.size());
        const auto points = std::count_if(m.contacts.begin(), m.contacts.end(), [](const ContactTable &c) { return may_be_far(c); });
        for (int c = 0; c < m.num_contacts && (num_near || points >= many_points); ++c) {
            const ContactTable &contact = m.contacts[c];
            if (!may_be_far(contact)) continue;
            const int32_t count = count_from(contact.parameters);
            add(c, -1, count, alike_points[{contact.body, contact.size(), count}]);
        }
        const auto add_group = [&](std::vector<int32_t> &&members) {
            first.push_back(int32_t(by_rank.size()));
            by_rank.insert(by_rank.end(), members.begin(), members.end());
            group_by_rank.resize(by_rank.size(), int32_t(groups.size()));
            groups.push_back(std::move(members));
        };
        for (auto &[key, members] : alike) add_group(std::move(members));
        for (auto &[key, members] : alike_points) add_group(std::move(members));
        const int32_t sizes[] = {m.num_unknowns, m.num_parameters, m.num_impulses};
        for (const Vector v : {unknowns, parameters, impulses}) {
            std::vector<char> in_slot(sizes[v]);
            for (const Slot &slot : slots)
                for (const Run &run : slot.in(v)) std::fill_n(in_slot.begin() + run.from, run.count, 1);
            for (int32_t k = 0; k < sizes[v]; ++k) {
                if (in_slot[k]) continue;
                if (k && !in_slot[k - 1]) ++others[v].back().count;
                else others[v].push_back({k, 1});
            }
        }
    }

    bool some() const { return !slots.empty(); }
    // Points that are worth a look which of them are far, where there are no slots of near contacts.
    static constexpr int many_points = 64;
    int size() const { return int(slots.size()); }
    int size_near() const { return num_near; }  // slots of near contacts. They come first, also by rank, and then points, sorted by bodies
    int num_groups() const { return int(groups.size()); }  // slots of one group may take each other's place

    // Ranks number the slots of one group after the other.
    const Slot &ranked(int32_t rank) const { return slots[by_rank[rank]]; }
    int32_t group_of(int32_t rank) const { return group_by_rank[rank]; }
    int32_t first_of(int32_t group) const { return first[group]; }
    const std::vector<Run> &rest(Vector v) const { return others[v]; }  // numbers that belong to no slot

    // The slots whose terms stand at these positions of the parameters, by rank.
    std::vector<int32_t> ranks(const std::vector<int32_t> &terms) const {
        std::map<int32_t, int32_t> rank_at;
        for (size_t k = 0; k < by_rank.size(); ++k) rank_at[slots[by_rank[k]].term] = int32_t(k);
        std::vector<int32_t> result;
        for (const int32_t term : terms) result.push_back(rank_at.at(term));
        return result;
    }

    // Whether a number of a slot is not finite. Such a slot counts as filled, so that its part flags it.
    bool is_broken(const double *p, const Slot &slot) const {
        const Run &run = slot.runs[2];
        double sum = 0.0;
        for (int k = parameter::friction; k < run.count; ++k) sum += p[run.from + k];
        return !std::isfinite(sum);
    }

    // Slots that a part has of a group for `count` terms: 1, 2, 3, 4, 6, 8, 12, ..., so that few parts are enough while terms come and go.
    int32_t room(int group, int32_t count) const {
        int32_t room = count;
        for (int32_t power = 4; power < count; power *= 2) room = count <= power + power / 2 ? power + power / 2 : 2 * power;
        return std::min(int32_t(groups[group].size()), room);
    }

    // The slots of an environment, in each group first the slots with terms, and the count of these in each group.
    void sort(const double *p, int32_t *order, int32_t *count) const {
        for (const std::vector<int32_t> &group : groups) {
            int32_t *empty = order + group.size();
            *count = 0;
            for (const int32_t s : group) {
                if (is_empty(p, slots[s])) *--empty = s;
                else order[(*count)++] = s;
            }
            std::reverse(empty, order + group.size());
            order += group.size();
            ++count;
        }
    }

    // Calls f(place in the whole vector, place in the part's, count) for the numbers of a vector. The part has `kept` slots of each group.
    template <class F>
    void each(Vector v, const std::vector<int32_t> &kept, const int32_t *order, F &&f) const {
        int32_t to = 0;
        const auto put = [&](const Run &run) {
            f(run.from, to, run.count);
            to += run.count;
        };
        for (const Run &run : others[v]) put(run);
        for (size_t g = 0; g < groups.size(); ++g) {
            for (int32_t k = 0; k < kept[g]; ++k)
                for (const Run &run : slots[order[k]].in(v)) put(run);
            order += groups[g].size();
        }
        if (v == parameters && whole.num_samples) put({whole.num_parameters, whole.num_samples});
    }

    // Calls f(slot, place of its impulses in the part's unknowns, place of its slacks) for the slots of a part.
    template <class F>
    void each_slot(const std::vector<int32_t> &kept, const int32_t *order, F &&f) const {
        int32_t to = 0;
        for (const Run &run : others[unknowns]) to += run.count;
        for (size_t g = 0; g < groups.size(); ++g) {
            for (int32_t k = 0; k < kept[g]; ++k) {
                const Slot &slot = slots[order[k]];
                f(slot, to, to + slot.runs[0].count);
                to += slot.runs[0].count + slot.runs[1].count;
            }
            order += groups[g].size();
        }
    }

    // Calls f(slot) for the slots of an environment without a term.
    template <class F>
    void each_empty(const int32_t *order, const int32_t *count, F &&f) const {
        for (const std::vector<int32_t> &group : groups) {
            for (size_t k = *count; k < group.size(); ++k) f(slots[order[k]]);
            order += group.size();
            ++count;
        }
    }

    const MechanismTable &mechanism() const { return whole; }

    // The part with `kept` slots of each group.
    MechanismTable part(const std::vector<int32_t> &kept) const;

private:
    const MechanismTable &whole;
    std::vector<Slot> slots;
    std::vector<std::vector<int32_t>> groups;
    int32_t num_near = 0;
    std::vector<int32_t> by_rank, group_by_rank, first;  // slot and group of each rank; first rank of each group
    std::vector<Run> others[3];  // numbers that belong to no slot

    // The couples of a contact, as a sum: 1, torsional; 2, rolling.
    static int32_t couples_of(const MechanismTable &m, const ContactTable &contact) {
        int32_t kinds = 0;
        for (int k = 0; k < contact.num_couples; ++k) kinds |= m.couples[contact.first_couple + k].friction.is_pyramid() ? 1 : 2;
        return kinds;
    }
    static int32_t cones_of_couples(const MechanismTable &m, const ContactTable &contact) {
        const int32_t kinds = couples_of(m, contact);
        return (kinds & 1 ? 3 : 0) + (kinds & 2 ? 1 : 0);
    }

    bool is_empty(const double *p, const Slot &slot) const { return slot.term >= 0 && p[slot.term] < 0 && !is_broken(p, slot); }

    std::vector<int32_t> keep_contacts(Tables &m, const std::vector<char> &leaves, const std::vector<int32_t> &w,
                                       const std::vector<int32_t> &p) const;

    // The places of a vector's numbers in the part, −1 where the part lacks the number, and the count of its numbers.
    std::vector<int32_t> places(Vector v, const std::vector<int32_t> &kept, const std::vector<int32_t> &order, int32_t size,
                                int32_t &count) const {
        std::vector<int32_t> to(size, -1);
        count = 0;
        each(v, kept, order.data(), [&](int32_t from, int32_t place, int32_t length) {
            for (int32_t k = 0; k < length; ++k) to[from + k] = place + k;
            count += length;
        });
        return to;
    }
};

// Impulses and slacks of a slot without a term, which are at rest on the path at the gap of such a slot. Nothing moves them, and a term that
// comes into the slot starts from there.
class SlotAtRest {
public:
    static constexpr int most = 10;  // size of a contact with torsional and rolling friction
    double impulse[most], slack[most];

    // p: the parameters of the environment. Slots that follow one another mostly have the same friction, and the same couples.
    void put(const MechanismTable &m, const ContactTable &contact, const double *p, double kappa) {
        const double mu = p[contact.parameters + parameter::friction];
        if (mu == coefficients[0] && last && same_couples(m, contact, p)) return;
        last = &contact;
        coefficients[0] = mu;
        constexpr double gap = 2.0 * constant::near_terms::reach;
        impulse[0] = kappa / gap;
        slack[0] = gap;
        const auto start = [&](const ContactTable &member, double coefficient) {
            const int offset = member.friction_impulse() - contact.impulse;
            const double height = coefficient * impulse[0];
            if (member.is_pyramid()) Pyramid<double>{member}.start(height, 0.0, 0.0, kappa, impulse + offset, slack + offset);
            else Disc<double>::start(height, 0.0, 0.0, kappa, impulse + offset, slack + offset);
        };
        start(contact, mu);
        for (int k = 0; k < contact.num_couples; ++k) {
            const CoupleTable &couple = m.couples[contact.first_couple + k];
            coefficients[1 + k] = p[couple.parameter];
            start(couple.friction, coefficients[1 + k]);
        }
    }

private:
    const ContactTable *last = nullptr;  // the contact of the values
    double coefficients[most];  // its friction, and those of its couples

    bool same_couples(const MechanismTable &m, const ContactTable &contact, const double *p) const {
        bool same = contact.num_couples == last->num_couples && contact.is_pyramid() == last->is_pyramid();
        for (int k = 0; same && k < contact.num_couples; ++k) {
            const CoupleTable &couple = m.couples[contact.first_couple + k], &last_couple = m.couples[last->first_couple + k];
            same = p[couple.parameter] == coefficients[1 + k] && couple.friction.is_pyramid() == last_couple.friction.is_pyramid() &&
                   couple.friction.friction_impulse() - contact.impulse == last_couple.friction.friction_impulse() - last->impulse;
        }
        return same;
    }
};

// A place for a point in a part for which an environment has no use: a contact whose normal and tangents are zero, so that neighbors in a
// batch change no bits. Its gap is constant; rounding in a wider one would be a residual that convergence waits for.
struct NobodysPoint {
    static constexpr double gap = 1.0;

    static void put(int32_t count, double *p) {
        std::fill_n(p, count, 0.0);
        p[parameter::friction] = 1.0;
        p[parameter::offset] = -gap;
    }

    // Impulses and slacks on the path, `size` of each.
    static void start(int32_t size, double kappa, double *to) {
        std::fill_n(to, 2 * size, 0.0);
        for (int k = 0; k < std::min(size, 2); ++k) {
            to[k] = kappa / gap;
            to[size + k] = gap;
        }
    }
};

// The schedule of a part: blocks that are zero in the factors are left out. `present`: by offset, whether a block of the matrix is not zero;
// then also the blocks of the factors. `place` becomes the offset in the part, −1 of blocks that are left out.
inline std::vector<int32_t> reduced_schedule(const Schedule &whole, std::vector<char> &present, std::vector<int32_t> &place) {
    std::vector<std::vector<int>> kept;
    std::vector<int32_t> table{int32_t(whole.steps.size()), 0, 0, 0, whole.num_rows, whole.max_size};
    place.assign(whole.num_values, -1);
    int32_t end = 0;
    const auto put = [&](int32_t offset, int32_t count) {
        place[offset] = end;
        end += count;
    };
    for (const Schedule::Step &step : whole.steps) {
        std::vector<int> &links = kept.emplace_back();
        put(step.diagonal, step.size * step.size);
        for (int k = 0; k < step.num_links; ++k) {
            const Schedule::Link &link = step.links[k];
            if (!present[link.upper] && !present[link.lower]) continue;
            links.push_back(k);
            put(link.upper, step.size * link.size);
            put(link.lower, step.size * link.size);
        }
        for (const int j : links)
            for (const int k : links) present[step.targets[j * step.num_links + k]] = 1;
        table[1] += int32_t(links.size());
        table[2] += int32_t(links.size() * links.size());
    }
    table[3] = end;
    for (size_t i = 0; i < kept.size(); ++i) {
        const Schedule::Step &step = whole.steps[i];
        table.insert(table.end(), {step.size, place[step.diagonal], step.row, int32_t(kept[i].size())});
        for (const int k : kept[i]) {
            const Schedule::Link &link = step.links[k];
            table.insert(table.end(), {link.size, place[link.upper], place[link.lower], link.row});
        }
        for (const int j : kept[i])
            for (const int k : kept[i]) table.push_back(place[step.targets[j * step.num_links + k]]);
    }
    return table;
}

// Fields with places in the whole become places in the part; −1 stays.
template <class... Fields>
void move_places(const std::vector<int32_t> &to, Fields &...fields) {
    ((fields = fields < 0 ? fields : to[fields]), ...);
}

// Moves the places of unknowns (w) and of parameters (p) in the tables of all elements but contacts, whose new numbers `contact_of` has.
inline void move_elements(Tables &m, const std::vector<int32_t> &w, const std::vector<int32_t> &p, const std::vector<int32_t> &contact_of) {
    for (JointTable &joint : m.joints) {
        move_places(w, joint.row);
        move_places(p, joint.parameters, joint.armature, joint.stiffness, joint.curve, joint.cone, joint.lower, joint.upper);
    }
    for (JointConeTable &cone : m.joint_cones) {
        move_places(w, cone.impulse, cone.slack);
        move_places(p, cone.parameter, cone.fastest);
    }
    for (CoupleTable &couple : m.couples) {
        move_places(w, couple.friction.impulse, couple.friction.slack);
        move_places(p, couple.parameter);
        move_places(contact_of, couple.contact);
    }
    for (CouplingTable &coupling : m.couplings) {
        move_places(w, coupling.row);
        move_places(p, coupling.parameters);
    }
    for (CouplingEndTable &end : m.coupling_ends) move_places(p, end.coefficient);
    for (TendonTable &tendon : m.tendons) {
        move_places(w, tendon.row);
        move_places(p, tendon.parameters, tendon.offset);
    }
    for (TendonTable &string : m.strings) move_places(p, string.offset);
    for (rows::TendonPart &part : m.tendon_parts)
        move_places(p, part.start, part.end, part.divisor, part.center, part.turn, part.radius, part.side);
}

// Moves the blocks of the matrix, and returns the schedule of the part.
inline std::vector<int32_t> move_blocks(Tables &m, const MechanismTable &whole) {
    std::vector<char> present(whole.schedule.num_values);
    const auto mark = [&](auto... offsets) {
        for (const int32_t offset : {offsets...})
            if (offset >= 0) present[offset] = 1;
    };
    for (const JointTable &joint : m.joints) mark(joint.child_joint, joint.joint_child, joint.parent_joint, joint.joint_parent);
    for (const PairTable &pair : m.pairs) mark(pair.body_other, pair.other_body);
    for (const CouplingEndTable &end : m.coupling_ends)
        for (int k = 0; k < 2; ++k) mark(end.body_coupling[k], end.coupling_body[k]);
    for (const int32_t block : m.tendon_blocks) mark(block);
    std::vector<int32_t> place;
    std::vector<int32_t> schedule = reduced_schedule(whole.schedule, present, place);
    for (BodyTable &body : m.bodies) move_places(place, body.diagonal);
    for (JointTable &joint : m.joints)
        move_places(place, joint.diagonal, joint.child_joint, joint.joint_child, joint.parent_joint, joint.joint_parent);
    for (PairTable &pair : m.pairs) move_places(place, pair.body_other, pair.other_body);
    for (CouplingTable &coupling : m.couplings) move_places(place, coupling.diagonal);
    for (CouplingEndTable &end : m.coupling_ends)
        for (int k = 0; k < 2; ++k) move_places(place, end.body_coupling[k], end.coupling_body[k]);
    for (int32_t &block : m.tendon_blocks) move_places(place, block);
    m.fill.clear();
    for (const Fill &block : whole.fill)
        if (place[block.offset] >= 0) m.fill.push_back({place[block.offset], block.count});
    m.num_fill = int32_t(m.fill.size());
    return schedule;
}

// Keeps the contacts of the part, with their pairs. Returns their numbers there, −1 of contacts that `leaves` marks.
inline std::vector<int32_t> Slots::keep_contacts(Tables &m, const std::vector<char> &leaves, const std::vector<int32_t> &w,
                                                 const std::vector<int32_t> &p) const {
    std::vector<int32_t> contact_of(whole.num_contacts, -1);
    for (int c = 0; c < whole.num_contacts; ++c) {
        if (leaves[c]) {
            m.num_cones -= (whole.contacts[c].friction ? 2 : 1) + cones_of_couples(whole, whole.contacts[c]);
            continue;
        }
        ContactTable contact = whole.contacts[c];
        move_places(w, contact.impulse, contact.slack);
        move_places(p, contact.parameters, contact.restitution, contact.recovery_speed, contact.stiffness, contact.damping);
        contact.law = contact_of[c] = int32_t(m.contacts.size());
        const auto couple = whole.couples.begin() + contact.first_couple;
        contact.first_couple = int32_t(m.couples.size());
        m.couples.insert(m.couples.end(), couple, couple + contact.num_couples);
        if (contact.pair >= 0) {
            m.pairs.push_back(whole.pairs[contact.pair]);
            contact.pair = int32_t(m.pairs.size()) - 1;
            move_places(p, m.pairs.back().shape_a, m.pairs.back().shape_b, m.pairs.back().samples);
        }
        m.contacts.push_back(contact);
    }
    m.num_contacts = int32_t(m.contacts.size());
    m.num_pairs = int32_t(m.pairs.size());
    m.num_couples = int32_t(m.couples.size());
    return contact_of;
}

inline MechanismTable Slots::part(const std::vector<int32_t> &kept) const {
    Tables m(whole, Tables::WithoutContacts{});  // pairs point to the polytopes of the whole
    std::vector<int32_t> order;
    std::vector<char> leaves(whole.num_contacts);
    for (size_t g = 0; g < groups.size(); ++g) {
        order.insert(order.end(), groups[g].begin(), groups[g].end());
        for (size_t k = kept[g]; k < groups[g].size(); ++k) leaves[slots[groups[g][k]].contact] = 1;
    }
    const std::vector<int32_t> w = places(unknowns, kept, order, whole.num_unknowns, m.num_unknowns);
    const std::vector<int32_t> p = places(parameters, kept, order, whole.num_parameters + whole.num_samples, m.num_parameters);
    const std::vector<int32_t> out = places(impulses, kept, order, whole.num_impulses, m.num_impulses);
    m.num_parameters -= m.num_samples;
    const std::vector<int32_t> contact_of = keep_contacts(m, leaves, w, p);
    move_elements(m, w, p, contact_of);
    m.impulses.resize(m.num_impulses);
    for (int k = 0; k < whole.num_impulses; ++k)
        if (out[k] >= 0) m.impulses[out[k]] = w[whole.impulses[k]];
    const std::vector<int32_t> schedule = move_blocks(m, whole);
    std::vector<char> braced;  // contacts hold a body as they do in the whole, whichever of them are in the part
    for (int c = 0; c < whole.num_contacts; ++c)
        if (contact_of[c] >= 0) braced.push_back(whole.is_braced[c]);
    return MechanismTable(std::move(m), schedule.data(), &braced);
}

}  // namespace torchdojo
