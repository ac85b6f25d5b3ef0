// Paths of tendons: length, its gradient, and products with the derivative of both (elements/tendon_paths.py).
//
// The gradient g has a pull on each place of the tendon: by the displacement in the world frame, and by the rotation in the body frame. Of a
// string, g is the gradient of L. So the derivative of g·c by the poses is the derivative of g along c, plus c_φ × g_φ: rotations in body
// frames do not commute. A sum of coordinates has the directions in which limits of joints push, whose derivative is written out.
#pragma once

#include "base/wrapping.hpp"
#include "elements/data.hpp"
#include "elements/joint_motion.hpp"

namespace torchdojo {

namespace constant {
constexpr double no_direction = 1e-15;  // [m] shorter parts have no direction
}  // namespace constant

template <class T>
class TendonPath {
public:
    // parameters: packed. poses: of the bodies, by number; the world is the last.
    template <class Poses>
    TendonPath(const MechanismTable &m, const TendonTable &tendon, const T *parameters, Poses &&pose_of)
        : m(m), tendon(tendon), parameters(parameters) {
        for (int i = 0; i < tendon.num_bodies; ++i) poses[i] = &pose_of(body(i));
    }

    int places() const { return tendon.num_bodies; }
    int body(int place) const { return m.tendon_bodies[tendon.first_body + place]; }

    // Length; sets the pulls of all places.
    T length(Pull<T> *pulls) const {
        if (!tendon.spatial) return sum_of_coordinates(pulls);
        return along<T>(poses, pulls, NoSum{});
    }

    // Adds the gradient of by_length · L + g · c by the numbers of a string to `sum`, in their places. Points of contact are stationary, so
    // the forces of the string are the gradient by sites and centers, and the angle of the arc is the one by the radius.
    void add_parameters(const T &by_length, const Pull<T> *c, T *sum) const {
        Placed<Tangent<T, T>> placed[most_tendon_bodies];
        Pull<Tangent<T, T>> moved[most_tendon_bodies];
        move(c, placed);
        const Placed<Tangent<T, T>> *frames[most_tendon_bodies];
        for (int i = 0; i < places(); ++i) frames[i] = &placed[i];
        along<Tangent<T, T>>(frames, moved, PathSum{by_length, sum});
    }

    // Sets `by` to the gradients of by_length · L + g · c by position and rotation of each place, for the pulls of `length`. The function is
    // large, so all callers share it.
    template <class R>
    __attribute__((noinline)) void pull_back(const Pull<T> *pulls, const R &by_length, const Pull<R> *c, Pull<R> *by) const {
        if (!tendon.spatial) return pull_back_sum(by_length, c, by);
        using S = Tangent<T, R>;
        Placed<S> placed[most_tendon_bodies];
        const Placed<S> *frames[most_tendon_bodies];
        Pull<S> moved[most_tendon_bodies];
        for (int i = 0; i < places(); ++i) frames[i] = &placed[i];
        move(c, placed);
        along<S>(frames, moved, NoSum{});
        for (int i = 0; i < places(); ++i) {
            by[i] = Pull<R>{};
            if (fixed(i)) continue;
            by[i].force = by_length * pulls[i].force + wrapping::slopes(moved[i].force);
            by[i].torque = by_length * pulls[i].torque + wrapping::slopes(moved[i].torque) + cross(c[i].torque, pulls[i].torque);
        }
    }

private:
    // Position and attitude of a body, as a BodyPose has them.
    template <class S>
    struct Placed {
        Vec3<S> x;
        Mat3<S> R;
    };
    // Destinations of derivatives by the numbers of a string: nowhere, or by_length · value + slope to their places in `sum`.
    struct NoSum {
        static constexpr bool active = false;
    };
    struct PathSum {
        static constexpr bool active = true;
        T by_length, *sum;

        T of(const Tangent<T, T> &x) const { return by_length * x.v + x.d; }
        void add(int32_t place, const Tangent<T, T> &x) const { sum[place] += of(x); }
        void add3(int32_t place, const Vec3<Tangent<T, T>> &v) const { add(place, v.x), add(place + 1, v.y), add(place + 2, v.z); }
    };

    const MechanismTable &m;
    const TendonTable &tendon;
    const T *parameters;
    const BodyPose<T> *poses[most_tendon_bodies];

