// Sensors at a state and the step that starts there, and the product of a gradient with their derivative (torchdojo/sensors/ has the law).
//
// A sensor reads frames, joints, subtrees or contacts. With G = R g, the gradient of a reading y = Rᵀ w in axes of a frame is G by w, and
// G × w by a turn of the frame. Parameters and sites are held.
#pragma once

#include "base/interleave.hpp"
#include "maps/sensed.hpp"

namespace torchdojo {

template <class T>
class Sensors {
public:
    Sensors(const MechanismTable &m, const TdSensors &s)
        : mechanism(m), call(s), sensors(reinterpret_cast<const rows::Sensor *>(s.table)), parameters(m.num_parameters),
          bodies(m.num_bodies + 1), used(m.num_bodies + 1), carried(m.num_bodies), touched(m.num_bodies), states(state_size * m.num_bodies),
          reading(s.size), along(s.size), impulses(m.num_impulses), by_impulses(m.num_impulses), wrench(6 * m.num_bodies),
          by_wrench(6 * m.num_bodies) {
        const auto *frame_rows = reinterpret_cast<const rows::SensedFrame *>(s.frame_table);
        for (int64_t i = 0; i < s.frames; ++i) {
            SensedFrame<T> site{};
            site.body = frame_rows[i].body;
            site.shape = frame_rows[i].shape;
            site.numbers = s.frame_numbers + frame::size * i;
            frames.push_back(site);
            used[site.body] = 1;
        }
        for (int64_t i = 0; i < s.sensors; ++i) {
            const rows::Sensor &row = sensors[i];
            if (row.joint >= 0) used[m.joints[row.joint].parent] = used[m.joints[row.joint].child] = 1;
            const bool carries = row.kind == senses::force || row.kind == senses::torque;
            for (int body = 0; row.subtree >= 0 && body < m.num_bodies; ++body)
                if (below(row)[body]) {
                    used[body] = 1;
                    carried[body] |= carries;
                }
        }
        const auto *contact_rows = reinterpret_cast<const rows::SensedContact *>(s.contact_table);
        for (int64_t i = 0; i < s.contacts; ++i)
            for (const ContactTable &contact : m.contacts)
                if (contact.number == contact_rows[i].number && used[contact.body]) {
                    SensedContact<T> sensed{};
                    sensed.table = &contact;
                    sensed.impulse = contact_rows[i].impulse;
                    contacts.push_back(sensed);
                    touched[contact.body] = 1;
                }
        while (high > 0 && !used[high - 1]) --high;
        while (low < high && !used[low]) ++low;
    }

    void run(int64_t first, int64_t last) {
        for (int64_t start = first; start < last; start += lanes<T>) {
            if (start == first || call.parameter_stride) gather(call.parameters, call.parameter_stride, start, last, parameters);
            load(start, last);
            if (call.along) pull(start, last);
            else read(start, last);
        }
    }

private:
    const MechanismTable &mechanism;
    const TdSensors &call;
    const rows::Sensor *sensors;
    std::vector<T> parameters;
    std::vector<SensedBody<T>> bodies;  // the world is the last
    std::vector<SensedFrame<T>> frames;
    std::vector<SensedContact<T>> contacts;
    std::vector<char> used, carried, touched;  // bodies that sensors read, whose load forces carry, whose contacts are read
    int low = 0, high = mechanism.num_bodies;  // the used bodies are among these
    std::vector<T> states, reading, along, impulses, by_impulses, wrench, by_wrench;
    T inverse_period;
    Vec3<T> gravity;

    const int32_t *below(const rows::Sensor &row) const { return call.subtree_table + row.subtree * mechanism.num_bodies; }
    const T *body_numbers(int i) const { return &parameters[parameter::bodies + parameter::body_size * i]; }
    Vec3<T> magnetic() const { return {broadcast<T>(call.magnetic[0]), broadcast<T>(call.magnetic[1]), broadcast<T>(call.magnetic[2])}; }
    T mass(int i) const { return body_numbers(i)[parameter::mass]; }
    Mat3<T> inertia(int i) const { return load33(body_numbers(i) + parameter::inertia); }

