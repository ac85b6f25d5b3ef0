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
        : mechanism(m), given(s), sensors(reinterpret_cast<const rows::Sensor *>(s.table)), parameters(m.num_parameters),
          bodies(m.num_bodies + 1), used(m.num_bodies + 1), carried(m.num_bodies), touched(m.num_bodies), states(state_size * m.num_bodies),
          reading(s.size), along(s.size), impulses(m.num_impulses), by_impulses(m.num_impulses), wrench(6 * m.num_bodies),
          by_wrench(6 * m.num_bodies) {
        const auto *frame_rows = reinterpret_cast<const rows::SensedFrame *>(s.frame_table);
        for (int64_t i = 0; i < s.frames; ++i) {
            SensedFrame<T> site{};
            site.body = frame_rows[i].body, site.shape = frame_rows[i].shape, site.numbers = s.frame_numbers + frame::size * i;
            frames.push_back(site), used[site.body] = 1;
        }
        for (int64_t i = 0; i < s.sensors; ++i) {
            const rows::Sensor &row = sensors[i];
            if (row.joint >= 0) used[m.joints[row.joint].parent] = used[m.joints[row.joint].child] = 1;
            const bool carries = row.kind == senses::force || row.kind == senses::torque;
            for (int b = 0; row.subtree >= 0 && b < m.num_bodies; ++b)
                if (below(row)[b]) used[b] = 1, carried[b] |= carries;
        }
        const auto *contact_rows = reinterpret_cast<const rows::SensedContact *>(s.contact_table);
        for (int64_t i = 0; i < s.contacts; ++i)
            for (const ContactTable &contact : m.contacts)
                if (contact.number == contact_rows[i].number && used[contact.body]) {
                    SensedContact<T> sensed{};
                    sensed.table = &contact, sensed.impulse = contact_rows[i].impulse;
                    contacts.push_back(sensed), touched[contact.body] = 1;
                }
        while (high > 0 && !used[high - 1]) --high;
        while (low < high && !used[low]) ++low;
    }

    void run(int64_t first, int64_t last) {
        for (int64_t start = first; start < last; start += lanes<T>) {
            if (start == first || given.parameter_stride) gather(given.parameters, given.parameter_stride, start, last, parameters);
            load(start, last);
            if (given.along) pull(start, last);
            else read(start, last);
        }
    }