    // The poses, moving along c.
    template <class R>
    void move(const Pull<R> *c, Placed<Tangent<T, R>> *placed) const {
        for (int i = 0; i < places(); ++i) {
            const BodyPose<T> &pose = *poses[i];
            placed[i].x = {{pose.x.x, c[i].force.x}, {pose.x.y, c[i].force.y}, {pose.x.z, c[i].force.z}};
            for (int r = 0; r < 3; ++r) {
                const Vec3<R> by_turn = cross(pose.R.row(r), c[i].torque);
                for (int k = 0; k < 3; ++k) placed[i].R.m[3 * r + k] = {pose.R.m[3 * r + k], by_turn[k]};
            }
        }
    }

    // -- strings ---------------------------------------------------------------------------------------------------------------------

    // The site at which the last span ended: its number and place (−1: none), where it is in the world, if that is known, and the force of
    // the spans there.
    template <class S>
    struct Site {
        int32_t number = -1;
        int32_t place = -1;
        bool known = false;
        Vec3<S> at, force;
    };

    Vec3<T> local(int32_t position) const { return load3(parameters + position); }
    bool fixed(int place) const { return body(place) == m.num_bodies; }

    template <class S>
    static TD_INLINE Vec3<S> nothing() {
        const S none = S(T{});
        return {none, none, none};
    }
    template <class S>
    static TD_INLINE Vec3<S> still(const Vec3<T> &v) {
        return {S(v.x), S(v.y), S(v.z)};
    }

    // The place of a point in the world, which does not move itself.
    template <class S, class P>
    TD_INLINE Vec3<S> point(const P *const *placed, int32_t number, int32_t place) const {
        if (fixed(place)) return still<S>(local(number));
        return placed[place]->x + placed[place]->R * local(number);
    }

    // Lets the force act at the site. The world takes none.
    template <class S, class P, class Sum>
    TD_INLINE void leave(const P *const *placed, const Site<S> &site, Pull<S> *pulls, const Sum &sum) const {
        if (site.number < 0 || (!Sum::active && fixed(site.place))) return;
        Pull<S> &pull = pulls[site.place];
        const Vec3<S> force = transposed_times(placed[site.place]->R, site.force);
        pull.force = pull.force + site.force;
        pull.torque = pull.torque + cross(local(site.number), force);
        if constexpr (Sum::active) sum.add3(site.number, force);
    }

    // Distance and unit vector; zero between points that coincide.
    template <class S>
    static TD_INLINE S straight(const Vec3<S> &way, Vec3<S> &unit) {
        const Vec3<T> v = values(way);
        const Mask<T> far = max(max(abs(v.x), abs(v.y)), abs(v.z)) >= broadcast<T>(constant::no_direction);
        const T distance = root(select(far, dot(v, v), broadcast<T>(1.0)));
        const T inverse = select(far, inverse_of(distance), T{});
        const Vec3<T> direction = inverse * v;
        const T size = select(far, distance, T{});
        if constexpr (std::is_same_v<S, T>) {
            unit = direction;
            return size;
        } else {
            const auto moved = wrapping::slopes(way);
            const auto stretched = dot(direction, moved);
            for (int i = 0; i < 3; ++i) unit[i] = S(direction[i], inverse * (moved[i] - direction[i] * stretched));
            return S(size, stretched);
        }
    }

    template <class S, class P, class Sum>
    S along(const P *const *placed, Pull<S> *pulls, const Sum &sum) const {
        S total = S(T{});
        for (int i = 0; i < places(); ++i) pulls[i].force = pulls[i].torque = nothing<S>();
        Site<S> here;
        for (int k = 0; k < tendon.num_parts; ++k) {
            const rows::TendonPart &part = m.tendon_parts[tendon.first_part + k];
            const bool wraps = part.radius >= 0;
            const bool whole = part.divisor < 0;
            const T weight = whole ? broadcast<T>(1.0) : inverse_of(parameters[part.divisor]);
            if (!Sum::active && !wraps && part.start_body == part.end_body) {  // both ends move together, and nothing pulls at them
                Vec3<T> unit;
                const T way = straight<T>(local(part.end) - local(part.start), unit);
                total = total + S(whole ? way : weight * way);
                continue;
            }
            if (here.number != part.start || here.place != part.start_body) {
                leave(placed, here, pulls, sum);
                here.number = part.start;
                here.place = part.start_body;
                here.known = false;
                here.force = nothing<S>();
            }
            Vec3<S> end, force;  // at the end
            if (wraps) {
                wrapped(placed, part, weight, total, here.force, force, pulls, sum);
            } else {
                Vec3<S> unit;
                if (!here.known) here.at = point<S>(placed, part.start, part.start_body);
                end = point<S>(placed, part.end, part.end_body);
                const S way = straight<S>(end - here.at, unit);
                total = total + (whole ? way : weight * way);
                if constexpr (Sum::active)
                    if (!whole) sum.add(part.divisor, -(weight * weight * way));
                if (!whole) unit = weight * unit;
                here.force = here.force - unit;
                force = unit;
            }
            leave(placed, here, pulls, sum);
            here.number = part.end;
            here.place = part.end_body;
            here.known = !wraps;
            here.at = end;
            here.force = force;
        }
        leave(placed, here, pulls, sum);
        return total;
    }

