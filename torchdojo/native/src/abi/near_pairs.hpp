// The pairs of convex shapes of a mechanism that touch at near terms, with their slots (near_pairs of torchdojo/engine/near_set.py).
#pragma once

#include <algorithm>
#include <array>
#include <map>

#include "abi/mechanism.hpp"
#include "base/near_search.hpp"

namespace torchdojo {

struct NearPairs {
    struct Pair {
        int32_t body, other, contact;  // contact: the first one, as declared
        int32_t first, count;          // of its slots
        const Polytope *cores[2];
        double extent[2];  // radii of balls about the origins of the bodies that hold the shapes
    };
    struct Shape {
        int32_t body;
        const Polytope *core;
        double extent;
    };
    std::vector<Pair> pairs;    // in the order of their first contacts
    std::vector<int32_t> term;  // of each slot: where its term stands among the parameters. Slots of a pair follow one another
    std::vector<int32_t> place;  // of each slot: its number among the near contacts as declared
    std::vector<Shape> shapes;  // of the pairs, each once
    std::vector<int32_t> shape_a, shape_b;  // of each pair: the numbers of its shapes

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
            shape_a.push_back(number_of({pairs[p].body, pairs[p].cores[0], pairs[p].extent[0]}));
            shape_b.push_back(number_of({pairs[p].other, pairs[p].cores[1], pairs[p].extent[1]}));
        }
    }
    int64_t size() const { return int64_t(term.size()); }  // slots of all pairs

private:
    int32_t number_of(const Shape &shape) {
        for (size_t i = 0; i < shapes.size(); ++i)
            if (shapes[i].body == shape.body && shapes[i].core == shape.core) return int32_t(i);
        shapes.push_back(shape);
        return int32_t(shapes.size()) - 1;
    }
};

// Which pairs may be near in a state: those whose balls meet. All pairs are looked at, several at a time.
class BroadPhase {
public:
    std::vector<Vec3<double>> x;  // poses of bodies; the world is the last one
    std::vector<Mat3<double>> R;
    std::vector<double> moves;  // of each body in a step: how far it goes, and how far it turns

    BroadPhase(const NearPairs &pairs, int bodies)
        : x(bodies + 1), R(bodies + 1), moves(2 * (bodies + 1)), pairs(pairs), ball(4 * pairs.shapes.size()), meets(pairs.pairs.size()) {
        x[bodies] = {0, 0, 0}, R[bodies] = {{1, 0, 0, 0, 1, 0, 0, 0, 1}};
    }

    // h: time for which bodies go on as in the state.
    void place(const double *state, double h) {
        const auto length = [](const Vec3<double> &a) { return std::sqrt(dot(a, a)); };
        const int bodies = int(x.size()) - 1;
        for (int i = 0; i < bodies; ++i, state += state_size) {
            x[i] = load3(state), R[i] = rotation_matrix(load4(state + 6));
            moves[2 * i] = h * length(load3(state + 3)), moves[2 * i + 1] = h * length(load3(state + 10));
        }
        // Crossings of edges may be beyond the ends of both of them.
        constexpr double margin = 0.5 * constant::near_terms::reach + constant::near_terms::ends;
        const size_t count = pairs.shapes.size();
        for (size_t i = 0; i < count; ++i) {
            const NearPairs::Shape &shape = pairs.shapes[i];
            const Vec3<double> center = x[shape.body] + R[shape.body] * shape.core->center;
            const double *move = &moves[2 * shape.body];
            ball[i] = center.x, ball[count + i] = center.y, ball[2 * count + i] = center.z;
            ball[3 * count + i] = shape.core->size + shape.core->radius + move[0] + shape.extent * move[1] + margin;
        }
        const double *bx = ball.data(), *by = bx + count, *bz = by + count, *radius = bz + count;
        const int32_t *a = pairs.shape_a.data(), *b = pairs.shape_b.data();
        double *apart = meets.data();
        const int64_t size = int64_t(meets.size());
        for (int64_t k = 0; k < size; ++k) {
            const double dx = bx[a[k]] - bx[b[k]], dy = by[a[k]] - by[b[k]], dz = bz[a[k]] - bz[b[k]], r = radius[a[k]] + radius[b[k]];
            apart[k] = dx * dx + dy * dy + dz * dz - r * r;
        }
    }
    bool may_be_near(int64_t pair) const { return meets[pair] <= 0; }  // false where numbers are not finite

private:
    const NearPairs &pairs;
    std::vector<double> ball, meets;  // centers and radii of shapes; of pairs: below zero where their balls meet
};

}  // namespace torchdojo
