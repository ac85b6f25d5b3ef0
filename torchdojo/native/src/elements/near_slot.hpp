// The slot of two polytopes, whose term is another one in each lane, and poses with derivatives, of which pairs of shapes are made.
#pragma once

#include "base/dual.hpp"
#include "base/near_term.hpp"
#include "elements/data.hpp"

namespace torchdojo {

template <class S, class T>
TD_INLINE Vec3<S> lift(const Vec3<T> &a) {
    return {S(a.x), S(a.y), S(a.z)};
}
template <class S, class T>
TD_INLINE Mat3<S> lift(const Mat3<T> &a) {
    Mat3<S> result;
    for (int k = 0; k < 9; ++k) result.m[k] = S(a.m[k]);
    return result;
}
// A pose whose derivatives are numbers `first` to `first` + 5.
template <class T>
void seed(const BodyPose<T> &pose, int first, Vec3<Dual<T>> &x, Mat3<Dual<T>> &R) {
    x = lift<Dual<T>>(pose.x);
    R = lift<Dual<T>>(pose.R);
    for (int k = 0; k < 3; ++k) {
        x[k].d[first + k] = broadcast<T>(1.0);
        const int i = (k + 1) % 3, j = (k + 2) % 3;  // R [e_k]×: column i becomes column j, column j minus column i
        for (int row = 0; row < 3; ++row) {
            R.m[3 * row + i].d[first + 3 + k] = pose.R.m[3 * row + j];
            R.m[3 * row + j].d[first + 3 + k] = -pose.R.m[3 * row + i];
        }
    }
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
void put_lane(T &to, int lane, double x) {
    set(to, lane, x);
}
template <class T>
void put_lane(Dual<T> &to, int lane, const Dual<double> &x) {
    set(to.v, lane, x.v);
    for (int k = 0; k < dual_size; ++k) set(to.d[k], lane, x.d[k]);
}

// One lane of the poses of two bodies, with derivatives if they have any.
template <class D>
struct LanePoses {
    Vec3<D> x[2];
    Mat3<D> R[2];
};
template <class T>
LanePoses<double> lane_poses(const Vec3<T> &xa, const Mat3<T> &Ra, const Vec3<T> &xb, const Mat3<T> &Rb, int lane) {
    LanePoses<double> one;
    for (int k = 0; k < 3; ++k) {
        one.x[0][k] = get(xa[k], lane);
        one.x[1][k] = get(xb[k], lane);
    }
    for (int k = 0; k < 9; ++k) {
        one.R[0].m[k] = get(Ra.m[k], lane);
        one.R[1].m[k] = get(Rb.m[k], lane);
    }
    return one;
}
// Derivatives of poses are those of `seed`: to write them anew takes a fraction of the time of taking them out of the lanes. Where those of
// another kind are asked for, by numbers of shapes, poses have none.
template <class T>
LanePoses<Dual<double>> lane_poses(const Vec3<Dual<T>> &xa, const Mat3<Dual<T>> &Ra, const Vec3<Dual<T>> &xb, const Mat3<Dual<T>> &Rb,
                                   int lane) {
    const Vec3<Dual<T>> *const x[2] = {&xa, &xb};
    const Mat3<Dual<T>> *const R[2] = {&Ra, &Rb};
    LanePoses<Dual<double>> one;
    for (int i = 0; i < 2; ++i) {
        BodyPose<double> pose = {};
        for (int k = 0; k < 3; ++k) pose.x[k] = get((*x[i])[k].v, lane);
        for (int k = 0; k < 9; ++k) pose.R.m[k] = get(R[i]->m[k].v, lane);
        const bool moves = get(x[i]->x.d[6 * i], lane) != 0.0;
        if (moves) {
            seed(pose, 6 * i, one.x[i], one.R[i]);
        } else {
            one.x[i] = lift<Dual<double>>(pose.x);
            one.R[i] = lift<Dual<double>>(pose.R);
        }
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
        const LanePoses<D> poses = lane_poses(xa, Ra, xb, Rb, lane);
        const double fading = bounces ? 0.0 : number(parameter::slot::fading);
        const NearTerm<D> found = near_term<D>(*pair.cores[0], *pair.cores[1], poses.x, poses.R, term, fading);
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
