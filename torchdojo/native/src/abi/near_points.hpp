// Which points are far from their half-spaces in a step, so that the solver may leave them out (elements/far_points.hpp).
#pragma once

#include "abi/slots.hpp"
#include "base/interleave.hpp"

namespace torchdojo {

class NearPoints {
public:
    PartCall call;  // for the solver: the points, and their numbers where all environments share them

    // p: parameters of the first environment. stride: from one environment to the next, 0 if they share them.
    NearPoints(const Slots &slots, const MechanismTable &m, const double *p, int64_t stride, int64_t environments)
        : slots(slots), count(slots.size() - slots.size_near()), padded(count + pack_lanes), shared(!stride) {
        if (!count) return;
        const int64_t rows = shared ? 1 : environments;
        values.resize(rows * PartCall::size * count);
        columns.resize(rows * PartCall::size * padded);
        for (int64_t row = 0; row < rows; ++row, p += stride)
            for (int64_t k = 0; k < count; ++k)
                for (int i = 0; i < std::min<int>(slot(k).runs[2].count, PartCall::size); ++i) {
                    const double number = p[slot(k).runs[2].from + i];
                    values[(row * count + k) * PartCall::size + i] = number;
                    columns[(row * PartCall::size + i) * padded + k] = number;
                }
        for (int64_t k = 0; k < count; ++k) {
            const ContactTable &contact = m.contacts[slot(k).contact];
            const bool rubs = contact.friction != ContactTable::frictionless;
            const bool goes_on = k && runs.back().body == contact.body && runs.back().rubs == rubs && same_plane(k, rows);
            if (!goes_on) runs.push_back({contact.body, rubs, k, k});
            runs.back().end = k + 1;
            call.points.push_back({contact.body, rubs, goes_on});
            places.push_back({slot(k).runs[0].from, slot(k).runs[1].from, slot(k).runs[3].from});
        }
        if (shared) call.values = values.data();
    }

    int64_t size() const { return count; }

    // Puts the ranks of points into `near` that a step of h may take closer than the margin, if their bodies go on as before it. row: of the
    // parameters p, which count environments. x, R: its poses. moves: distance and angle of each body's motion.
    void find(int64_t row, const double *p, const Vec3<double> *x, const Mat3<double> *R, const double *moves, double h, double kappa,
              std::vector<int32_t> &near) const {
        near.clear();
        for (const Run &run : runs)
            each_near(row, run, x, R, margin(run, p, h, kappa) + moves[2 * run.body], moves[2 * run.body + 1],
                      [&](int32_t rank) { near.push_back(rank); });
    }

    // Adds points that were left out of a step, where it ends so close that the closed form does not hold. Returns whether there are some.
    bool add_missing(int64_t row, const double *p, const Vec3<double> *x, const Mat3<double> *R, double h, double kappa,
                     std::vector<int32_t> &near) const {
        const size_t before = near.size();
        for (const Run &run : runs)
            each_near(row, run, x, R, 0.5 * margin(run, p, h, kappa), 0.0, [&](int32_t rank) {
                if (!std::binary_search(near.begin(), near.begin() + int64_t(before), rank)) near.push_back(rank);
            });
        std::sort(near.begin(), near.end());
        return near.size() > before;
    }

    // The numbers of an environment as its points have them in the call of a part.
    const double *numbers(int64_t row) const { return &values[row * PartCall::size * count]; }