    // Numbers of the environments from `start` on, the last one in all lanes behind it.
    static void gather(const double *from, int64_t stride, int64_t start, int64_t last, T *to, size_t count) {
        const double *addresses[lanes<T>];
        for (int lane = 0; lane < lanes<T>; ++lane) addresses[lane] = from + std::min(start + lane, last - 1) * stride;
        interleave(addresses, count, to);
    }
    static void gather(const double *from, int64_t stride, int64_t start, int64_t last, std::vector<T> &to) {
        gather(from, stride, start, last, to.data(), to.size());
    }
    static void scatter(const T *from, size_t count, double *to, int64_t stride, int64_t start, int64_t last) {
        double *addresses[lanes<T>];
        const int used_lanes = int(std::min<int64_t>(lanes<T>, last - start));
        for (int lane = 0; lane < lanes<T>; ++lane) addresses[lane] = to + (start + std::min(lane, used_lanes - 1)) * stride;
        separate(from, count, addresses, used_lanes);
    }

    void load(int64_t start, int64_t last) {
        const int64_t size = state_size * mechanism.num_bodies;
        inverse_period = inverse_of(double(call.repeat) * parameters[parameter::timestep]);
        gravity = load3(&parameters[parameter::gravity]);
        const auto each_state = [&](const double *from, auto &&load) {
            if (from) gather(from + state_size * low, size, start, last, states.data(), size_t(state_size * (high - low)));
            for (int i = low; from && i < high; ++i)
                if (used[i]) load(i, &states[state_size * (i - low)]);
        };
        each_state(call.z, [&](int i, const T *state) { bodies[i].load(state); });
        each_state(call.after, [&](int i, const T *state) { bodies[i].load_after(state, inverse_period, touched[i]); });
        for (SensedFrame<T> &site : frames) site.place(bodies[site.body], gravity);
        if (call.impulses) gather(call.impulses, mechanism.num_impulses, start, last, impulses);
        if (call.wrench) gather(call.wrench, 6 * mechanism.num_bodies, start, last, wrench);
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (carried[i]) weigh(i);
        for (SensedContact<T> &contact : contacts) {
            SensedBody<T> &body = bodies[contact.table->body];
            contact.load(parameters.data(), impulses.data(), body, inverse_period);
            if (carried[contact.table->body]) {
                body.force = body.force - contact.push;
                body.torque = body.torque - cross(contact.place, contact.push);
            }
        }
    }

    // The change of momentum less gravity and the given wrench.
    void weigh(int i) {
        SensedBody<T> &body = bodies[i];
        const Mat3<T> J = inertia(i);
        body.couple = J * body.alpha + cross(body.omega, J * body.omega) - load3(&wrench[6 * i + 3]);
        body.force = mass(i) * (body.linear - gravity) - load3(&wrench[6 * i]);
        body.torque = body.now.pose.R * body.couple + cross(body.now.pose.x, body.force);
    }

    // -- values --------------------------------------------------------------------------------------------------------------------------

    void read(int64_t start, int64_t last) {
        for (int64_t i = 0; i < call.sensors; ++i) {
            T y[4];
            const int size = value(sensors[i], y);
            const double *p = call.numbers + sensor::size * i;
            for (int k = 0; k < size; ++k) {
                const T shaped = p[sensor::scale] * y[k] + p[sensor::offset], low = broadcast<T>(p[sensor::low]);
                const T capped = select(shaped > p[sensor::high], broadcast<T>(p[sensor::high]), shaped);
                reading[sensors[i].place + k] = select(capped < low, low, capped);
            }
        }
        scatter(reading.data(), reading.size(), call.out, call.size, start, last);
    }

