// Contacts that are pressed hard, in the system of joint_jacobian.hpp.
//
// They add entries like 1/κ to H, which cost digits. So their impulses keep rows of their own when solutions are refined, as in
// tree_adjoint.hpp: with a contact's rows J = C N by the next motions and its wrenches G = nᵀ (wrenches), H = H∘ + G K J, and for y = H⁻ᵀ e
//
//     H∘ᵀ y + Jᵀ ν = e,    ν = Kᵀ Gᵀ y.
#pragma once

#include "gradient/branch_system.hpp"
#include "gradient/tree_adjoint.hpp"

namespace torchdojo {

template <class T>
class StiffContacts {
public:
    static constexpr int chunk = BranchSystem<T>::chunk;

    explicit StiffContacts(const MechanismTable &m) : mechanism(m), stiff(m.num_contacts) {}

    bool some() const { return count > 0; }

    // Takes K of contacts that are pressed hard out of the problem, in the lanes in which they are. Bodies have been placed.
    void find(Problem<T> &problem) {
        count = 0;
        needed[0] = needed[1] = Mask<T>{};
        for (int c = 0; c < mechanism.num_contacts; ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            ContactData<T> &data = problem.contacts[c];
            const T *p = &problem.parameters[contact.parameters];
            const Vec3<T> arm = problem.bodies[contact.body].next.R * load3(p + parameter::point);
            const T gain = contact_gain(problem, contact, data, arm - p[parameter::radius] * load3(p + parameter::normal));
            const Mask<T> pressed = gain > broadcast<T>(constant::tree_gain);
            if (!any(pressed)) continue;
            needed[0] |= pressed;
            needed[1] |= gain > broadcast<T>(constant::tree_gain_twice);
            Stiff &entry = stiff[count++];
            entry.contact = c;
            const auto take = [&](T &kept, T &value) {
                kept = select(pressed, value, T{});
                value = select(pressed, T{}, value);
            };
            take(entry.data.stiffness, data.stiffness);
            for (int i = 0; i < 2; ++i) take(entry.data.coupling[i], data.coupling[i]);
            for (int i = 0; i < 4; ++i) take(entry.data.compliance[i], data.compliance[i]);
        }
    }

    // Calls set(contact, rows of the next motion and of the current one, 3 x 6, wrenches, 3 x 6, coordinates of the branch), which sets
    // them, then reads motions of coordinates, 6 numbers each.
    template <class Set>
    void place(const T *n, const T *N, const T *S, const Set &set) {
        for (int k = 0; k < count; ++k) {
            Stiff &entry = stiff[k];
            T C[18] = {}, current[18] = {}, wrench[18] = {};
            entry.up = set(entry.contact, C, current, wrench);
            for (std::vector<T> *to : {&entry.J, &entry.G, &entry.now}) to->resize(3 * entry.up->size());
            for (size_t a = 0; a < entry.up->size(); ++a)
                for (int i = 0; i < 3; ++i) {
                    const int offset = 6 * (*entry.up)[a];
                    entry.J[3 * a + i] = dot6(C + 6 * i, N + offset);
                    entry.G[3 * a + i] = dot6(wrench + 6 * i, n + offset);
                    entry.now[3 * a + i] = dot6(current + 6 * i, S + offset);
                }
        }
    }

    // Hᵀ += (G K J)ᵀ
    void add(BranchSystem<T> &system) const {
        for (int k = 0; k < count; ++k) {
            const Stiff &entry = stiff[k];
            const ContactData<T> &data = entry.data;
            for (size_t b = 0; b < entry.up->size(); ++b) {
                const T *J = &entry.J[3 * b];
                const T KJ[3] = {data.stiffness * J[0], data.coupling[0] * J[0] + data.compliance[0] * J[1] + data.compliance[1] * J[2],
                                 data.coupling[1] * J[0] + data.compliance[2] * J[1] + data.compliance[3] * J[2]};
                for (size_t a = 0; a < entry.up->size(); ++a)
                    system((*entry.up)[b], (*entry.up)[a]) +=
                        entry.G[3 * a] * KJ[0] + entry.G[3 * a + 1] * KJ[1] + entry.G[3 * a + 2] * KJ[2];
            }
        }
    }