private:
    const MechanismTable &mechanism;
    const TdSensors &given;
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

    const int32_t *below(const rows::Sensor &row) const { return given.subtree_table + row.subtree * mechanism.num_bodies; }
    const T *body_numbers(int i) const { return &parameters[parameter::bodies + parameter::body_size * i]; }
    Vec3<T> magnetic() const { return {broadcast<T>(given.magnetic[0]), broadcast<T>(given.magnetic[1]), broadcast<T>(given.magnetic[2])}; }
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
        inverse_period = inverse_of(double(given.repeat) * parameters[parameter::timestep]);
        gravity = load3(&parameters[parameter::gravity]);
        const auto each_state = [&](const double *from, auto &&load) {
            if (from) gather(from + state_size * low, size, start, last, states.data(), size_t(state_size * (high - low)));
            for (int i = low; from && i < high; ++i)
                if (used[i]) load(i, &states[state_size * (i - low)]);
        };
        each_state(given.z, [&](int i, const T *state) { bodies[i].load(state); });
        each_state(given.after, [&](int i, const T *state) { bodies[i].load_after(state, inverse_period, touched[i]); });
        for (SensedFrame<T> &site : frames) site.place(bodies[site.body], gravity);
        if (given.impulses) gather(given.impulses, mechanism.num_impulses, start, last, impulses);
        if (given.wrench) gather(given.wrench, 6 * mechanism.num_bodies, start, last, wrench);
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (carried[i]) weigh(i);
        for (SensedContact<T> &contact : contacts) {
            SensedBody<T> &b = bodies[contact.table->body];
            contact.load(parameters.data(), impulses.data(), b, inverse_period);
            if (carried[contact.table->body]) b.force = b.force - contact.push, b.torque = b.torque - cross(contact.place, contact.push);
        }
    }

    // The change of momentum less gravity and the given wrench.
    void weigh(int i) {
        SensedBody<T> &b = bodies[i];
        const Mat3<T> J = inertia(i);
        b.couple = J * b.alpha + cross(b.omega, J * b.omega) - load3(&wrench[6 * i + 3]);
        b.force = mass(i) * (b.linear - gravity) - load3(&wrench[6 * i]);
        b.torque = b.now.pose.R * b.couple + cross(b.now.pose.x, b.force);
    }

    // -- values --------------------------------------------------------------------------------------------------------------------------

    void read(int64_t start, int64_t last) {
        for (int64_t i = 0; i < given.sensors; ++i) {
            T y[4];
            const int size = value(sensors[i], y);
            const double *p = given.numbers + sensor::size * i;
            for (int k = 0; k < size; ++k) {
                const T shaped = p[sensor::scale] * y[k] + p[sensor::offset], low = broadcast<T>(p[sensor::low]);
                const T capped = select(shaped > p[sensor::high], broadcast<T>(p[sensor::high]), shaped);
                reading[sensors[i].place + k] = select(capped < low, low, capped);
            }
        }
        scatter(reading.data(), reading.size(), given.out, given.size, start, last);
    }

    // Writes the numbers of a sensor, and gives their count.
    int value(const rows::Sensor &row, T *y) {
        const SensedFrame<T> *own = row.frame < 0 ? nullptr : &frames[row.frame];
        const SensedFrame<T> *other = row.reference < 0 ? nullptr : &frames[row.reference];
        const auto seen = [&](const SensedFrame<T> *from, const Vec3<T> &w) { store3(y, from ? transposed_times(from->R, w) : w); };
        const auto spin = [&](const SensedFrame<T> *site) { return bodies[site->body].spin; };
        switch (row.kind) {
            case senses::frame_position: return seen(other, other ? own->x - other->x : own->x), 3;
            case senses::frame_quaternion: {
                const Quat<T> q = other ? conjugate(other->q) * own->q : own->q;
                return y[0] = q.w, store3(y + 1, q.v), 4;
            }
            case senses::frame_x_axis: return seen(other, own->R.column(0)), 3;
            case senses::frame_y_axis: return seen(other, own->R.column(1)), 3;
            case senses::frame_z_axis: return seen(other, own->R.column(2)), 3;
            case senses::frame_linear_velocity:
                return seen(other, other ? own->v - other->v - cross(spin(other), own->x - other->x) : own->v), 3;
            case senses::frame_angular_velocity: return seen(other, other ? spin(own) - spin(other) : spin(own)), 3;
            case senses::frame_linear_acceleration: return seen(nullptr, own->acceleration), 3;
            case senses::frame_angular_acceleration: return seen(nullptr, bodies[own->body].turning), 3;
            case senses::gyro: return seen(own, spin(own)), 3;
            case senses::velocimeter: return seen(own, own->v), 3;
            case senses::accelerometer: return seen(own, own->acceleration), 3;
            case senses::magnetometer: return seen(own, magnetic()), 3;
            case senses::force:
            case senses::torque: {
                const Load load = load_on(row, *own);
                return seen(own, row.kind == senses::force ? load.force : load.torque), 3;
            }
            case senses::touch:
                y[0] = T{};
                each_touch(*own, [&](SensedContact<T> &contact, const Mask<T> &met) {
                    y[0] += select(met, dot(contact.push, contact.normal), T{});
                });
                return 1;
            case senses::joint_position: return y[0] = coordinate(row), 1;
            case senses::joint_velocity: return y[0] = JointLine(*this, row).rate, 1;
            case senses::joint_limit_position:
            case senses::joint_limit_velocity: {
                T weight[2];
                const T by_rate = overrun(row, weight);
                const bool rate = row.kind == senses::joint_limit_velocity;
                return y[0] = rate ? by_rate * JointLine(*this, row).rate : weight[0] + weight[1], 1;
            }
            case senses::joint_limit_force:
                y[0] = T{};
                for (const int place : {row.first, row.second})
                    if (place >= 0) y[0] += inverse_period * impulses[place];
                return 1;
            default: return store3(y, subtree(row)), 3;
        }
    }

    struct Load {
        Vec3<T> force, torque;  // about the site
        Vec3<T> about_origin;
    };
    Load load_on(const rows::Sensor &row, const SensedFrame<T> &site) const {
        Load load{};
        for (int i = 0; i < mechanism.num_bodies; ++i)
            if (below(row)[i]) load.force = load.force + bodies[i].force, load.about_origin = load.about_origin + bodies[i].torque;
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
    // Distances to the limits that are exceeded, below zero, and the sign with which the rate counts.
    T overrun(const rows::Sensor &row, T *gaps) const {
        const JointTable &joint = mechanism.joints[row.joint];
        const T q = coordinate(row);
        T sign{};
        for (const int side : {0, 1}) {
            gaps[side] = T{};
            if ((side ? row.second : row.first) <= 0) continue;
            const T bound = parameters[(side ? joint.upper : joint.lower) + row.coordinate], gap = side ? bound - q : q - bound;
            gaps[side] = select(gap < T{}, gap, T{}), sign += select(gap < T{}, broadcast<T>(side ? -1.0 : 1.0), T{});
        }
        return sign;
    }

    // The velocity of a coordinate at this configuration (`StandardJoint.velocity`): line · w, with the line of the coordinate in space.
    struct JointLine {
        const JointTable &joint;
        SensedBody<T> &a, &b;
        bool translates;
        Vec3<T> line, w, lever_a, lever_b;
        T rate;

        JointLine(Sensors &sensors, const rows::Sensor &row)
            : joint(sensors.mechanism.joints[row.joint]), a(sensors.bodies[joint.parent]), b(sensors.bodies[joint.child]),
              translates(row.coordinate < joint.free_t()) {
            const FreeAxes<T> axes(joint, sensors.parameters.data());
            line = a.now.pose.R *
                   (translates ? axes.translation(row.coordinate) : axes.offset * axes.rotation(row.coordinate - joint.free_t()));
            lever_b = b.now.pose.R * axes.child_anchor(), lever_a = b.now.pose.x + lever_b - a.now.pose.x;
            w = translates ? b.v + cross(b.spin, lever_b) - a.v - cross(a.spin, lever_a) : b.spin - a.spin;
            rate = dot(line, w);
        }
        void add(const T &weight) {
            const Vec3<T> G = weight * line;
            a.by_turn = a.by_turn + weight * cross(line, w);
            if (!translates) {
                b.by_spin = b.by_spin + G, a.by_spin = a.by_spin - G;
                return;
            }
            const Vec3<T> by_a = cross(a.spin, G), by_b = by_a + cross(G, b.spin);  // gradients by the levers
            b.by_v = b.by_v + G, a.by_v = a.by_v - G;
            b.by_spin = b.by_spin + cross(lever_b, G), a.by_spin = a.by_spin - cross(lever_a, G);
            b.by_now.x = b.by_now.x + by_a, a.by_now.x = a.by_now.x - by_a;
            b.by_turn = b.by_turn + cross(lever_b, by_b);
        }
    };

    // Center of mass, its velocity, momentum, or angular momentum about the center.
    Vec3<T> subtree(const rows::Sensor &row, T *total = nullptr, Vec3<T> *of_center = nullptr, Vec3<T> *of_momentum = nullptr) const {
        T sum{};
        Vec3<T> center{}, momentum{}, angular{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (!below(row)[i]) continue;
            const SensedBody<T> &b = bodies[i];
            const T m = mass(i);
            sum += m, center = center + m * b.now.pose.x, momentum = momentum + m * b.v;
            if (row.kind == senses::subtree_angular_momentum)
                angular = angular + b.now.pose.R * (inertia(i) * b.omega) + m * cross(b.now.pose.x, b.v);
        }
        const T inverse = inverse_of(sum);
        center = inverse * center;
        if (total) *total = sum, *of_center = center, *of_momentum = momentum;
        if (row.kind == senses::subtree_center) return center;
        if (row.kind == senses::subtree_linear_momentum) return momentum;
        if (row.kind == senses::subtree_linear_velocity) return inverse * momentum;
        return angular - cross(center, momentum);
    }

    // -- gradients -----------------------------------------------------------------------------------------------------------------------

    void pull(int64_t start, int64_t last) {
        gather(given.along, given.size, start, last, along);
        for (SensedBody<T> &b : bodies) b.clear();
        for (SensedFrame<T> &site : frames) site.clear();
        for (SensedContact<T> &contact : contacts) contact.by_place = contact.by_push = Vec3<T>{};
        std::fill(by_impulses.begin(), by_impulses.end(), T{}), std::fill(by_wrench.begin(), by_wrench.end(), T{});
        for (int64_t i = 0; i < given.sensors; ++i) {
            const double *p = given.numbers + sensor::size * i;
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
            SensedBody<T> &b = bodies[contact.table->body];
            contact.by_push = contact.by_push - b.by_force - cross(b.by_torque, contact.place);
            contact.by_place = contact.by_place - cross(contact.push, b.by_torque);
            contact.add_to(parameters.data(), b, inverse_period, by_impulses.data());
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
        each_gradient(given.by_z, [](const SensedBody<T> &b, T *to) { b.now.store(b.by_now, to); });
        each_gradient(given.by_after, [](const SensedBody<T> &b, T *to) { b.after.store(b.by_after, to); });
        if (given.by_impulses) scatter(by_impulses.data(), by_impulses.size(), given.by_impulses, mechanism.num_impulses, start, last);
        if (given.by_wrench) scatter(by_wrench.data(), by_wrench.size(), given.by_wrench, 6 * mechanism.num_bodies, start, last);
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
        SensedFrame<T> *own = row.frame < 0 ? nullptr : &frames[row.frame];
        switch (row.kind) {
            case senses::frame_position:
            case senses::frame_quaternion:
            case senses::frame_x_axis:
            case senses::frame_y_axis:
            case senses::frame_z_axis:
            case senses::frame_linear_velocity:
            case senses::frame_angular_velocity: return add_frame(row, g, *own, row.reference < 0 ? nullptr : &frames[row.reference]);
            case senses::frame_linear_acceleration: own->by_acceleration = own->by_acceleration + load3(g); return;
            case senses::frame_angular_acceleration: own->by_turning = own->by_turning + load3(g); return;
            case senses::gyro: own->by_spin = own->by_spin + seen(own, spin(own), g); return;
            case senses::velocimeter: own->by_v = own->by_v + seen(own, own->v, g); return;
            case senses::accelerometer: own->by_acceleration = own->by_acceleration + seen(own, own->acceleration, g); return;
            case senses::magnetometer: seen(own, magnetic(), g); return;
            case senses::force:
            case senses::torque: return add_load(row, *own, g);
            case senses::touch:
                return each_touch(*own, [&](SensedContact<T> &contact, const Mask<T> &met) {
                    contact.by_push = contact.by_push + select(met, g[0], T{}) * contact.normal;
                });
            case senses::joint_position: return add_coordinate(row, g[0]);
            case senses::joint_velocity: return JointLine(*this, row).add(g[0]);
            case senses::joint_limit_position:
            case senses::joint_limit_velocity: {
                T gaps[2];
                const T weight = overrun(row, gaps) * g[0];
                return row.kind == senses::joint_limit_velocity ? JointLine(*this, row).add(weight) : add_coordinate(row, weight);
            }
            case senses::joint_limit_force:
                for (const int place : {row.first, row.second})
                    if (place >= 0) by_impulses[place] += inverse_period * g[0];
                return;
            default: return add_subtree(row, load3(g));
        }
    }

    // A pose or velocity of a frame, in axes of another one or of the world.
    void add_frame(const rows::Sensor &row, const T *g, SensedFrame<T> &own, SensedFrame<T> *other) {
        switch (row.kind) {
            case senses::frame_position: {
                const Vec3<T> G = seen(other, other ? own.x - other->x : own.x, g);
                own.by_x = own.by_x + G;
                if (other) other->by_x = other->by_x - G;
                return;
            }
            case senses::frame_quaternion: {
                const Quat<T> by_q{g[0], load3(g + 1)}, by_own = by_q * conjugate(own.q);
                const Vec3<T> turn = 0.5 * (other ? other->q * by_own : by_own).v;
                own.by_turn = own.by_turn + turn;
                if (other) other->by_turn = other->by_turn - turn;
                return;
            }
            case senses::frame_x_axis:
            case senses::frame_y_axis:
            case senses::frame_z_axis: {
                const Vec3<T> axis = own.R.column(row.kind - senses::frame_x_axis);
                own.by_turn = own.by_turn + cross(axis, seen(other, axis, g));
                return;
            }
            case senses::frame_linear_velocity: {
                const Vec3<T> apart = other ? own.x - other->x : Vec3<T>{};
                const Vec3<T> G = seen(other, other ? own.v - other->v - cross(spin(other), apart) : own.v, g);
                own.by_v = own.by_v + G;
                if (!other) return;
                const Vec3<T> by_apart = cross(spin(other), G);
                own.by_x = own.by_x + by_apart, other->by_x = other->by_x - by_apart;
                other->by_v = other->by_v - G, other->by_spin = other->by_spin - cross(apart, G);
                return;
            }
            case senses::frame_angular_velocity: {
                const Vec3<T> G = seen(other, other ? spin(&own) - spin(other) : spin(&own), g);
                own.by_spin = own.by_spin + G;
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
            if (below(row)[i]) bodies[i].by_force = bodies[i].by_force + by_force, bodies[i].by_torque = bodies[i].by_torque + by_torque;
    }

    // Through `weigh`. The force is that without contacts.
    void add_weight(int i) {
        SensedBody<T> &b = bodies[i];
        const Mat3<T> J = inertia(i);
        const Vec3<T> force = mass(i) * (b.linear - gravity) - load3(&wrench[6 * i]),
                      by_force = b.by_force + cross(b.by_torque, b.now.pose.x);
        const Vec3<T> by_couple = transposed_times(b.now.pose.R, b.by_torque), spun = J * b.omega;
        b.by_now.x = b.by_now.x + cross(force, b.by_torque);
        b.by_linear = b.by_linear + mass(i) * by_force, b.by_alpha = b.by_alpha + transposed_times(J, by_couple);
        b.by_omega = b.by_omega + cross(spun, by_couple) + transposed_times(J, cross(by_couple, b.omega));
        b.by_turn = b.by_turn + cross(b.now.pose.R * b.couple, b.by_torque);
        store3(&by_wrench[6 * i], -by_force), store3(&by_wrench[6 * i + 3], -by_couple);
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
        if (angular) by_center = -cross(momentum, g), by_momentum = -cross(g, center);
        else if (row.kind == senses::subtree_center) by_center = g;
        else by_momentum = row.kind == senses::subtree_linear_momentum ? g : inverse * g;
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            if (!below(row)[i]) continue;
            SensedBody<T> &b = bodies[i];
            const T m = mass(i);
            b.by_now.x = b.by_now.x + (m * inverse) * by_center, b.by_v = b.by_v + m * by_momentum;
            if (!angular) continue;
            const Mat3<T> J = inertia(i);
            b.by_omega = b.by_omega + transposed_times(J, transposed_times(b.now.pose.R, g));
            b.by_turn = b.by_turn + cross(b.now.pose.R * (J * b.omega), g);
            b.by_now.x = b.by_now.x + m * cross(b.v, g), b.by_v = b.by_v + m * cross(g, b.now.pose.x);
        }
    }
};

}  // namespace torchdojo
