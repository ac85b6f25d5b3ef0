// The pairs of convex shapes of a mechanism that touch at near terms, with their slots (near_pairs of torchdojo/engine/near_set.py).
#pragma once

#include <algorithm>
#include <array>
#include <map>

#include "abi/mechanism.hpp"
#include "base/near_search.hpp"
#include "base/separation.hpp"

namespace torchdojo {

struct NearPairs {
    struct Pair {
        int32_t body, other, contact;  // contact: the first one, as declared
        int32_t first, count;          // its first slot, and the count of its slots
        const Polytope *cores[2];
        double extent[2];  // radii of balls about the origins of the bodies that hold the shapes
        double thickness;  // the sum of both
        bool bounces;      // whether some slot has restitution
    };
    struct Shape {
        int32_t body;
        const Polytope *core;
        double extent, thickness;
    };
    std::vector<Pair> pairs;    // in the order of their first contacts
    std::vector<int32_t> term;  // place of each slot's term among the parameters. Slots of a pair follow one another
    std::vector<int32_t> owner;  // pair of each slot
    std::vector<int32_t> impulse, output;  // places of each slot's normal impulse in a solution, and among the impulses of a step
    std::vector<char> bounces;   // whether each slot has restitution
    bool any_bounces = false;
    std::vector<int32_t> place;  // number of each slot among the near contacts as declared
    std::vector<Shape> shapes;  // shapes of the pairs, each once
    struct Run {
        int32_t pair, a, b, count;
    };
    std::vector<Run> runs;  // pairs of one shape with shapes that follow one another

    NearPairs() = default;
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
            const auto [entry, fresh] = numbers.insert({{slots[k]->body, pair.other, pair.core_a, pair.core_b}, int(members.size())});
            if (fresh) {
                members.emplace_back();
                pairs.push_back({slots[k]->body,
                                 pair.other,
                                 slots[k]->number,
                                 0,
                                 0,
                                 {pair.cores[0], pair.cores[1]},
                                 {pair.cores[0]->extent + pair.cores[0]->radius, pair.cores[1]->extent + pair.cores[1]->radius},
                                 0.0,
                                 false});
            }
            members[entry->second].push_back(int(k));
        }
        for (size_t p = 0; p < pairs.size(); ++p) {
            pairs[p].first = int32_t(term.size());
            pairs[p].count = int32_t(members[p].size());
            for (const int k : members[p]) {
                term.push_back(m.pairs[slots[k]->pair].shape_a);
                place.push_back(k);
                owner.push_back(int32_t(p));
                impulse.push_back(slots[k]->impulse);
                output.push_back(int32_t(std::find(m.impulses.begin(), m.impulses.end(), slots[k]->impulse) - m.impulses.begin()));
                bounces.push_back(slots[k]->restitution >= 0);
                pairs[p].bounces |= slots[k]->restitution >= 0;
                any_bounces |= pairs[p].bounces;
            }
            const int32_t a = number_of(pairs[p].body, pairs[p].cores[0], pairs[p].extent[0]);
            const int32_t b = number_of(pairs[p].other, pairs[p].cores[1], pairs[p].extent[1]);
            pairs[p].thickness = shapes[a].thickness + shapes[b].thickness;
            if (!runs.empty() && runs.back().a == a && runs.back().b + runs.back().count == b) ++runs.back().count;
            else runs.push_back({int32_t(p), a, b, 1});
        }
    }
    int64_t size() const { return int64_t(term.size()); }  // slots of all pairs

private:
    int32_t number_of(int32_t body, const Polytope *core, double extent) {
        for (size_t i = 0; i < shapes.size(); ++i)
            if (shapes[i].body == body && shapes[i].core == core) return int32_t(i);
        shapes.push_back({body, core, extent, thickness(*core)});
        return int32_t(shapes.size()) - 1;
    }
};

// Finds the pairs that may be near in a state: their balls meet. All pairs are looked at, several at a time.
class BroadPhase {
public:
    std::vector<Vec3<double>> x;  // poses of bodies; the world is the last one
    std::vector<Mat3<double>> R;
    std::vector<double> moves;  // distance and angle of each body's motion in a step
    double reach = constant::near_terms::reach;  // gap below which pairs are near

