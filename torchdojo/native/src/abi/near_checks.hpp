// Checks whether the solution of a step is the motion. Large steps have other solutions, too: with bodies inside or beyond each other, or with
// energy from nothing (engine/near_overlap.py, and `_unsound` of engine/near_set.py).
#pragma once

#include "abi/near_pairs.hpp"

namespace torchdojo {

inline double kinetic_energy(const MechanismTable &m, const double *p, const double *state) {
    double sum = 0.0;
    for (int i = 0; i < m.num_bodies; ++i) {
        const double *body = p + parameter::bodies + parameter::body_size * i;
        const Vec3<double> v = load3(state + state_size * i + 3), omega = load3(state + state_size * i + 10);
        sum += 0.5 * (body[parameter::mass] * dot(v, v) + dot(omega, load33(body + parameter::inertia) * omega));
    }
    return sum;
}

// The most kinetic energy that free bodies have after a step of h. leaving: the speed at which they may leave an overlap.
inline double most_energy(const MechanismTable &m, const double *p, const double *state, double h, double leaving) {
    double mass = 0.0;
    for (int i = 0; i < m.num_bodies; ++i) mass += p[parameter::bodies + parameter::body_size * i + parameter::mass];
    const Vec3<double> g = load3(p + parameter::gravity);
    return 4 * kinetic_energy(m, p, state) + mass * (8 * dot(g, g) * h * h + 2 * leaving * leaving + 1e-3);
}

// Lower bounds of the distances of cores, in the states of an environment: what a search found, less what bodies have moved since then.
class Distances {
public:
    Distances(const NearPairs &pairs, int num_bodies) : pairs(pairs), bounds(pairs.pairs.size(), -1.0), ways(2 * (num_bodies + 1)) {}

    // Takes up a state. A point of a body moves by at most the distance of its origins and its own distance from it times a chord of rotation.
    void move_to(const double *state) {
        if (!last.empty() && !std::memcmp(last.data(), state, last.size() * sizeof(double))) return;
        last.resize((ways.size() / 2 - 1) * state_size);
        for (size_t i = 0; 2 * i + 2 < ways.size(); ++i) {
            const double *now = state + state_size * i, *before = &last[state_size * i];
            const Vec3<double> move = load3(now) - load3(before);
            double near = 0.0, turned = 0.0;
            for (int k = 6; k < 10; ++k) {
                near += (now[k] - before[k]) * (now[k] - before[k]);
                turned += (now[k] + before[k]) * (now[k] + before[k]);
            }
            ways[2 * i] += std::sqrt(dot(move, move));
            ways[2 * i + 1] += 2 * std::sqrt(std::min(near, turned));
            std::copy_n(now, state_size, &last[state_size * i]);
        }
    }

    double apart(size_t pair) const { return bounds[pair] - moved(pair); }
    void keep(size_t pair, double apart) { bounds[pair] = apart > 0 ? apart + moved(pair) - rounding : -1.0; }

private:
    static constexpr double rounding = 1e-9;  // [m], of sums of ways
    const NearPairs &pairs;
    std::vector<double> bounds, ways, last;  // ways: distances and chords of rotation of each body, and of the world; last: the state

    double moved(size_t number) const {
        const NearPairs::Pair &pair = pairs.pairs[number];
        const double *a = &ways[2 * pair.body], *b = &ways[2 * pair.other];
        return a[0] + pair.extent[0] * a[1] + b[0] + pair.extent[1] * b[1];
    }
};

class PathCheck {
public:
    PathCheck(const NearPairs &pairs, int num_bodies) : pairs(pairs), num_bodies(num_bodies) {}

    // Whether the cores of a pair overlap after a step of h or on its way, and did not before: `pierced` of near_overlap.py. broad: placed at
    // the end, with the motions of the step. starts: corners of each pair that were near. apart(pair): a lower bound of the distance of its
    // cores at the end.
    template <class F>
    bool pierces(const double *start, const double *end, double h, const BroadPhase &broad, const NearStart *starts, F &&apart) const {
        bool result = false;
        broad.each(nullptr, [&](size_t k) {
            if (result) return;
            // Cores that end farther apart than they have moved were apart all the way.
            const NearPairs::Pair &pair = pairs.pairs[k];
            const double *a = &broad.moves[2 * pair.body], *b = &broad.moves[2 * pair.other];
            const double moved = a[0] + pair.extent[0] * a[1] + b[0] + pair.extent[1] * b[1];
            if (apart(k) > margin_of(pair) + moved) return;
            const Way ways[2] = {way(pair.body, start, end, h), way(pair.other, start, end, h)};
            result = pierces(pair, starts[k], ways);
        });
        return result;
    }

private:
    struct Way {
        Vec3<double> x, move, turn;
        Quat<double> q;
        double length;  // length of `turn`
    };
    const NearPairs &pairs;
    const int num_bodies;

    static double margin_of(const NearPairs::Pair &pair) { return 0.5 * (pair.cores[0]->radius + pair.cores[1]->radius); }

    // The motion of a body, or of the world.
    Way way(int body, const double *start, const double *end, double h) const {
        if (body == num_bodies) return {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {1, {0, 0, 0}}, 0.0};
        const double *state = start + state_size * body, *next_state = end + state_size * body;
        const Vec3<double> turn = (0.5 * h) * load3(next_state + 10);
        return {load3(state), load3(next_state) - load3(state), turn, load4(state + 6), std::sqrt(dot(turn, turn))};
    }

    bool pierces(const NearPairs::Pair &pair, NearStart near, const Way *way) const {
        const Vec3<double> relative_move = way[0].move - way[1].move;
        const double moved =
            2 * (pair.extent[0] * way[0].length + pair.extent[1] * way[1].length) + std::sqrt(dot(relative_move, relative_move));
        const double margin = margin_of(pair);
        Vec3<double> place[2];
        Mat3<double> R[2];
        const auto put = [&](double part) {
            for (int k = 0; k < 2; ++k) {
                const Vec3<double> half_turn = part * way[k].turn;
                place[k] = way[k].x + part * way[k].move;
                R[k] = rotation_matrix(way[k].q * Quat<double>{std::sqrt(std::max(0.0, 1.0 - dot(half_turn, half_turn))), half_turn});
            }
        };
        put(1.0);
        const bool smooth = pair.cores[0]->ellipsoid || pair.cores[1]->ellipsoid;
        if (smooth ? are_apart(*pair.cores[0], *pair.cores[1], place, R, margin + moved)
                   : NearestPoints(*pair.cores[0], *pair.cores[1], relative_pose(place, R), margin + moved, near).far)
            return false;
        const auto are_apart_at = [&](double part) {
            put(part);
            return are_apart(*pair.cores[0], *pair.cores[1], place, R, margin);
        };
        const int num_looks = int(std::min(double(constant::near_terms::looks), std::ceil(std::max(1.0, 2 * moved / pair.thickness))));
        for (int k = num_looks; k > 0; --k)
            if (!are_apart_at(double(k) / num_looks)) return are_apart_at(0.0);
        return false;
    }
};

}  // namespace torchdojo
