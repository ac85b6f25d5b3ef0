// Bodies, frames and contacts as sensors read them, with the gradients that sensors add to each.
//
// Vectors are in world axes unless they say otherwise. `by_turn` is the gradient by a rotation vector in world axes, in front of the
// orientation: a vector r that turns with the body changes by φ × r, so that a gradient g of r adds r × g.
#pragma once

#include "elements/joint_motion.hpp"

namespace torchdojo {

template <class T>
struct SensedBody {
    MovingBody<T> now = MovingBody<T>::world(), after = now;  // poses alone
    Vec3<T> v{}, omega{}, spin{};                // angular velocity in axes of the body, and in world axes
    Vec3<T> linear{}, alpha{}, turning{};        // (v⁺ − v)/h, (ω⁺ − ω)/h in axes of the body, and in world axes
    Vec3<T> couple{}, force{}, torque{};         // joints load the body; `couple` in its axes, `torque` about the origin of the world
    Vec3<T> by_v{}, by_spin{}, by_omega{}, by_linear{}, by_alpha{}, by_turning{}, by_turn{}, by_force{}, by_torque{};
    StateGradient<T> by_now{}, by_after{};       // φ in axes of the body

    void load(const T *state) {
        now.load_pose(state);
        v = load3(state + 3);
        omega = load3(state + 10);
        spin = now.pose.R * omega;
    }
    // touched: whether a contact is read, at the pose after the step.
    void load_after(const T *state, const T &inverse_h, bool touched) {
        if (touched) after.load_pose(state);
        linear = inverse_h * (load3(state + 3) - v);
        alpha = inverse_h * (load3(state + 10) - omega);
        turning = now.pose.R * alpha;
    }
    void clear() {
        by_v = by_spin = by_omega = by_linear = by_alpha = by_turning = by_turn = by_force = by_torque = Vec3<T>{};
        by_now = by_after = StateGradient<T>{};
    }
    // Completes `by_now` and `by_after`.
    void finish(const T &inverse_h) {
        const Mat3<T> &R = now.pose.R;
        by_turn = by_turn + cross(spin, by_spin) + cross(turning, by_turning);
        const Vec3<T> angular = inverse_h * (by_alpha + transposed_times(R, by_turning)), moved = inverse_h * by_linear;
        by_now.v = by_now.v + by_v - moved;
        by_now.omega = by_now.omega + by_omega + transposed_times(R, by_spin) - angular;
        by_now.phi = by_now.phi + transposed_times(R, by_turn);
        by_after.v = by_after.v + moved;
        by_after.omega = by_after.omega + angular;
    }
};

// The frame of a site.
template <class T>
struct SensedFrame {
    int body, shape;
    const double *numbers;  // `SENSED_FRAME_NUMBERS`
    Vec3<T> lever, x, v, acceleration;  // less gravity
    Quat<T> q;
    Mat3<T> R;
    Vec3<T> by_x, by_v, by_spin, by_acceleration, by_turning, by_turn;

    void place(const SensedBody<T> &carrier, const Vec3<T> &gravity) {
        const Quat<double> orientation = load4(numbers + frame::orientation);
        lever = carrier.now.pose.R * load3(numbers + frame::position);
        x = carrier.now.pose.x + lever;
        v = carrier.v + cross(carrier.spin, lever);
        acceleration = carrier.linear + cross(carrier.turning, lever) + cross(carrier.spin, cross(carrier.spin, lever)) - gravity;
        q = carrier.now.pose.q * orientation;
        const Mat3<double> turn = rotation_matrix(orientation);
        for (int k = 0; k < 3; ++k) {
            const Vec3<T> column = carrier.now.pose.R * turn.column(k);
            R.m[k] = column.x;
            R.m[3 + k] = column.y;
            R.m[6 + k] = column.z;
        }
    }
    void clear() { by_x = by_v = by_spin = by_acceleration = by_turning = by_turn = Vec3<T>{}; }
    void add_to(SensedBody<T> &carrier) const {
        const Vec3<T> swing = cross(carrier.spin, lever), inward = cross(by_acceleration, carrier.spin);
        const Vec3<T> by_lever = by_x + cross(by_v, carrier.spin) + cross(by_acceleration, carrier.turning) + cross(inward, carrier.spin);
        carrier.by_now.x = carrier.by_now.x + by_x;
        carrier.by_v = carrier.by_v + by_v;
        carrier.by_linear = carrier.by_linear + by_acceleration;
        carrier.by_spin = carrier.by_spin + by_spin + cross(lever, by_v) + cross(swing, by_acceleration) + cross(lever, inward);
        carrier.by_turning = carrier.by_turning + by_turning + cross(lever, by_acceleration);
        carrier.by_turn = carrier.by_turn + by_turn + cross(lever, by_lever);
    }
};

// The velocity of a coordinate at this configuration (`StandardJoint.velocity`): line · w, with the line of the coordinate in space.
template <class T>
struct JointLine {
    const JointTable &joint;
    SensedBody<T> &parent, &child;
    bool translates;
    Vec3<T> line, w, lever_parent, lever_child;
    T rate;