    BroadPhase(const NearPairs &pairs, int bodies)
        : x(bodies + 1), R(bodies + 1), moves(2 * (bodies + 1)), pairs(pairs), stride(pairs.shapes.size() + pack_lanes), ball(4 * stride),
          meets(padded(pairs.pairs.size()) + pack_lanes) {
        x[bodies] = {0, 0, 0};
        R[bodies] = {{1, 0, 0, 0, 1, 0, 0, 0, 1}};
    }

    static size_t padded(size_t pairs) { return (pairs + 7) / 8 * 8; }

    // h: time for which bodies go on as in the state.
    void place(const double *state, double h) {
        const int bodies = int(x.size()) - 1;
        for (int i = 0; i < bodies; ++i) {
            const Vec3<double> v = load3(state + state_size * i + 3), omega = load3(state + state_size * i + 10);
            moves[2 * i] = h > 0 ? h * std::sqrt(dot(v, v)) : 0.0;
            moves[2 * i + 1] = h > 0 ? h * std::sqrt(dot(omega, omega)) : 0.0;
        }
        place(state);
    }

    // Places balls that hold the shapes while bodies move by `moves`, and tests which of them meet.
    void place(const double *state) {
        const int bodies = int(x.size()) - 1;
        for (int i = 0; i < bodies; ++i, state += state_size) {
            x[i] = load3(state);
            R[i] = rotation_matrix(load4(state + 6));
        }
        // Crossings of edges may be beyond the ends of both of them.
        const double margin = 0.5 * reach + constant::near_terms::ends;
        double *bx = ball.data(), *by = bx + stride, *bz = by + stride, *radius = bz + stride;
        for (size_t i = 0; i < pairs.shapes.size(); ++i) {
            const NearPairs::Shape &shape = pairs.shapes[i];
            const Vec3<double> center = x[shape.body] + R[shape.body] * shape.core->center;
            const double *move = &moves[2 * shape.body];
            bx[i] = center.x;
            by[i] = center.y;
            bz[i] = center.z;
            radius[i] = shape.core->size + shape.core->radius + move[0] + shape.extent * move[1] + margin;
        }
        for (const NearPairs::Run &run : pairs.runs) {
            const double ax = bx[run.a], ay = by[run.a], az = bz[run.a], ar = radius[run.a];
            for (int32_t k = 0; k < run.count; k += pack_lanes) {  // lanes beyond the run belong to the next run, which comes later
                const int32_t b = run.b + k;
                const Pack dx = load(bx + b) - ax, dy = load(by + b) - ay, dz = load(bz + b) - az, r = load(radius + b) + ar;
                const PackMask near = dx * dx + dy * dy + dz * dz <= r * r;  // false where numbers are not finite
                const Bytes bytes = __builtin_convertvector(near, Bytes);
                std::memcpy(&meets[run.pair + k], &bytes, sizeof bytes);
            }
        }
        std::fill(meets.begin() + int64_t(pairs.pairs.size()), meets.end(), 0);
    }

    // Calls f(pair) for pairs that may be near and for marked pairs. marked: null, if no pair is.
    template <class F>
    void each(const uint8_t *marked, F &&f) const {
        const size_t count = pairs.pairs.size();
        for (size_t k = 0; k < count; k += 8) {
            uint64_t some, more = 0;
            std::memcpy(&some, &meets[k], 8);
            if (marked) std::memcpy(&more, marked + k, 8);
            if (!(some | more)) continue;
            for (size_t i = k; i < std::min(k + 8, count); ++i)
                if (meets[i] || (marked && marked[i])) f(i);
        }
    }
    bool may_be_near(size_t pair) const { return meets[pair] != 0; }

private:
    typedef int8_t Bytes __attribute__((vector_size(pack_lanes)));
    const NearPairs &pairs;
    const size_t stride;
    std::vector<double> ball;    // centers and radii of shapes
    std::vector<uint8_t> meets;  // whether the balls of each pair meet

    static Pack load(const double *p) {
        Pack pack;
        std::memcpy(&pack, p, sizeof pack);
        return pack;
    }
};

}  // namespace torchdojo