    // Writes the numbers of a sensor, and gives their count.
    int value(const rows::Sensor &row, T *y) {
        const SensedFrame<T> *site = row.frame < 0 ? nullptr : &frames[row.frame];
        const SensedFrame<T> *other = row.reference < 0 ? nullptr : &frames[row.reference];
        const auto seen = [&](const SensedFrame<T> *from, const Vec3<T> &w) {
            store3(y, from ? transposed_times(from->R, w) : w);
            return 3;
        };
        const auto single = [&](const T &number) {
            y[0] = number;
            return 1;
        };
        switch (row.kind) {
            case senses::frame_position: return seen(other, other ? site->x - other->x : site->x);
            case senses::frame_quaternion: {
                const Quat<T> q = other ? conjugate(other->q) * site->q : site->q;
                y[0] = q.w;
                store3(y + 1, q.v);
                return 4;
            }
            case senses::frame_x_axis: return seen(other, site->R.column(0));
            case senses::frame_y_axis: return seen(other, site->R.column(1));
            case senses::frame_z_axis: return seen(other, site->R.column(2));
            case senses::frame_linear_velocity:
                return seen(other, other ? site->v - other->v - cross(spin(other), site->x - other->x) : site->v);
            case senses::frame_angular_velocity: return seen(other, other ? spin(site) - spin(other) : spin(site));
            case senses::frame_linear_acceleration: return seen(nullptr, site->acceleration);
            case senses::frame_angular_acceleration: return seen(nullptr, bodies[site->body].turning);
            case senses::gyro: return seen(site, spin(site));
            case senses::velocimeter: return seen(site, site->v);
            case senses::accelerometer: return seen(site, site->acceleration);
            case senses::magnetometer: return seen(site, magnetic());
            case senses::force:
            case senses::torque: {
                const Load load = load_on(row, *site);
                return seen(site, row.kind == senses::force ? load.force : load.torque);
            }
            case senses::touch:
                y[0] = T{};
                each_touch(*site, [&](SensedContact<T> &contact, const Mask<T> &met) {
                    y[0] += select(met, dot(contact.push, contact.normal), T{});
                });
                return 1;
            case senses::joint_position: return single(coordinate(row));
            case senses::joint_velocity: return single(line(row).rate);
            case senses::joint_limit_position:
            case senses::joint_limit_velocity: {
                T weight[2];
                const T by_rate = overrun(row, weight);
                const bool rate = row.kind == senses::joint_limit_velocity;
                return single(rate ? by_rate * line(row).rate : weight[0] + weight[1]);
            }
            case senses::joint_limit_force:
                y[0] = T{};
                for (const int place : {row.first, row.second})
                    if (place >= 0) y[0] += inverse_period * impulses[place];
                return 1;
            default: return seen(nullptr, subtree(row));
        }
    }

    struct Load {
        Vec3<T> force, torque;  // about the site
        Vec3<T> about_origin;
    };
    Load load_on(const rows::Sensor &row, const SensedFrame<T> &site) const {
        Load load{};
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (below(row)[i]) {
                load.force = load.force + bodies[i].force;
                load.about_origin = load.about_origin + bodies[i].torque;
            }
        load.torque = load.about_origin - cross(site.x, load.force);
        return load;
    }

    // Calls f(contact, whether its normal meets the zone of the site).
    template <class F>
    void each_touch(const SensedFrame<T> &site, F &&f) {
        for (SensedContact<T> &contact : contacts)
            if (contact.table->body == site.body) {
                const Ray<T> ray{transposed_times(site.R, contact.place - site.x), transposed_times(site.R, contact.normal)};
                f(contact, ray.meets(site.shape, site.numbers + frame::extent));
            }
    }

    JointMotion<T> motion(const JointTable &joint) const {
        return {joint, parameters.data(), bodies[joint.parent].now, bodies[joint.child].now};
    }
    T coordinate(const rows::Sensor &row) const {
        T q[6];
        motion(mechanism.joints[row.joint]).coordinates(q);
        return q[row.coordinate];
    }
    JointLine<T> line(const rows::Sensor &row) {
        const JointTable &joint = mechanism.joints[row.joint];
        return {joint, parameters.data(), row.coordinate, bodies[joint.parent], bodies[joint.child]};
    }
    // Distances to the limits that are exceeded, below zero, and the sign with which the rate counts.
    T overrun(const rows::Sensor &row, T *gaps) const {
        const JointTable &joint = mechanism.joints[row.joint];
        const T q = coordinate(row);
        T sign{};
        for (const int side : {0, 1}) {
            gaps[side] = T{};
            if ((side ? row.second : row.first) <= 0) continue;
            const T bound = parameters[(side ? joint.upper : joint.lower) + row.coordinate], gap = side ? bound - q : q - bound;
            gaps[side] = select(gap < T{}, gap, T{});
            sign += select(gap < T{}, broadcast<T>(side ? -1.0 : 1.0), T{});
        }
        return sign;
    }

