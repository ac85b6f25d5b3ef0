// Which points are far from their half-spaces in a step, so that the solver may leave them out (elements/far_points.hpp).
#pragma once

#include "abi/slots.hpp"

namespace torchdojo {

class NearPoints {
public:
    PartCall call;  // for the solver: the points, and their numbers where all environments share them

    // p: parameters of the first environment. stride: from one environment to the next, 0 if they share them.
    NearPoints(const Slots &slots, const MechanismTable &m, const double *p, int64_t stride, int64_t environments)
        : slots(slots), count(slots.size() - slots.size_near()), padded(count + pack_lanes), shared(!stride) {
        for (int64_t k = 0; k < count; ++k) {
            const ContactTable &contact = m.contacts[slot(k).contact];
            const bool rubs = contact.friction != ContactTable::frictionless;
            if (bodies.empty() || bodies.back().number != contact.body || bodies.back().rubs != rubs)
                bodies.push_back({contact.body, rubs, k, k});
            bodies.back().end = k + 1;
            call.points.push_back({contact.body, rubs});
        }
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
        if (shared) call.values = values.data();
    }

    int64_t size() const { return count; }

    // Puts the ranks of points into `near` that a step of h may take closer than the margin, if their bodies go on as before it. row: of the
    // parameters p, which count environments. x, R: its poses. moves: distance and angle of each body's motion.
    void find(int64_t row, const double *p, const Vec3<double> *x, const Mat3<double> *R, const double *moves, double h, double kappa,
              std::vector<int32_t> &near) const {
        near.clear();
        for (const Body &body : bodies)
            each_near(row, body, x, R, margin(body, p, h, kappa) + moves[2 * body.number], moves[2 * body.number + 1],
                      [&](int32_t rank) { near.push_back(rank); });
    }

    // Adds points that were left out of a step, where it ends so close that the closed form does not hold. Returns whether there are some.
    bool add_missing(int64_t row, const double *p, const Vec3<double> *x, const Mat3<double> *R, double h, double kappa,
                     std::vector<int32_t> &near) const {
        const size_t before = near.size();
        for (const Body &body : bodies)
            each_near(row, body, x, R, 0.5 * margin(body, p, h, kappa), 0.0, [&](int32_t rank) {
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
        const double *column = columns.data() + (shared ? 0 : row * PartCall::size * padded);
        const Pack inverse_h = broadcast<Pack>(1.0 / h);
        for (const Body &body : bodies) {
            FarBody<Pack> far{};
            if (state) far = placed(body, p, state + state_size * body.number, h, kappa);
            for (int64_t start = body.first; start < body.end; start += pack_lanes) {
                const int used = int(std::min<int64_t>(pack_lanes, body.end - start));
                if (std::none_of(weights + start, weights + start + used, [](double weight) { return weight != 0.0; })) continue;
                double numbers[8][pack_lanes] = {};
                if (state) {
                    const FarImpulse<Pack> point([&](int i) { return load(column + i * padded + start); }, far, body.rubs, inverse_h);
                    const Pack all[8] = {point.gamma, point.xi.x, point.xi.y, point.xi.z, point.gap, point.eta.x, point.eta.y, point.eta.z};
                    std::memcpy(numbers, all, sizeof all);
                }
                for (int lane = 0; lane < used; ++lane) {
                    if (weights[start + lane] == 0.0) continue;
                    const Slots::Slot &one = slot(start + lane);
                    const auto put = [&](double *to, int first) {
                        for (int i = 0; i < one.runs[0].count; ++i) to[i] = numbers[first + i][lane];
                    };
                    put(w + one.runs[0].from, 0);
                    put(w + one.runs[1].from, 4);
                    put(impulses + one.runs[3].from, 0);
                }
            }
        }
    }

private:
    struct Body {
        int32_t number;
        bool rubs;
        int64_t first, end;  // its points with friction, or those without
    };
    const Slots &slots;
    const int64_t count, padded;  // points, and numbers in a column of them
    const bool shared;
    std::vector<Body> bodies;  // with points
    std::vector<double> values, columns;  // numbers of the points of each environment: all of one point together, and each of all points

    const Slots::Slot &slot(int64_t point) const { return slots.ranked(slots.size_near() + int32_t(point)); }

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

    static double mass(const Body &body, const double *p) {
        return p[parameter::bodies + parameter::body_size * body.number + parameter::mass];
    }
    static double margin(const Body &body, const double *p, double h, double kappa) { return far_margin(kappa, h, mass(body, p)); }

    static FarBody<Pack> placed(const Body &body, const double *p, const double *state, double h, double kappa) {
        const Mat3<double> R = rotation_matrix(load4(state + 6));
        return {spread(load3(state)),          spread(load3(state + 3)),
                spread(R * load3(state + 10)), spread(R),
                broadcast<Pack>(kappa),        broadcast<Pack>(0.5 * margin(body, p, h, kappa))};
    }

    // Calls f(rank) for the points of a body with a gap below width + turn |p|, and for those with numbers that are not finite.
    template <class F>
    void each_near(int64_t row, const Body &body, const Vec3<double> *x, const Mat3<double> *R, double width, double turn, F &&f) const {
        const double *column = columns.data() + (shared ? 0 : row * PartCall::size * padded);
        const Vec3<Pack> place = spread(x[body.number]);
        const Mat3<Pack> rotation = spread(R[body.number]);
        for (int64_t start = body.first; start < body.end; start += pack_lanes) {
            const auto number = [&](int i) { return load(column + i * padded + start); };
            const auto vector = [&](int i) { return Vec3<Pack>{number(i), number(i + 1), number(i + 2)}; };
            const Vec3<Pack> at = vector(parameter::point);
            Pack gap = dot(vector(parameter::normal), place + rotation * at) - number(parameter::offset) - number(parameter::radius) -
                       width - turn * root(dot(at, at));
            gap += 0.0 * (number(parameter::friction) + vector(parameter::tangents).x);
            for (int lane = 0; lane < pack_lanes && start + lane < body.end; ++lane)
                if (!(gap[lane] > 0.0)) f(slots.size_near() + int32_t(start) + lane);
        }
    }
};

}  // namespace torchdojo