    JointLine(const JointTable &joint, const T *parameters, int coordinate, SensedBody<T> &parent, SensedBody<T> &child)
        : joint(joint), parent(parent), child(child), translates(coordinate < joint.free_t()) {
        const FreeAxes<T> axes(joint, parameters);
        line = parent.now.pose.R * (translates ? axes.translation(coordinate) : axes.offset * axes.rotation(coordinate - joint.free_t()));
        lever_child = child.now.pose.R * axes.child_anchor();
        lever_parent = child.now.pose.x + lever_child - parent.now.pose.x;
        w = translates ? child.v + cross(child.spin, lever_child) - parent.v - cross(parent.spin, lever_parent) : child.spin - parent.spin;
        rate = dot(line, w);
    }
    void add(const T &weight) {
        const Vec3<T> G = weight * line;
        parent.by_turn = parent.by_turn + weight * cross(line, w);
        if (!translates) {
            child.by_spin = child.by_spin + G;
            parent.by_spin = parent.by_spin - G;
            return;
        }
        const Vec3<T> by_parent = cross(parent.spin, G), by_child = by_parent + cross(G, child.spin);  // gradients by the levers
        child.by_v = child.by_v + G;
        parent.by_v = parent.by_v - G;
        child.by_spin = child.by_spin + cross(lever_child, G);
        parent.by_spin = parent.by_spin - cross(lever_parent, G);
        child.by_now.x = child.by_now.x + by_parent;
        parent.by_now.x = parent.by_now.x - by_parent;
        child.by_turn = child.by_turn + cross(lever_child, by_child);
    }
};

// A contact of a sphere with a half-space of the world: its place after the step, and its mean force on the body.
template <class T>
struct SensedContact {
    const ContactTable *table;
    int impulse;  // the place of its first impulse
    Vec3<T> normal, place, push, by_place, by_push;

    // Calls f(place among the impulses, direction of its force).
    template <class F>
    void each_direction(const T *parameters, F &&f) const {
        const T *p = parameters + table->parameters;
        f(impulse, normal);
        const Vec3<T> t1 = load3(p + parameter::tangents), t2 = load3(p + parameter::tangents + 3);
        const int first = impulse + table->cone + 1;
        if (table->is_pyramid()) {
            for (int i = 0; i < table->facets; ++i) f(first + i, table->direction_x(i) * t1 + table->direction_y(i) * t2);
        } else if (table->friction_size()) {
            f(first, t1);
            f(first + 1, t2);
        }
    }
    void load(const T *parameters, const T *impulses, const SensedBody<T> &carrier, const T &inverse_period) {
        const T *p = parameters + table->parameters;
        normal = load3(p + parameter::normal);
        place = carrier.after.pose.x + carrier.after.pose.R * load3(p + parameter::point) - p[parameter::radius] * normal;
        push = Vec3<T>{};
        each_direction(parameters, [&](int k, const Vec3<T> &direction) { push = push + (inverse_period * impulses[k]) * direction; });
    }
    void add_to(const T *parameters, SensedBody<T> &carrier, const T &inverse_period, T *by_impulses) const {
        const Vec3<T> point = load3(parameters + table->parameters + parameter::point);
        carrier.by_after.x = carrier.by_after.x + by_place;
        carrier.by_after.phi = carrier.by_after.phi + cross(point, transposed_times(carrier.after.pose.R, by_place));
        each_direction(parameters, [&](int k, const Vec3<T> &direction) { by_impulses[k] += inverse_period * dot(direction, by_push); });
    }
};

// Whether a ray from `start` along `way` meets the surface of a solid at the origin (`distances` in sensors/rays.py).
template <class T>
struct Ray {
    using M = Mask<T>;
    Vec3<T> start, way;