    // Center of mass, its velocity, momentum, or angular momentum about the center.
    Vec3<T> subtree(const rows::Sensor &row, T *total = nullptr, Vec3<T> *of_center = nullptr, Vec3<T> *of_momentum = nullptr) const {
        T sum{};
        Vec3<T> center{}, momentum{}, angular{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (!below(row)[i]) continue;
            const SensedBody<T> &body = bodies[i];
            const T m = mass(i);
            sum += m;
            center = center + m * body.now.pose.x;
            momentum = momentum + m * body.v;
            if (row.kind == senses::subtree_angular_momentum)
                angular = angular + body.now.pose.R * (inertia(i) * body.omega) + m * cross(body.now.pose.x, body.v);
        }
        const T inverse = inverse_of(sum);
        center = inverse * center;
        if (total) {
            *total = sum;
            *of_center = center;
            *of_momentum = momentum;
        }
        if (row.kind == senses::subtree_center) return center;
        if (row.kind == senses::subtree_linear_momentum) return momentum;
        if (row.kind == senses::subtree_linear_velocity) return inverse * momentum;
        return angular - cross(center, momentum);
    }

    // -- gradients -----------------------------------------------------------------------------------------------------------------------

    void pull(int64_t start, int64_t last) {
        gather(call.along, call.size, start, last, along);
        for (SensedBody<T> &b : bodies) b.clear();
        for (SensedFrame<T> &site : frames) site.clear();
        for (SensedContact<T> &contact : contacts) contact.by_place = contact.by_push = Vec3<T>{};
        std::fill(by_impulses.begin(), by_impulses.end(), T{});
        std::fill(by_wrench.begin(), by_wrench.end(), T{});
        for (int64_t i = 0; i < call.sensors; ++i) {
            const double *p = call.numbers + sensor::size * i;
            T g[4], y[4];
            const bool bounded = std::isfinite(p[sensor::low]) || std::isfinite(p[sensor::high]);
            const int size = bounded ? value(sensors[i], y) : sensors[i].size;
            for (int k = 0; k < size; ++k) {
                g[k] = p[sensor::scale] * along[sensors[i].place + k];
                if (!bounded) continue;
                const T shaped = p[sensor::scale] * y[k] + p[sensor::offset];
                g[k] = select(shaped > p[sensor::high], T{}, select(shaped < p[sensor::low], T{}, g[k]));
            }
            add(sensors[i], g);
        }
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (carried[i]) add_weight(i);
        for (SensedContact<T> &contact : contacts) {
            SensedBody<T> &body = bodies[contact.table->body];
            contact.by_push = contact.by_push - body.by_force - cross(body.by_torque, contact.place);
            contact.by_place = contact.by_place - cross(contact.push, body.by_torque);
            contact.add_to(parameters.data(), body, inverse_period, by_impulses.data());
        }
        for (const SensedFrame<T> &site : frames) site.add_to(bodies[site.body]);
        for (int i = low; i < high; ++i)
            if (used[i]) bodies[i].finish(inverse_period);
        std::fill(states.begin(), states.end(), T{});
        const auto each_gradient = [&](double *to, auto &&store) {
            for (int i = low; to && i < high; ++i)
                if (used[i]) store(bodies[i], &states[state_size * i]);
            if (to) scatter(states.data(), states.size(), to, state_size * mechanism.num_bodies, start, last);
        };
        each_gradient(call.by_z, [](const SensedBody<T> &b, T *to) { b.now.store(b.by_now, to); });
        each_gradient(call.by_after, [](const SensedBody<T> &body, T *to) { body.after.store(body.by_after, to); });
        if (call.by_impulses) scatter(by_impulses.data(), by_impulses.size(), call.by_impulses, mechanism.num_impulses, start, last);
        if (call.by_wrench) scatter(by_wrench.data(), by_wrench.size(), call.by_wrench, 6 * mechanism.num_bodies, start, last);
    }

