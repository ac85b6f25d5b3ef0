// Processor time of the search for near terms: broad phase, nearest points (GJK), and all terms of a pair. bench_near_contacts.py runs it.
//
// Reads polytopes (native/polytopes.py) from a file: boxes, then hulls.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <time.h>

#include "abi/near_pairs.hpp"

using namespace torchdojo;

namespace {

double seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Microseconds of f(k), the least of five rounds.
template <class F>
double least(int rounds, F &&f) {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
        const double begin = seconds();
        for (int k = 0; k < rounds; ++k) f(k);
        best = std::fmin(best, (seconds() - begin) / rounds);
    }
    return 1e6 * best;
}

// A pair one above the other, `gap` [m] apart.
void time_pair(const char *label, const Polytope &core, double tilt, double gap) {
    const double scale = 1 / std::sqrt(1 + 1.53 * tilt * tilt), q[4] = {scale, scale * tilt, 0.7 * scale * tilt, 0.2 * scale * tilt};
    Vec3<double> x[2] = {{0, 0, 0}, {0, 0, 0}};
    const Mat3<double> R[2] = {rotation_matrix(load4(q)), {{1, 0, 0, 0, 1, 0, 0, 0, 1}}};
    double low = 0, high = 4 * core.extent;
    for (int k = 0; k < 50; ++k) {
        x[0].z = 0.5 * (low + high);
        NearStart start;
        const NearestPoints points(core, core, relative_pose(x, R), 1e9, start);
        (points.overlap || std::sqrt(dot(points.apart, points.apart)) < 2 * core.radius ? low : high) = x[0].z;
    }
    NearSearch search;
    NearStart start;
    double terms[3 * 16], gaps[16];
    int64_t count = 0;
    const auto move = [&](int k) { x[0].x = 1e-6 * (k % 100), x[0].z = high + gap; };
    const double all = least(5000, [&](int k) { move(k), count = search(core, core, x, R, 1e-3, 16, terms, gaps, start); });
    const double points = least(5000, [&](int k) { move(k), NearestPoints(core, core, relative_pose(x, R), 1e9, start); });
    std::printf("%s, tilt %.1f, %.1f mm apart: %d terms in %.2f us, nearest points in %.2f us\n", label, tilt, 1e3 * gap, int(count), all,
                points);
}

void time_broad_phase(const Polytope &core, int bodies) {
    NearPairs pairs;
    const double extent = core.extent + core.radius;
    for (int i = 0; i < bodies; ++i) {
        pairs.shapes.push_back({i, &core, extent, core.radius});
        if (i) pairs.runs.push_back({int32_t(pairs.pairs.size()), i, 0, i});
        for (int j = 0; j < i; ++j) pairs.pairs.push_back({i, j, 0, 0, 0, {&core, &core}, {extent, extent}, 2 * core.radius, false});
    }
    BroadPhase broad(pairs, bodies);
    std::mt19937 generator(0);
    std::normal_distribution<double> normal;
    std::vector<double> z(size_t(state_size * bodies));
    for (double &number : z) number = normal(generator);
    for (int i = 0; i < bodies; ++i) z[size_t(state_size * i + 6)] = 1, std::fill_n(&z[size_t(state_size * i + 7)], 3, 0.0);
    int64_t near = 0;
    const double all = least(1000, [&](int) {
        broad.place(z.data(), 0.005);
        broad.each(nullptr, [&](size_t) { ++near; });
    });
    std::printf("broad phase of %d pairs: %.2f us\n", int(pairs.pairs.size()), all);
}

}  // namespace

int main(int, char **arguments) {
    std::ifstream file(arguments[1], std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<double> numbers(bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    std::vector<Polytope> cores;
    const double *p = numbers.data();
    for (int count = int(*p++); count; --count) {
        Polytope core{int(p[0]), int(p[1]), int(p[2]), p[3], p + 5};  // no ellipsoid, as p[4] would say
        core.face = core.vertex + 3 * core.vertices, core.edge = core.face + 4 * core.faces;
        p = core.edge + Polytope::edge_size * core.edges;
        core.prepare();
        cores.push_back(std::move(core));
    }
    time_broad_phase(cores[0], 78);
    for (const double tilt : {0.0, 0.3})
        for (const double gap : {2e-4, 1e-2}) time_pair("boxes", cores[0], tilt, gap), time_pair("hulls of 64 points", cores[1], tilt, gap);
}