    M meets(int shape, const double *size) const {
        if (shape == zones::sphere) return larger_root(dot(way, way), dot(start, way), dot(start, start) - size[0] * size[0]);
        if (shape == zones::ellipsoid) {
            const Vec3<T> s = scaled(start, size), w = scaled(way, size);
            return larger_root(dot(w, w), dot(s, w), dot(s, s) - 1.0);
        }
        if (shape == zones::box) return box(size);
        const double radius = size[0], half = size[1];
        const T a = way.x * way.x + way.y * way.y, b = start.x * way.x + start.y * way.y;
        const T c = start.x * start.x + start.y * start.y - radius * radius;
        M met = roots(a, b, c, [&](const T &t) { return size_of(start.z + t * way.z) <= broadcast<T>(half); });
        for (const double end : {-half, half}) {
            if (shape == zones::capsule) {
                const Vec3<T> s{start.x, start.y, start.z - end};
                const auto outward = [&](const T &t) { return (end < 0 ? -1.0 : 1.0) * (s.z + t * way.z) >= T{}; };
                met = either(met, roots(dot(way, way), dot(s, way), dot(s, s) - radius * radius, outward));
                continue;
            }
            const M flat = size_of(way.z) < broadcast<T>(1e-15);
            const T t = (end - start.z) / select(flat, broadcast<T>(1.0), way.z), x = start.x + t * way.x, y = start.y + t * way.y;
            met = either(met, both(negate(flat), both(t >= T{}, x * x + y * y <= broadcast<T>(radius * radius))));
        }
        return met;
    }

private:
    static M both(const M &a, const M &b) { return select_mask(a, b, M{}); }
    static M either(const M &a, const M &b) { return negate(both(negate(a), negate(b))); }
    static T size_of(const T &x) { return select(x < T{}, -x, x); }
    static Vec3<T> scaled(const Vec3<T> &v, const double *size) { return {v.x / size[0], v.y / size[1], v.z / size[2]}; }

    // Whether a root t >= 0 of a t² + 2 b t + c is accepted.
    template <class F>
    static M roots(const T &a, const T &b, const T &c, F &&accepts) {
        const T square = b * b - a * c, one = broadcast<T>(1.0);
        const M real = both(square > T{}, a > broadcast<T>(1e-30));
        const T root = sqrt(select(real, square, one)), safe = select(real, a, one);
        M met{};
        for (const T &t : {T((-b - root) / safe), T((-b + root) / safe)}) met = either(met, both(t >= T{}, accepts(t)));
        return both(real, met);
    }
    static M larger_root(const T &a, const T &b, const T &c) {
        return roots(a, b, c, [](const T &t) { return t >= T{}; });
    }
    M box(const double *half) const {
        T enter = broadcast<T>(-std::numeric_limits<double>::infinity()), leave = -enter;
        M within = negate(M{});
        for (int k = 0; k < 3; ++k) {
            const M flat = size_of(way[k]) < broadcast<T>(1e-15);
            const T safe = select(flat, broadcast<T>(1.0), way[k]), first = (-half[k] - start[k]) / safe,
                    second = (half[k] - start[k]) / safe;
            const T low = select(first < second, first, second), high = select(first < second, second, first);
            within = both(within, either(negate(flat), size_of(start[k]) <= broadcast<T>(half[k])));
            enter = select(both(negate(flat), low > enter), low, enter);
            leave = select(both(negate(flat), high < leave), high, leave);
        }
        return both(within, both(enter <= leave, leave >= T{}));
    }
};

}  // namespace torchdojo