    // The gradient by w of y = Rᵀ w in axes of a frame or of the world, from the gradient g by y. Adds the gradient by the turn of the frame.
    Vec3<T> seen(SensedFrame<T> *from, const Vec3<T> &w, const T *g) {
        if (!from) return load3(g);
        const Vec3<T> G = from->R * load3(g);
        from->by_turn = from->by_turn + cross(G, w);
        return G;
    }
    Vec3<T> spin(const SensedFrame<T> *site) const { return bodies[site->body].spin; }

    // Adds the gradient of g · (the numbers of a sensor).
    void add(const rows::Sensor &row, const T *g) {
        SensedFrame<T> *site = row.frame < 0 ? nullptr : &frames[row.frame];
        const auto grow = [](Vec3<T> &sum, const Vec3<T> &part) { sum = sum + part; };
        switch (row.kind) {
            case senses::frame_position:
            case senses::frame_quaternion:
            case senses::frame_x_axis:
            case senses::frame_y_axis:
            case senses::frame_z_axis:
            case senses::frame_linear_velocity:
            case senses::frame_angular_velocity: return add_frame(row, g, *site, row.reference < 0 ? nullptr : &frames[row.reference]);
            case senses::frame_linear_acceleration: return grow(site->by_acceleration, load3(g));
            case senses::frame_angular_acceleration: return grow(site->by_turning, load3(g));
            case senses::gyro: return grow(site->by_spin, seen(site, spin(site), g));
            case senses::velocimeter: return grow(site->by_v, seen(site, site->v, g));
            case senses::accelerometer: return grow(site->by_acceleration, seen(site, site->acceleration, g));
            case senses::magnetometer:
                seen(site, magnetic(), g);  // the field is held
                return;
            case senses::force:
            case senses::torque: return add_load(row, *site, g);
            case senses::touch:
                return each_touch(*site, [&](SensedContact<T> &contact, const Mask<T> &met) {
                    contact.by_push = contact.by_push + select(met, g[0], T{}) * contact.normal;
                });
            case senses::joint_position: return add_coordinate(row, g[0]);
            case senses::joint_velocity: return line(row).add(g[0]);
            case senses::joint_limit_position:
            case senses::joint_limit_velocity: {
                T gaps[2];
                const T weight = overrun(row, gaps) * g[0];
                return row.kind == senses::joint_limit_velocity ? line(row).add(weight) : add_coordinate(row, weight);
            }
            case senses::joint_limit_force:
                for (const int place : {row.first, row.second})
                    if (place >= 0) by_impulses[place] += inverse_period * g[0];
                return;
            default: return add_subtree(row, load3(g));
        }
    }

    // A pose or velocity of a frame, in axes of another one or of the world.
    void add_frame(const rows::Sensor &row, const T *g, SensedFrame<T> &site, SensedFrame<T> *other) {
        switch (row.kind) {
            case senses::frame_position: {
                const Vec3<T> G = seen(other, other ? site.x - other->x : site.x, g);
                site.by_x = site.by_x + G;
                if (other) other->by_x = other->by_x - G;
                return;
            }
            case senses::frame_quaternion: {
                const Quat<T> by_q{g[0], load3(g + 1)}, by_own = by_q * conjugate(site.q);
                const Vec3<T> turn = 0.5 * (other ? other->q * by_own : by_own).v;
                site.by_turn = site.by_turn + turn;
                if (other) other->by_turn = other->by_turn - turn;
                return;
            }
            case senses::frame_x_axis:
            case senses::frame_y_axis:
            case senses::frame_z_axis: {
                const Vec3<T> axis = site.R.column(row.kind - senses::frame_x_axis);
                site.by_turn = site.by_turn + cross(axis, seen(other, axis, g));
                return;
            }
            case senses::frame_linear_velocity: {
                const Vec3<T> apart = other ? site.x - other->x : Vec3<T>{};
                const Vec3<T> G = seen(other, other ? site.v - other->v - cross(spin(other), apart) : site.v, g);
                site.by_v = site.by_v + G;
                if (!other) return;
                const Vec3<T> by_apart = cross(spin(other), G);
                site.by_x = site.by_x + by_apart;
                other->by_x = other->by_x - by_apart;
                other->by_v = other->by_v - G;
                other->by_spin = other->by_spin - cross(apart, G);
                return;
            }
            case senses::frame_angular_velocity: {
                const Vec3<T> G = seen(other, other ? spin(&site) - spin(other) : spin(&site), g);
                site.by_spin = site.by_spin + G;
                if (other) other->by_spin = other->by_spin - G;
                return;
            }
        }
    }