    // Refines y, the solutions for rows `first` … of the unit matrix, and finds ν.
    void refine(const BranchSystem<T> &system, int size, int first, T *y) {
        for (int k = 0; k < count; ++k) {
            std::fill_n(stiff[k].nu, 3 * chunk, T{});
            add_multipliers(stiff[k], y);
        }
        rest.resize(size_t(size) * chunk);
        for (const Mask<T> &mask : needed) {
            if (!any(mask)) break;
            std::fill(rest.begin(), rest.end(), T{});
            for (int c = 0; c < std::min(chunk, size - first); ++c) rest[chunk * (first + c) + c] = broadcast<T>(1.0);
            system.misfit(y, rest.data());
            for (int k = 0; k < count; ++k) {
                const Stiff &entry = stiff[k];
                for (size_t a = 0; a < entry.up->size(); ++a)
                    for (int i = 0; i < 3; ++i) {
                        const T part = entry.J[3 * a + i], *nu = entry.nu + chunk * i;
                        T *to = &rest[chunk * (*entry.up)[a]];
                        for (int c = 0; c < chunk; ++c) to[c] -= part * nu[c];
                    }
            }
            system.solve(rest.data());
            for (size_t k = 0; k < rest.size(); ++k) {
                rest[k] = select(mask, rest[k], T{});
                y[k] += rest[k];
            }
            for (int k = 0; k < count; ++k) add_multipliers(stiff[k], rest.data());
        }
    }

    // Calls add(coordinate, values of the chunk) with −νᵀ (rows of the current motion) S.
    template <class Add>
    void each_now(const Add &add) const {
        for (int k = 0; k < count; ++k) {
            const Stiff &entry = stiff[k];
            for (size_t a = 0; a < entry.up->size(); ++a) {
                const T *by = &entry.now[3 * a];
                T sum[chunk];
                for (int c = 0; c < chunk; ++c)
                    sum[c] = -(by[0] * entry.nu[c] + by[1] * entry.nu[chunk + c] + by[2] * entry.nu[2 * chunk + c]);
                add((*entry.up)[a], sum);
            }
        }
    }

private:
    struct Stiff {
        int contact;
        ContactData<T> data;  // K, zero in lanes that are not pressed
        const std::vector<int> *up;
        std::vector<T> J, G, now;  // 3 numbers for each coordinate of `up`
        T nu[3 * chunk];
    };
    const MechanismTable &mechanism;
    std::vector<Stiff> stiff;
    int count = 0;
    Mask<T> needed[2];  // lanes that are refined, and refined again; a lane does not depend on the others
    std::vector<T> rest;

    // ν += Kᵀ Gᵀ y
    void add_multipliers(Stiff &entry, const T *y) const {
        T projected[3 * chunk] = {};
        for (size_t a = 0; a < entry.up->size(); ++a)
            for (int i = 0; i < 3; ++i) {
                const T part = entry.G[3 * a + i], *from = y + chunk * (*entry.up)[a];
                for (int c = 0; c < chunk; ++c) projected[chunk * i + c] += part * from[c];
            }
        const ContactData<T> &data = entry.data;
        for (int c = 0; c < chunk; ++c) {
            const T &first = projected[chunk + c], &second = projected[2 * chunk + c];
            entry.nu[c] += data.stiffness * projected[c] + data.coupling[0] * first + data.coupling[1] * second;
            entry.nu[chunk + c] += data.compliance[0] * first + data.compliance[2] * second;
            entry.nu[2 * chunk + c] += data.compliance[1] * first + data.compliance[3] * second;
        }
    }
};

}  // namespace torchdojo
