// Contacts between two bodies, and between shapes (elements/contact.py): geometry by forward derivatives, the rest by hand.
//
// φ, the normal n from b to a, the tangents and the levers belong to the next configuration. Between bodies, the impulse P = γ n + Tᵀβ acts
// at the current configuration and at a common point. There F = R and
//
//     l_a = l⁺ + Δ,  l_b = l⁺ + (x_a⁺ − x_b⁺) − Δ,  Δ = ½ ((x_a⁺ − x_a) − (x_b⁺ − x_b)).
//
// Against the world, l_a = l⁺ and F = R⁺. The torques are F_aᵀ(l_a × P) and −F_bᵀ(l_b × P). The slip is
//
//     u = v_a + (F_a ω_a) × l_a − v_b − (F_b ω_b) × l_b.
#pragma once

#include "elements/touch.hpp"

namespace torchdojo {

template <class T>
void prepare_pair_law(Problem<T> &problem, const ContactTable &contact) {
    const PairTable &pair = problem.mechanism.pairs[contact.pair];
    const int bodies[2] = {contact.body, pair.other};
    GapLaw<T>::prepare(
        problem, contact, pair.other,
        [&](const BodyPose<T> &a, const BodyPose<T> &b) -> T {
            return touch<T, T>(problem, pair, contact.body, a.x, a.R, b.x, b.R).distance;
        },
        [&](T *row) {
            using S = Dual<T>;
            Vec3<S> x[2];
            Mat3<S> R[2];
            for (const int i : {0, 1}) {
                const BodyPose<T> &pose = problem.bodies[bodies[i]].pose;
                if (bodies[i] < problem.mechanism.num_bodies) {
                    seed(pose, 6 * i, x[i], R[i]);
                } else {
                    x[i] = lift<S>(pose.x);
                    R[i] = lift<S>(pose.R);
                }
            }
            const S distance = touch<T, S>(problem, pair, contact.body, x[0], R[0], x[1], R[1]).distance;
            for (int k = 0; k < dual_size; ++k) row[k] = distance.d[k];
        });
}

// Derivatives by the velocities of a pair, from those by its next poses.
template <class T>
TD_INLINE void chain_pair(const Problem<T> &problem, const ContactTable &contact, const T *by_poses, T *twist) {
    const int bodies[2] = {contact.body, problem.mechanism.pairs[contact.pair].other};
    for (const int i : {0, 1}) {
        if (bodies[i] == problem.mechanism.num_bodies) continue;
        store3(twist + 6 * i, problem.timestep() * load3(by_poses + 6 * i));
        store3(twist + 6 * i + 3, transposed_times(problem.bodies[bodies[i]].M, load3(by_poses + 6 * i + 3)));
    }
}

// Stores B and C of both bodies (see ContactData), and the lever. along: weights of the velocities' direct parts. weight: of the impulse.
template <class T>
void store_pair_rows(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const Vec3<Dual<T>> *levers,
                     const Dual<T> *rows, const T *along, const T &weight) {
    PairData<T> &out = problem.pairs[contact.pair];
    const int bodies[2] = {contact.body, problem.mechanism.pairs[contact.pair].other};
    const bool world = bodies[1] == problem.mechanism.num_bodies;
    const Vec3<T> axes[3] = {out.n, out.t1, out.t2};
    T twist[12];
    for (int row = 0; row < 3; ++row) {
        for (int k = 0; k < dual_size; ++k) out.rows[row][k] = rows[row].d[k];
        chain_pair(problem, contact, out.rows[row], twist);
        for (const int i : {0, 1}) {
            if (i && world) continue;
            const Vec3<T> lever = out.lever[i] = value(levers[i]);
            const Vec3<T> local =
                transposed_times(world ? problem.bodies[bodies[i]].next.R : problem.bodies[bodies[i]].pose.R, cross(lever, axes[row]));
            const double sign = i ? -1.0 : 1.0;
            T *B = i ? out.other_wrench : data.wrench, *C = (i ? out.other_rows : data.rows) + 6 * row;
            for (int r = 0; r < 3; ++r) {
                B[3 * r + row] = sign * (weight * axes[row][r]);
                B[3 * (3 + r) + row] = sign * (weight * local[r]);
                C[r] = twist[6 * i + r] + along[row] * (sign * axes[row][r]);
                C[3 + r] = twist[6 * i + 3 + r] + along[row] * (sign * local[r]);
            }
        }
    }
}

// Adds the impulses of a pair to the rows of its bodies, and their derivatives by the next poses to the blocks of the matrix.
template <class T>
void add_pair_wrench(Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data, const T &gamma) {
    const PairData<T> &out = problem.pairs[contact.pair];
    const int bodies[2] = {contact.body, problem.mechanism.pairs[contact.pair].other};
    const bool world = bodies[1] == problem.mechanism.num_bodies;
    T twist[12];
    for (const int i : {0, 1}) {
        if (i && world) continue;
        const T *B = i ? out.other_wrench : data.wrench;
        for (int r = 0; r < 6; ++r) {
            problem.residual[6 * bodies[i] + r] -= B[3 * r] * gamma + B[3 * r + 1] * data.beta[0] + B[3 * r + 2] * data.beta[1];
            chain_pair(problem, contact, out.wrench[i][r], twist);
            for (const int j : {0, 1}) {
                if (j && world) continue;
                T *block = &problem.values[problem.pair_block(contact, i, j)] + 6 * r;
                for (int k = 0; k < 6; ++k) block[k] -= twist[6 * j + k];
            }
        }
    }
}

// Newton's law of restitution in the place of the gap, in lanes in which it rules. share: of a slot of polytopes; null: all. along: the weight
// of the velocities' direct part.
template <class T>
void let_pair_bounce(Problem<T> &problem, const ContactTable &contact, const Vec3<Dual<T>> *levers, const Vec3<Dual<T>> &n,
                     const Vec3<Dual<T>> &velocity, const Dual<T> *share, Dual<T> &gap, T &along) {
    using S = Dual<T>;
    const int bodies[2] = {contact.body, problem.mechanism.pairs[contact.pair].other};
    Vec3<S> incoming = lift<S>(Vec3<T>{});
    for (const int i : {0, 1}) {
        if (bodies[i] == problem.mechanism.num_bodies) continue;
        const T *state = &problem.z[state_size * bodies[i]];
        const Vec3<T> spin = problem.bodies[bodies[i]].pose.R * load3(state + 10);
        const Vec3<S> arriving = lift<S>(load3(state + 3)) + cross(spin, levers[i]);
        incoming = i ? incoming - arriving : incoming + arriving;
    }
    LawData<T> &data = problem.laws[contact.law];
    const T h = problem.timestep();
    S law = h * dot(n, velocity + problem.parameters[contact.restitution] * incoming);
    if (share) {
        const S farthest = S(broadcast<T>(2 * constant::near_terms::reach));
        law = farthest + *share * (law - farthest);
        data.share = share->v;
    }
    data.bouncing = select_mask(data.bounces, law.v < gap.v, Mask<T>{});
    gap = select(data.bouncing, law, gap);
    along = select(data.bouncing, h * data.share, T{});
}

template <class T>
void linearize_shapes(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
    using S = Dual<T>;
    const MechanismTable &m = problem.mechanism;
    const PairTable &pair = m.pairs[contact.pair];
    PairData<T> &out = problem.pairs[contact.pair];
    const bool world = pair.other == m.num_bodies;
    const T *p = &problem.parameters[contact.parameters], *impulse = w + contact.impulse, *slack = w + contact.slack;
    const int bodies[2] = {contact.body, pair.other};
    Vec3<S> x[2];
    Mat3<S> R[2];
    Vec3<T> v[2] = {}, omega[2] = {};
    for (const int i : {0, 1}) {
        const BodyData<T> &body = problem.bodies[bodies[i]];
        if (i && world) {
            x[1] = lift<S>(body.pose.x);
            R[1] = lift<S>(body.pose.R);
            continue;
        }
        seed(body.next, 6 * i, x[i], R[i]);
        v[i] = load3(w + 6 * bodies[i]);
        omega[i] = load3(w + 6 * bodies[i] + 3);
    }
    const Touch<S> touching = touch<T, S>(problem, pair, contact.body, x[0], R[0], x[1], R[1]);
    Vec3<S> direction[3] = {touching.n};
    tangents<T, S>(touching.n, direction[1], direction[2]);
    const Vec3<S> levers[2] = {touching.lever_a, touching.lever_b};
    // Frames of torques and angular velocities: of the next pose against the world, else constant.
    const auto with_frame = [&](int i, const auto &f) {
        if (world) f(R[0]);
        else f(problem.bodies[bodies[i]].pose.R);
    };
    data.beta[0] = data.beta[1] = T{};
    if (contact.friction) tangential(contact, impulse + contact.cone, data.beta);
    Vec3<S> force = impulse[0] * direction[0] + data.beta[0] * direction[1] + data.beta[1] * direction[2];
    Vec3<S> couple;
    if (contact.num_couples) {
        Mat3<S> frames[2];
        for (const int i : {0, 1}) with_frame(i, [&](const auto &frame) { frames[i] = lift<S>(frame); });
        const auto chain = [&](const T *by_poses, T *twist) { chain_pair(problem, contact, by_poses, twist); };
        couple = linearize_couples(problem, contact, direction, frames, omega, w, pair.cores[0] ? &touching.weight : nullptr, chain);
    }
    if (pair.cores[0]) force = touching.weight * force;
    const T weight = pair.cores[0] ? touching.weight.v : broadcast<T>(1.0);
    Vec3<S> velocity = lift<S>(v[0] - v[1]);
    for (const int i : {0, 1}) {
        if (i && world) continue;
        Vec3<S> moment = cross(levers[i], force), torque;
        if (contact.num_couples) moment = moment + couple;
        with_frame(i, [&](const auto &frame) {
            const Vec3<S> swing = cross(frame * omega[i], levers[i]);
            velocity = i ? velocity - swing : velocity + swing;
            torque = transposed_times(frame, moment);
        });
        for (int r = 0; r < 3; ++r) {
            const S &t = torque[r], &f = force[r];
            for (int k = 0; k < dual_size; ++k) {
                out.wrench[i][r][k] = i ? -f.d[k] : f.d[k];
                out.wrench[i][3 + r][k] = i ? -t.d[k] : t.d[k];
            }
        }
    }
    S rows[3] = {touching.distance, dot(direction[1], velocity), dot(direction[2], velocity)};
    T along[3] = {T{}, broadcast<T>(1.0), broadcast<T>(1.0)};  // weight of the velocities' direct part
    if (problem.overlaps && problem.laws[contact.law].overlaps) rows[0] = rows[0] + GapLaw<T>::shift(problem, contact, impulse[0]);
    if (Restitution<T>::acts(contact))
        let_pair_bounce(problem, contact, levers, direction[0], velocity, pair.cores[0] ? &touching.weight : nullptr, rows[0], along[0]);
    out.n = value(direction[0]);
    out.t1 = value(direction[1]);
    out.t2 = value(direction[2]);
    out.force = value(force);
    store_pair_rows(problem, contact, data, levers, rows, along, weight);
    add_pair_wrench(problem, contact, data, impulse[0]);
    T *row = &problem.residual[contact.impulse];
    row[0] = rows[0].v - slack[0];
    friction_rows(contact, p[parameter::friction] * impulse[0], impulse + contact.cone, slack + contact.cone, rows[1].v, rows[2].v,
                  row + contact.cone);
}

// The residual of `linearize_shapes` alone, where velocities have no part in the gap and impulses have no couples.
template <class T>
void evaluate_shapes(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
    const MechanismTable &m = problem.mechanism;
    const PairTable &pair = m.pairs[contact.pair];
    const bool world = pair.other == m.num_bodies;
    const T *impulse = w + contact.impulse, *slack = w + contact.slack;
    const int bodies[2] = {contact.body, pair.other};
    const BodyPose<T> &a = problem.bodies[bodies[0]].next, &b = world ? problem.bodies[bodies[1]].pose : problem.bodies[bodies[1]].next;
    const Touch<T> touching = touch<T, T>(problem, pair, contact.body, a.x, a.R, b.x, b.R);
    Vec3<T> t1, t2;
    tangents<T, T>(touching.n, t1, t2);
    data.beta[0] = data.beta[1] = T{};
    if (contact.friction) tangential(contact, impulse + contact.cone, data.beta);
    Vec3<T> force = impulse[0] * touching.n + data.beta[0] * t1 + data.beta[1] * t2, velocity{};
    if (pair.cores[0]) force = touching.weight * force;
    for (const int i : {0, 1}) {
        if (i && world) continue;
        const double sign = i ? -1.0 : 1.0;
        const Mat3<T> &frame = world ? a.R : problem.bodies[bodies[i]].pose.R;
        const Vec3<T> &lever = i ? touching.lever_b : touching.lever_a, omega = frame * load3(w + 6 * bodies[i] + 3);
        velocity = velocity + sign * (load3(w + 6 * bodies[i]) + cross(omega, lever));
        add3(&problem.residual[6 * bodies[i]], -sign * force);
        add3(&problem.residual[6 * bodies[i] + 3], -sign * transposed_times(frame, cross(lever, force)));
    }
    T gap = touching.distance;
    if (problem.overlaps && problem.laws[contact.law].overlaps) gap += GapLaw<T>::shift(problem, contact, impulse[0]);
    T *row = &problem.residual[contact.impulse];
    row[0] = gap - slack[0];
    friction_rows(contact, problem.parameters[contact.parameters + parameter::friction] * impulse[0], impulse + contact.cone,
                  slack + contact.cone, dot(t1, velocity), dot(t2, velocity), row + contact.cone);
}

template <bool derived, class T>
void linearize_pair(Problem<T> &problem, const ContactTable &contact, ContactData<T> &data, const T *w) {
    if (!BallOnPlane<T>::is(problem.mechanism, contact)) {
        if (!derived && !contact.num_couples && !Restitution<T>::acts(contact)) return evaluate_shapes(problem, contact, data, w);
        return linearize_shapes(problem, contact, data, w);
    }
    const PairTable &pair = problem.mechanism.pairs[contact.pair];
    const Vec3<T> n = problem.bodies[pair.other].pose.R * load3(&problem.parameters[pair.shape_b]);
    Vec3<T> t1, t2;
    tangents<T, T>(n, t1, t2);
    BallOnPlane<T>::linearize(problem, contact, data, w, n, t1, t2);
}

// The condensed cones of a pair: B K C over both bodies.
template <class T>
void condense_pair(Problem<T> &problem, const ContactTable &contact, const ContactData<T> &data) {
    const PairTable &pair = problem.mechanism.pairs[contact.pair];
    const PairData<T> &pair_data = problem.pairs[contact.pair];
    const int sides = pair.other == problem.mechanism.num_bodies ? 1 : 2;
    for (int j = 0; j < sides; ++j) {
        T KC[18];
        stiffen(contact, data, j ? pair_data.other_rows : data.rows, KC);
        for (int i = 0; i < sides; ++i) {
            const T *B = i ? pair_data.other_wrench : data.wrench;
            T *block = &problem.values[problem.pair_block(contact, i, j)];
            for (int r = 0; r < 6; ++r)
                for (int c = 0; c < 6; ++c) {
                    T sum = B[3 * r] * KC[c];
                    if (contact.friction) sum += B[3 * r + 1] * KC[6 + c] + B[3 * r + 2] * KC[12 + c];
                    block[6 * r + c] += sum;
                }
        }
    }
}

// Distance, slip and spin of a pair for given velocities, from which its cones start.
template <class T>
struct PairMotion {
    T distance, slip[2], spin[3];  // spins about the normal and both tangents
};

template <class T>
PairMotion<T> pair_motion(const Problem<T> &problem, const ContactTable &contact, const Vec3<T> *v, const Vec3<T> *omega) {
    const MechanismTable &m = problem.mechanism;
    const PairTable &pair = m.pairs[contact.pair];
    const bool world = pair.other == m.num_bodies;
    const T h = problem.timestep();
    Vec3<T> x[2];
    Mat3<T> R[2];
    for (const int i : {0, 1}) {
        const BodyPose<T> &start = problem.bodies[i ? pair.other : contact.body].pose;
        const BodyPose<T> next = i && world ? start : pose_after(start, h, v[i], omega[i]);
        x[i] = next.x;
        R[i] = next.R;
    }
    const Touch<T> touching = touch<T, T>(problem, pair, contact.body, x[0], R[0], x[1], R[1]);
    Vec3<T> t1, t2;
    tangents<T, T>(touching.n, t1, t2);
    Vec3<T> spin = (world ? R[0] : problem.bodies[contact.body].pose.R) * omega[0];
    Vec3<T> velocity = v[0] + cross(spin, touching.lever_a);
    if (!world) {
        const Vec3<T> other_spin = problem.bodies[pair.other].pose.R * omega[1];
        velocity = velocity - v[1] - cross(other_spin, touching.lever_b);
        spin = spin - other_spin;
    }
    return {touching.distance, {dot(t1, velocity), dot(t2, velocity)}, {dot(touching.n, spin), dot(t1, spin), dot(t2, spin)}};
}

// Contacts between bodies or shapes: derivatives of V = α_a·wrench_a + α_b·wrench_b − ν_φ gap − ν_t·slip. The derivatives by the next
// poses come from linearize_pair. The current poses enter Δ in the levers, and the frames of torques and angular velocities.
template <class T, class R>
void pair_product(AdjointState<T, R> &adjoint, const Problem<T> &problem, const ContactTable &contact, const T *w) {
    const PairTable &pair = problem.mechanism.pairs[contact.pair];
    const PairData<T> &from = problem.pairs[contact.pair];
    const bool world = pair.other == problem.mechanism.num_bodies;
    const int bodies[2] = {contact.body, pair.other};
    const Vec3<R> &nu = adjoint.touching[&contact - problem.mechanism.contacts.data()];
    const auto [law, e, gap] = Restitution<T>::weights(problem, contact);
    GapLaw<T>::multiply(adjoint, problem, contact, pair.other, nu.x * gap);
    R g[12] = {};
    for (const int i : {0, 1}) {
        if (i && world) continue;
        for (int r = 0; r < 6; ++r)
            for (int k = 0; k < 12; ++k) g[k] += from.wrench[i][r][k] * adjoint.multiplier[6 * bodies[i] + r];
    }
    for (int r = 0; r < (contact.friction ? 3 : 1); ++r)
        for (int k = 0; k < 12; ++k) g[k] -= from.rows[r][k] * nu[r];
    for (int k = contact.first_couple; k < contact.first_couple + contact.num_couples; ++k)
        couple_product(problem, k, &adjoint.turning[2 * k], w, g, adjoint.gradient.phi);
    // Factors of u⁺ and u⁻, with their signs turned.
    const Vec3<R> slip = contact.friction ? nu.y * from.t1 + nu.z * from.t2 : Vec3<R>{};
    const Vec3<R> leaving = -slip - nu.x * (law * from.n);
    const Vec3<R> arriving = -nu.x * (law * e * from.n);
    Vec3<R> by_lever[2] = {};
    for (const int i : {0, 1}) {
        if (i && world) continue;
        const double sign = i ? -1.0 : 1.0;
        const int body = bodies[i];
        const T *state = &problem.z[state_size * body];
        const Mat3<T> &pose = problem.bodies[body].pose.R;
        const Vec3<T> before = load3(state + 10), &lever = from.lever[i];
        adjoint.x_next[body] = adjoint.x_next[body] + Vec3<R>{g[6 * i], g[6 * i + 1], g[6 * i + 2]};
        adjoint.phi_next[body] = adjoint.phi_next[body] + Vec3<R>{g[6 * i + 3], g[6 * i + 4], g[6 * i + 5]};
        const Vec3<R> pull = sign * transposed_times(pose, cross(lever, arriving));  // derivative of R ω⁻ × l
        adjoint.gradient.v[body] = adjoint.gradient.v[body] + sign * arriving;
        adjoint.gradient.omega[body] = adjoint.gradient.omega[body] + pull;
        adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + cross(before, pull);
        if (world) continue;
        const Vec3<T> omega = load3(w + 6 * body + 3);
        const Vec3<T> spin = pose * omega;
        const Vec3<R> alpha = load3(&adjoint.multiplier[6 * body + 3]);
        Vec3<T> moment = cross(lever, from.force);
        if (contact.num_couples) moment = moment + from.couple;
        const Vec3<T> torque = transposed_times(pose, moment);
        by_lever[i] = sign * (cross(from.force, pose * alpha) + cross(leaving, spin) + cross(arriving, pose * before));
        // δ(Rᵀ X) = (Rᵀ X) × φ, δ(R ω) = R (φ × ω)
        const Vec3<R> turned = cross(alpha, torque) + cross(omega, transposed_times(pose, cross(lever, leaving)));
        adjoint.gradient.phi[body] = adjoint.gradient.phi[body] + sign * turned;
    }
    if (world) return;
    const Vec3<R> shift = 0.5 * (by_lever[1] - by_lever[0]);
    adjoint.gradient.x[bodies[0]] = adjoint.gradient.x[bodies[0]] + shift;
    adjoint.gradient.x[bodies[1]] = adjoint.gradient.x[bodies[1]] - shift;
}

// The geometry of shapes by forward derivatives with respect to their numbers, the shape of the body before the shape of the other one.
// by_now: weight of the current distance.
template <class T>
void pair_parameters(ParameterSum<T> &to, const Problem<T> &problem, const ContactTable &contact, const PairTable &pair,
                     const TouchGradient<T> &g, const T &by_now) {
    using S = Dual<T>;
    if (pair.cores[0]) return;  // its numbers are those of the choice, and of no shape
    const BodyData<T> &a = problem.bodies[contact.body], &b = problem.bodies[pair.other];
    const int kinds[2] = {pair.kind_a, pair.kind_b};
    const int places[2] = {pair.shape_a, pair.shape_b};
    S shapes[2][geometry::most_numbers];
    auto touching = [&](const BodyPose<T> &a, const BodyPose<T> &b) {
        const Vec3<S> x[2] = {lift<S>(a.x), lift<S>(b.x)};
        const Mat3<S> R[2] = {lift<S>(a.R), lift<S>(b.R)};
        return touch<T, S, S>(problem, pair, contact.body, x[0], R[0], x[1], R[1], shapes[0], shapes[1]);
    };
    const auto weighted = [&](const Touch<S> &next) {
        Vec3<S> t1, t2;
        tangents<T, S>(next.n, t1, t2);
        S total = g.distance * next.distance;
        for (int r = 0; r < 3; ++r) {
            total = total + g.n[r] * next.n[r] + g.lever[0][r] * next.lever_a[r] + g.lever[1][r] * next.lever_b[r];
            if (contact.friction) total = total + g.t1[r] * t1[r] + g.t2[r] * t2[r];
        }
        return total;
    };
    if (pair.kind_b == geometry::heights || pair.kind_b == geometry::grid) {
        const T *ball = &problem.parameters[pair.shape_a], *field = &problem.parameters[pair.shape_b];
        const auto add = [&](const BodyPose<T> &pose, const auto &weight) {
            const Vec3<T> centre = pose.x + pose.R * load3(ball);
            const T &radius = ball[parameter::shape::radius];
            if (pair.kind_b == geometry::grid) add_grid_samples(to, pair, problem.samples, centre, radius, field, weight);
            else add_samples(to, pair, problem.samples, centre, radius, field, weight);
        };
        const Vec3<S> x = lift<S>(a.next.x);
        add(a.next, [&](const geometry::Witness<S> &w) { return weighted({w.distance, w.normal, w.point - x, w.point, S()}); });
        if (problem.laws[contact.law].overlaps) add(a.pose, [&](const geometry::Witness<S> &w) { return by_now * w.distance; });
    }
    for (const int i : {0, 1}) {
        for (const int j : {0, 1})
            for (int k = 0; k < geometry::numbers(kinds[j]); ++k) {
                shapes[j][k] = S(problem.parameters[places[j] + k]);
                if (i == j) shapes[j][k].d[k] = broadcast<T>(1.0);
            }
        S total = weighted(touching(a.next, b.next));
        if (problem.laws[contact.law].overlaps) total = total + by_now * touching(a.pose, b.pose).distance;
        for (int k = 0; k < geometry::numbers(kinds[i]); ++k) to.sum[places[i] + k] += total.d[k];
    }
}

}  // namespace torchdojo
