// Which points are far from their half-spaces in a step, so that the solver may leave them out (elements/far_points.hpp).
#pragma once

#include "abi/slots.hpp"

namespace torchdojo {

class NearPoints {
public:
    NearPoints(const Slots &slots, const MechanismTable &m) {
        for (int32_t rank = slots.size_near(); rank < slots.size(); ++rank) {
            Body &body = bodies.emplace_back();
            body.rank = rank;
            for (const int32_t c : slots.points(rank)) body.points.push_back(m.contacts[c].parameters);
            body.number = m.contacts[slots.points(rank)[0]].body;
        }
    }

    // Puts the ranks of bodies into `near` some point of which a step of h may take closer than the margin, if they go on as before it.
    // p: the parameters of the environment. x, R: its poses. moves: distance and angle of each body's motion.
    void find(const double *p, const Vec3<double> *x, const Mat3<double> *R, const double *moves, double h, double kappa,
              std::vector<int32_t> &near) const {
        near.clear();
        for (const Body &body : bodies) {
            const double margin = body.margin(p, h, kappa) + moves[2 * body.number], turn = moves[2 * body.number + 1];
            const auto is_near = [&](int32_t point) {
                const Vec3<double> at = load3(p + point + parameter::point);
                return !(gap(p + point, x[body.number], R[body.number], at) > margin + turn * std::sqrt(dot(at, at)));  // also NaN
            };
            if (std::any_of(body.points.begin(), body.points.end(), is_near)) near.push_back(body.rank);
        }
    }

    // Adds bodies whose points were left out of a step, where it ends so close that the closed form does not hold. Returns whether there are
    // some.
    bool add_missing(const double *p, const Vec3<double> *x, const Mat3<double> *R, double h, double kappa,
                     std::vector<int32_t> &near) const {
        const size_t before = near.size();
        for (const Body &body : bodies) {
            if (std::binary_search(near.begin(), near.begin() + int64_t(before), body.rank)) continue;
            const double margin = 0.5 * body.margin(p, h, kappa);
            const auto is_near = [&](int32_t point) {
                return !(gap(p + point, x[body.number], R[body.number], load3(p + point + parameter::point)) > margin);
            };
            if (std::any_of(body.points.begin(), body.points.end(), is_near)) near.push_back(body.rank);
        }
        std::sort(near.begin(), near.end());
        return near.size() > before;
    }

private:
    struct Body {
        int32_t rank, number;
        std::vector<int32_t> points;  // their places among the parameters

        double margin(const double *p, double h, double kappa) const {
            return far_margin(kappa, h, p[parameter::bodies + parameter::body_size * number + parameter::mass]);
        }
    };
    std::vector<Body> bodies;  // with points

    static double gap(const double *p, const Vec3<double> &x, const Mat3<double> &R, const Vec3<double> &at) {
        return dot(load3(p + parameter::normal), x + R * at) - p[parameter::offset] - p[parameter::radius];
    }
};

}  // namespace torchdojo