    void add_load(const rows::Sensor &row, SensedFrame<T> &site, const T *g) {
        const Load load = load_on(row, site);
        const bool turns = row.kind == senses::torque;
        const Vec3<T> G = seen(&site, turns ? load.torque : load.force, g);
        const Vec3<T> by_force = turns ? cross(site.x, G) : G, by_torque = turns ? G : Vec3<T>{};
        if (turns) site.by_x = site.by_x + cross(G, load.force);
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (below(row)[i]) {
                bodies[i].by_force = bodies[i].by_force + by_force;
                bodies[i].by_torque = bodies[i].by_torque + by_torque;
            }
    }

    // Through `weigh`. The force is that without contacts.
    void add_weight(int i) {
        SensedBody<T> &body = bodies[i];
        const Mat3<T> J = inertia(i);
        const Vec3<T> force = mass(i) * (body.linear - gravity) - load3(&wrench[6 * i]),
                      by_force = body.by_force + cross(body.by_torque, body.now.pose.x);
        const Vec3<T> by_couple = transposed_times(body.now.pose.R, body.by_torque), spun = J * body.omega;
        body.by_now.x = body.by_now.x + cross(force, body.by_torque);
        body.by_linear = body.by_linear + mass(i) * by_force;
        body.by_alpha = body.by_alpha + transposed_times(J, by_couple);
        body.by_omega = body.by_omega + cross(spun, by_couple) + transposed_times(J, cross(by_couple, body.omega));
        body.by_turn = body.by_turn + cross(body.now.pose.R * body.couple, body.by_torque);
        store3(&by_wrench[6 * i], -by_force);
        store3(&by_wrench[6 * i + 3], -by_couple);
    }

    void add_coordinate(const rows::Sensor &row, const T &weight) {
        const JointTable &joint = mechanism.joints[row.joint];
        T by_q[6] = {};
        by_q[row.coordinate] = weight;
        motion(joint).add_coordinates(by_q, bodies[joint.parent].by_now, bodies[joint.child].by_now);
    }

    void add_subtree(const rows::Sensor &row, const Vec3<T> &g) {
        T total;
        Vec3<T> center, momentum;
        subtree(row, &total, &center, &momentum);
        const T inverse = inverse_of(total);
        const bool angular = row.kind == senses::subtree_angular_momentum;
        Vec3<T> by_center{}, by_momentum{};
        if (angular) {
            by_center = -cross(momentum, g);
            by_momentum = -cross(g, center);
        } else if (row.kind == senses::subtree_center) {
            by_center = g;
        } else {
            by_momentum = row.kind == senses::subtree_linear_momentum ? g : inverse * g;
        }
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (!below(row)[i]) continue;
            SensedBody<T> &body = bodies[i];
            const T m = mass(i);
            body.by_now.x = body.by_now.x + (m * inverse) * by_center;
            body.by_v = body.by_v + m * by_momentum;
            if (!angular) continue;
            const Mat3<T> J = inertia(i);
            body.by_omega = body.by_omega + transposed_times(J, transposed_times(body.now.pose.R, g));
            body.by_turn = body.by_turn + cross(body.now.pose.R * (J * body.omega), g);
            body.by_now.x = body.by_now.x + m * cross(body.v, g);
            body.by_v = body.by_v + m * cross(g, body.now.pose.x);
        }
    }
};

}  // namespace torchdojo