    // The place of a point in axes of the surface of a span, from its center. Points that move with the surface stay where they are.
    template <class S, class P>
    TD_INLINE Vec3<S> on_surface(const P *const *placed, const rows::TendonPart &part, const Mat3<T> &axes, int32_t number,
                                 int32_t place) const {
        if (place == part.surface_body) return still<S>(transposed_times(axes, local(number) - local(part.center)));
        const P &surface = *placed[part.surface_body];
        const Vec3<S> turned = transposed_times(surface.R, point<S>(placed, number, place) - surface.x);
        return transposed_times(axes, turned - local(part.center));
    }

    // A span with a surface, in axes of the surface. at_start: the force of the string on its start, to which that of the span is added.
    template <class S, class P, class Sum>
    __attribute__((noinline)) void wrapped(const P *const *placed, const rows::TendonPart &part, const T &weight, S &total,
                                           Vec3<S> &at_start, Vec3<S> &at_end, Pull<S> *pulls, const Sum &sum) const {
        const P &surface = *placed[part.surface_body];
        const Mat3<T> axes = rotation_matrix(load4(parameters + part.turn));
        const Vec3<S> start = on_surface<S>(placed, part, axes, part.start, part.start_body);
        const Vec3<S> end = on_surface<S>(placed, part, axes, part.end, part.end_body);
        Vec3<T> side;
        if (part.side >= 0) side = values(on_surface<S>(placed, part, axes, part.side, part.side_body));
        const auto path = wrapping::wrap<S, T>(start, end, parameters[part.radius], part.cylinder, part.side < 0 ? nullptr : &side);
        // Without contact, the way is straight, and only its ends take forces.
        Vec3<S> along = path.along;
        Vec3<S> away = path.away;
        S whole = path.length;
        if (any(negate(path.wraps))) {
            Vec3<S> unit;
            const S way = straight<S>(end - start, unit);
            along = select3(path.wraps, along, unit);
            away = select3(path.wraps, away, unit);
            whole = select(path.wraps, whole, way);
        }
        total = total + weight * whole;
        // Forces of the string on the surface, where it touches that, are those on its ends. Where it is straight, they cancel.
        const Vec3<S> pull = weight * along;
        const Vec3<S> push = -(weight * away);
        const Vec3<S> pull_in_body = axes * pull;
        const Vec3<S> push_in_body = axes * push;
        const Vec3<S> pull_in_world = surface.R * pull_in_body;
        const Vec3<S> push_in_world = surface.R * push_in_body;
        at_start = at_start - pull_in_world;
        at_end = -push_in_world;
        if constexpr (Sum::active)
            if (part.divisor >= 0) sum.add(part.divisor, -(weight * weight * whole));
        if (!any(path.wraps) || (!Sum::active && fixed(part.surface_body))) return;
        const T held = select(path.wraps, broadcast<T>(1.0), T{});
        const Vec3<S> in_body = pull_in_body + push_in_body;
        const Vec3<S> moment = held * (cross(start, pull) + cross(end, push));
        Pull<S> &on = pulls[part.surface_body];
        on.force = on.force + (pull_in_world + push_in_world);
        on.torque = on.torque + axes * moment + cross(local(part.center), in_body);
        if constexpr (Sum::active) {
            sum.add3(part.center, in_body);
            const S stretch = select(path.wraps, path.by_radius, S(T{}));
            sum.add(part.radius, weight * inverse_of(parameters[part.radius]) * stretch);
            const Vec3<T> turn{sum.of(moment.x), sum.of(moment.y), sum.of(moment.z)};
            const Quat<T> by_q = load4(parameters + part.turn) * Quat<T>{T{}, 2.0 * turn};
            sum.sum[part.turn] += by_q.w;
            for (int i = 0; i < 3; ++i) sum.sum[part.turn + 1 + i] += by_q.v[i];
        }
    }

