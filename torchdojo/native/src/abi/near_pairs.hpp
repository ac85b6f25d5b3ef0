// The pairs of convex shapes of a mechanism that touch at near terms, with their slots (near_pairs of torchdojo/engine/near_set.py).
#pragma once

#include <algorithm>
#include <array>
#include <map>

#include "abi/mechanism.hpp"

namespace torchdojo {

struct NearPairs {
    struct Pair {
        int32_t body, other, contact;  // contact: the first one, as declared
        int32_t first, count;          // of its slots
        const Polytope *cores[2];
        double extent[2];  // radii of balls about the origins of the bodies that hold the shapes
    };
    std::vector<Pair> pairs;    // in the order of their first contacts
    std::vector<int32_t> term;  // of each slot: where its term stands among the parameters. Slots of a pair follow one another
    std::vector<int32_t> place;  // of each slot: its number among the near contacts as declared

    explicit NearPairs(const MechanismTable &m, bool wanted = true) {
        if (!wanted) return;
        std::vector<const ContactTable *> slots;
        for (const ContactTable &contact : m.contacts)
            if (contact.pair >= 0 && m.pairs[contact.pair].cores[0]) slots.push_back(&contact);
        std::sort(slots.begin(), slots.end(), [](const ContactTable *a, const ContactTable *b) { return a->number < b->number; });
        std::map<std::array<int32_t, 4>, int> numbers;
        std::vector<std::vector<int>> members;
        for (size_t k = 0; k < slots.size(); ++k) {
            const PairTable &pair = m.pairs[slots[k]->pair];
            const auto [at, fresh] = numbers.insert({{slots[k]->body, pair.other, pair.core_a, pair.core_b}, int(members.size())});
            if (fresh) {
                members.emplace_back();
                pairs.push_back({slots[k]->body,
                                 pair.other,
                                 slots[k]->number,
                                 0,
                                 0,
                                 {pair.cores[0], pair.cores[1]},
                                 {pair.cores[0]->extent + pair.cores[0]->radius, pair.cores[1]->extent + pair.cores[1]->radius}});
            }
            members[at->second].push_back(int(k));
        }
        for (size_t p = 0; p < pairs.size(); ++p) {
            pairs[p].first = int32_t(term.size()), pairs[p].count = int32_t(members[p].size());
            for (const int k : members[p]) term.push_back(m.pairs[slots[k]->pair].shape_a), place.push_back(k);
        }
    }
    int64_t size() const { return int64_t(term.size()); }  // slots of all pairs
};

}  // namespace torchdojo
