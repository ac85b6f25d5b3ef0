// The slot of two polytopes, whose term is another one in each lane, and poses with derivatives, of which pairs of shapes are made.
#pragma once

#include "base/dual.hpp"
#include "base/near_term.hpp"
#include "elements/data.hpp"

namespace torchdojo {

template <class T>
void seed(const BodyPose<T> &pose, int first, Vec3<Dual<T>> &x, Mat3<Dual<T>> &R) {
    seed(pose.x, pose.R, first, x, R);
}

// One lane of a number with its derivatives, if it has any.
template <class T>
double lane_of(const T &x, int lane) {
    return get(x, lane);
}
template <class T>
Dual<double> lane_of(const Dual<T> &x, int lane) {
    return make_dual<double>(get(x.v, lane), [&](int k) { return get(x.d[k], lane); });
}
template <class T>
bool has_derivative(const T &, int, int) {
    return false;
}
template <class T>
bool has_derivative(const Dual<T> &x, int k, int lane) {
    return get(x.d[k], lane) != 0.0;
}
template <class T>
void put_lane(T &to, int lane, double x) {
    set(to, lane, x);
}
template <class T>
void put_lane(Dual<T> &to, int lane, const Dual<double> &x) {
    set(to.v, lane, x.v);
    for (int k = 0; k < dual_size; ++k) set(to.d[k], lane, x.d[k]);
}

// One lane of the poses of two bodies. Derivatives of poses are those of `seed`, or, where those by numbers of shapes are asked for, none.
template <class S>
TwoPoses lane_poses(const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb, const Mat3<S> &Rb, int lane) {
    const Vec3<S> *const x[2] = {&xa, &xb};
    const Mat3<S> *const R[2] = {&Ra, &Rb};
    TwoPoses one;
    for (int i = 0; i < 2; ++i) {
        for (int k = 0; k < 3; ++k) one.x[i][k] = get(value((*x[i])[k]), lane);
        for (int k = 0; k < 9; ++k) one.R[i].m[k] = get(value(R[i]->m[k]), lane);
        one.moves[i] = has_derivative(x[i]->x, 6 * i, lane);
    }
    return one;
}

// The slot of two polytopes (geometry/near_terms.py), whose term is another one in each lane.
template <class T, class S, class P>
geometry::Witness<S> slot(const PairTable &pair, const Vec3<S> &xa, const Mat3<S> &Ra, const Vec3<S> &xb, const Mat3<S> &Rb,
                          const P *numbers, S &weight) {
    using D = decltype(lane_of(S(), 0));
    geometry::Witness<S> result;
    for (int lane = 0; lane < lanes<T>; ++lane) {
        const auto number = [&](int k) { return get(value(numbers[k]), lane); };
        const bool bounces = number(0) >= constant::near_terms::bouncing;
        const int term[3] = {int(number(0)) - (bounces ? constant::near_terms::bouncing : 0), int(number(1)), int(number(2))};
        if (term[0] < 0) {
            put_lane(result.distance, lane, D(2 * constant::near_terms::reach));
            put_lane(weight, lane, D(0.0));
            for (int k = 0; k < 3; ++k) {
                put_lane(result.normal[k], lane, D(k == 2 ? 1.0 : 0.0));
                put_lane(result.point[k], lane, lane_of(xa[k], lane));
            }
            continue;
        }
        const TwoPoses poses = lane_poses(xa, Ra, xb, Rb, lane);
        const double fading = bounces ? 0.0 : number(parameter::slot::fading);
        const NearTerm<D> found = near_term<D>(*pair.cores[0], *pair.cores[1], poses, term, fading);
        put_lane(result.distance, lane, found.gap);
        put_lane(weight, lane, found.weight);
        for (int k = 0; k < 3; ++k) {
            put_lane(result.normal[k], lane, found.normal[k]);
            put_lane(result.point[k], lane, found.point[k]);
        }
    }
    return result;
}

}  // namespace torchdojo