    template <class S>
    static TD_INLINE Vec3<S> select3(const Mask<T> &mask, const Vec3<S> &a, const Vec3<S> &b) {
        return {select(mask, a.x, b.x), select(mask, a.y, b.y), select(mask, a.z, b.z)};
    }

    // -- sums of coordinates ---------------------------------------------------------------------------------------------------------

    // A joint of the sum: its direction in the parent's frame, and the displacement of the child's anchor.
    struct Term {
        const JointTable &joint;
        FreeAxes<T> axes;
        bool translation;
        const BodyPose<T> &a, &b;
        Vec3<T> axis, in_parent;  // direction in the joint frame where it turns; in the frame of the parent
        T coefficient;

        Term(const TendonPath &path, int k)
            : joint(path.m.joints[path.part(k).joint]), axes(joint, path.parameters), translation(path.part(k).coordinate < joint.free_t()),
              a(*path.poses[2 * k]), b(*path.poses[2 * k + 1]), coefficient(path.parameters[path.part(k).start]) {
            if (translation) {
                in_parent = axes.translation(path.part(k).coordinate);
            } else {
                axis = axes.rotation(path.part(k).coordinate - joint.free_t());
                in_parent = axes.offset * axis;
            }
        }
        Vec3<T> anchor() const { return axes.child_anchor(); }
        Vec3<T> displacement() const { return transposed_times(a.R, b.x + b.R * anchor() - a.x); }
        Quat<T> turn() const { return conjugate(a.q * axes.offset_quaternion) * b.q; }
        Vec3<T> in_child() const { return transposed_times(b.R, a.R * in_parent); }
    };
    const rows::TendonPart &part(int k) const { return m.tendon_parts[tendon.first_part + k]; }

    T sum_of_coordinates(Pull<T> *pulls) const {
        T total = parameters[tendon.offset];
        for (int k = 0; k < tendon.num_parts; ++k) {
            const Term term(*this, k);
            const T &s = term.coefficient;
            Pull<T> &parent = pulls[2 * k];
            Pull<T> &child = pulls[2 * k + 1];
            if (term.translation) {
                const Vec3<T> y = term.displacement();
                const Vec3<T> force = term.a.R * term.in_parent;
                total += s * dot(term.in_parent, y - term.axes.parent_anchor());
                parent = {-(s * force), s * cross(term.in_parent, y)};
                child = {s * force, s * cross(term.anchor(), term.in_child())};
            } else {
                total += s * angle_about(term.turn(), term.axis);
                parent = {Vec3<T>{}, -(s * term.in_parent)};
                child = {Vec3<T>{}, s * term.in_child()};
            }
        }
        return total;
    }

    template <class R>
    void pull_back_sum(const R &by_length, const Pull<R> *c, Pull<R> *by) const {
        for (int k = 0; k < tendon.num_parts; ++k) {
            const Term term(*this, k);
            const T &s = term.coefficient;
            const Vec3<T> &direction = term.in_parent, in_child = term.in_child();
            const Pull<R> &parent = c[2 * k], &child = c[2 * k + 1];
            Pull<R> &by_parent = by[2 * k], &by_child = by[2 * k + 1];
            const R length = s * by_length;
            if (term.translation) {
                const Vec3<T> y = term.displacement();
                const Vec3<T> force = term.a.R * direction;
                const Vec3<T> p = term.anchor();
                // g·c = F_w·(c_b − c_a + R_b (γ_b × p)) + y·(γ_a × F)
                const Vec3<R> swing = cross(child.torque, p);
                const Vec3<R> bent = cross(parent.torque, direction);
                const Vec3<R> by_force = child.force - parent.force + term.b.R * swing;
                const Vec3<R> by_x = term.a.R * bent;
                by_parent.force = -(s * by_x) - length * force;
                by_parent.torque =
                    s * (cross(direction, transposed_times(term.a.R, by_force)) - cross(y, bent)) + length * cross(direction, y);
                by_child.force = s * by_x + length * force;
                by_child.torque = s * (cross(swing, in_child) + cross(p, transposed_times(term.b.R, by_x))) + length * cross(p, in_child);
            } else {
                const RotationVector<T> none{};
                const RowGradient<T, T> angle = angle_gradient(term.joint, term.axes.offset, term.turn(), none, term.axis);
                by_parent.force = by_child.force = Vec3<R>{};
                by_parent.torque = s * cross(direction, transposed_times(term.a.R, term.b.R * child.torque)) + length * angle.phi_parent;
                by_child.torque = s * cross(child.torque, in_child) + length * angle.phi_child;
            }
        }
    }
};

}  // namespace torchdojo