    // Writes impulses and slacks of far points. weights: 1 where they are far. state: at the end of a step that is solved; null: all are zero.
    void keep(int64_t row, const double *p, const double *weights, const double *state, double h, double kappa, double *w,
              double *impulses) const {
        const double *column = column_of(row);
        const Pack inverse_h = broadcast<Pack>(1.0 / h);
        const std::vector<double> nothing(state ? 0 : state_size);
        for (const Run &run : runs) {
            const double *end = state ? state + state_size * run.body : nothing.data();
            const Mat3<double> R = rotation_matrix(load4(end + 6));
            const FarBody<Pack> body{spread(load3(end)), spread(load3(end + 3)), spread(load3(end + 10)),
                                     spread(R),          broadcast<Pack>(kappa), broadcast<Pack>(0.5 * margin(run, p, h, kappa))};
            const SeenPlane<Pack> plane([&](int i) { return broadcast<Pack>(column[i * padded + run.first]); }, body);
            for (int64_t start = run.first; start < run.end; start += pack_lanes) {
                const int used = int(std::min<int64_t>(pack_lanes, run.end - start));
                if (std::none_of(weights + start, weights + start + used, [](double weight) { return weight != 0.0; })) continue;
                double numbers[pack_lanes][8] = {}, *rows[pack_lanes];
                for (int lane = 0; lane < pack_lanes; ++lane) rows[lane] = numbers[lane];
                if (state) {
                    const FarImpulse<Pack> point([&](int i) { return load(column + i * padded + start); }, plane, run.rubs, inverse_h);
                    const Pack all[8] = {point.gamma, point.xi.x, point.xi.y, point.xi.z, point.gap, point.eta.x, point.eta.y, point.eta.z};
                    separate(all, 8, rows, used);
                }
                for (int lane = 0; lane < used; ++lane) {
                    if (weights[start + lane] == 0.0) continue;
                    const Place &place = places[start + lane];
                    const auto put = [&](auto size) {
                        constexpr size_t bytes = decltype(size)::value * sizeof(double);
                        std::memcpy(w + place.impulse, numbers[lane], bytes);
                        std::memcpy(w + place.slack, numbers[lane] + 4, bytes);
                        std::memcpy(impulses + place.output, numbers[lane], bytes);
                    };
                    if (run.rubs) put(std::integral_constant<int, 4>());
                    else put(std::integral_constant<int, 1>());
                }
            }
        }
    }

private:
    // Points of a body that touch one half-space, all with friction or all without.
    struct Run {
        int32_t body;
        bool rubs;
        int64_t first, end;
    };
    const Slots &slots;
    const int64_t count, padded;  // points, and numbers in a column of them
    const bool shared;
    std::vector<Run> runs;
    struct Place {
        int32_t impulse, slack, output;
    };
    std::vector<Place> places;  // of each point, in a solution and among the impulses
    std::vector<double> values, columns;  // numbers of the points of each environment: all of one point together, and each of all points

    const Slots::Slot &slot(int64_t point) const { return slots.ranked(slots.size_near() + int32_t(point)); }
    const double *column_of(int64_t row) const { return columns.data() + (shared ? 0 : row * PartCall::size * padded); }

    // Whether a point has the half-space of the point before, in all rows.
    bool same_plane(int64_t k, int64_t rows) const {
        for (int64_t row = 0; row < rows; ++row) {
            const double *now = &values[(row * count + k) * PartCall::size], *before = now - PartCall::size;
            if (!std::equal(now + parameter::normal, now + parameter::tangents + 6, before + parameter::normal)) return false;
        }
        return true;
    }

    static Pack load(const double *p) {
        Pack pack;
        std::memcpy(&pack, p, sizeof pack);
        return pack;
    }
    static Vec3<Pack> spread(const Vec3<double> &v) { return {broadcast<Pack>(v.x), broadcast<Pack>(v.y), broadcast<Pack>(v.z)}; }
    static Mat3<Pack> spread(const Mat3<double> &R) {
        Mat3<Pack> result;
        for (int k = 0; k < 9; ++k) result.m[k] = broadcast<Pack>(R.m[k]);
        return result;
    }
    static double margin(const Run &run, const double *p, double h, double kappa) {
        return far_margin(kappa, h, p[parameter::bodies + parameter::body_size * run.body + parameter::mass]);
    }

    // Calls f(rank) for points with a gap below width + turn |p|, and for those with numbers that are not finite.
    template <class F>
    void each_near(int64_t row, const Run &run, const Vec3<double> *x, const Mat3<double> *R, double width, double turn, F &&f) const {
        const double *column = column_of(row), *plane = column + parameter::normal * padded + run.first;
        const Vec3<double> normal{plane[0], plane[padded], plane[2 * padded]};
        const Vec3<Pack> up = spread(transposed_times(R[run.body], normal));
        const double height = dot(normal, x[run.body]) - width;
        for (int64_t start = run.first; start < run.end; start += pack_lanes) {
            const auto number = [&](int i) { return load(column + i * padded + start); };
            const Vec3<Pack> at{number(parameter::point), number(parameter::point + 1), number(parameter::point + 2)};
            Pack gap = dot(up, at) - number(parameter::offset) - number(parameter::radius) + height - turn * root(dot(at, at));
            gap += 0.0 * (number(parameter::friction) + number(parameter::tangents));
            for (int lane = 0; lane < pack_lanes && start + lane < run.end; ++lane)
                if (!(gap[lane] > 0.0)) f(slots.size_near() + int32_t(start) + lane);
        }
    }
};

}  // namespace torchdojo
