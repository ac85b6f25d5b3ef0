// Friction in a pyramid (LinearContact): one impulse β_i per direction d_i in the tangent plane and ψ, with slacks η_i and sψ.
//
// With the change m of the slip, the rows' residuals r and w_i = β_i/η_i, the rows are
//
//     μ δγ − Σ δβ − δsψ = −r₁      d_i·m + δψ − δη_i = −r_i      sψ δψ + ψ δsψ = ρψ      η_i δβ_i + β_i δη_i = ρ_i.
//
// They give  δψ = (ρψ − ψ (μ δγ + r₁ − Σ ρ_i/η_i + Σ w_i (d_i·m + r_i)))/(sψ + ψ Σ w),   δβ_i = ρ_i/η_i − w_i (d_i·m + δψ + r_i).
//
// So the tangential impulse Σ d_i δβ_i has the stiffness N = Σ w_i d_i d_iᵀ − b (Σ w_i d_i)ᵀ against the slip, the contact's `compliance`.
// The impulse follows μ δγ with b = Σ w_i d_i/(Σ w + sψ/ψ), the contact's `cone_coupling`.
//
// Arrays of a contact start here at its second place in w: (ψ, β) and (sψ, η).
#pragma once

#include "elements/path.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

template <class T>
struct Pyramid {
    const ContactTable &contact;

    int facets() const { return contact.facets; }
    double x(int i) const { return contact.direction_x(i); }
    double y(int i) const { return contact.direction_y(i); }

    // Σ d_i values_i
    template <class R>
    void tangential(const R *beta, R *sum) const {
        sum[0] = sum[1] = R{};
        for (int i = 0; i < facets(); ++i) {
            sum[0] += x(i) * beta[i];
            sum[1] += y(i) * beta[i];
        }
    }

    // N = ((sψ/ψ) Σ w_i d_i d_iᵀ + Σ_{i<j} w_i w_j (d_i − d_j)(d_i − d_j)ᵀ)/(Σ w + sψ/ψ). This form equals the one above. With one dominant
    // w_i, the form above would subtract large numbers.
    void condense(const T *impulse, const T *slack, T *compliance, T *cone_coupling) const {
        const T ratio = slack[0] / impulse[0];
        T total = ratio, first[2] = {T{}, T{}}, w[most_facets];
        for (int i = 0; i < 4; ++i) compliance[i] = T{};
        auto add = [&](const T &weight, double a, double b) {
            compliance[0] += weight * (a * a);
            compliance[1] += weight * (a * b);
            compliance[3] += weight * (b * b);
        };
        for (int i = 0; i < facets(); ++i) {
            w[i] = impulse[1 + i] / slack[1 + i];
            total += w[i];
            first[0] += x(i) * w[i];
            first[1] += y(i) * w[i];
            add(ratio * w[i], x(i), y(i));
            for (int j = 0; j < i; ++j) add(w[i] * w[j], x(i) - x(j), y(i) - y(j));
        }
        const T inverse = 1.0 / total;
        for (int i = 0; i < 2; ++i) cone_coupling[i] = inverse * first[i];
        for (const int i : {0, 1, 3}) compliance[i] *= inverse;
        compliance[2] = compliance[1];
    }

    // The direction for a change of slip (m0, m1) and of the height, right-hand sides ρ of the products and residuals (r₁, r_i).
    void eliminate(const T *impulse, const T *slack, const T *rho, const T *row, const T &height, const T &m0, const T &m1, T *d_impulse,
                   T *d_slack) const {
        T total{}, sum{};
        auto moved = [&](int i) { return x(i) * m0 + y(i) * m1 + row[1 + i]; };
        for (int i = 1; i <= facets(); ++i) {
            const T inverse = 1.0 / slack[i], w = inverse * impulse[i];
            total += w;
            sum += w * moved(i - 1) - inverse * rho[i];
        }
        d_impulse[0] = (rho[0] - impulse[0] * (height + row[0] + sum)) / (slack[0] + impulse[0] * total);
        d_slack[0] = (rho[0] - slack[0] * d_impulse[0]) / impulse[0];
        for (int i = 1; i <= facets(); ++i) {
            d_slack[i] = moved(i - 1) + d_impulse[0];
            d_impulse[i] = (rho[i] - impulse[i] * d_slack[i]) / slack[i];
        }
    }

    // The start at a given slip, inside a pyramid of about `height`, with products `level` (_pyramid_start in contacts.py).
    void start(const T &height, const T &s0, const T &s1, const T &level, T *impulse, T *slack) const {
        T largest{};
        for (int i = 0; i < facets(); ++i) largest = max(largest, x(i) * s0 + y(i) * s1);
        impulse[0] = largest + (1.0 + facets()) * level / max(height, level);
        slack[0] = level / impulse[0];
        for (int i = 0; i < facets(); ++i) {
            slack[1 + i] = x(i) * s0 + y(i) * s1 + impulse[0];
            impulse[1 + i] = level / slack[1 + i];
        }
    }

    // A smoothed projection onto the simplex, which pyramid_on_path in path_maps.py derives. Impulse and slack are overwritten.
    void project(const T &raw_height, const T &kappa, const T &mass, T *impulse, T *slack) const {
        const int n = facets();
        const T height = max(raw_height, broadcast<T>(constant::least_height)), level = mass * kappa;
        T d[most_facets], sorted[most_facets], root[most_facets];
        for (int i = 0; i < n; ++i) {
            d[i] = impulse[1 + i] - mass * (slack[1 + i] - impulse[0]);
            T carried = d[i];  // insertion, from the largest
            for (int k = 0; k < i; ++k) {
                const T larger = max(sorted[k], carried);
                carried = min(sorted[k], carried);
                sorted[k] = larger;
            }
            sorted[i] = carried;
        }
        T largest{}, least{};
        for (int k = 0; k <= n; ++k) {
            // The positive root of k m ψ² + missing ψ − κ.
            if (k) largest += sorted[k - 1];
            const T missing = height - largest, length = abs(missing) + sqrt(missing * missing + 4.0 * k * level);
            least = max(least, select(missing > T{}, 2.0 * kappa / length, length / (2.0 * (k ? k : 1) * mass)));
        }
        T psi = least;
        for (int step = 0;; ++step) {
            for (int i = 0; i < n; ++i) {
                const T c = d[i] - mass * psi;
                root[i] = sqrt(c * c + 4.0 * level);
                impulse[1 + i] = select(c > T{}, 0.5 * (c + root[i]), 2.0 * level / (root[i] - c));
            }
            if (step == constant::pyramid_steps) break;
            T rest = kappa / psi - height, slope{};
            for (int i = 0; i < n; ++i) {
                rest += impulse[1 + i];
                slope += impulse[1 + i] / root[i];
            }
            slope = mass * slope + kappa / (psi * psi);
            psi = max(psi + (1.0 + rest / height) * rest / slope, least);
        }
        impulse[0] = psi;
        slack[0] = kappa / psi;
        for (int i = 1; i <= n; ++i) slack[i] = kappa / impulse[i];
    }

    // Multipliers (ν_b, ν_i) of the rows, from the right-hand side g of the columns of (ψ, β) and the part b of λ along the tangents:
    //   ψ: Σ ν_i + (sψ/ψ) ν_b = g_ψ      β_i: η_i ν_i/β_i − ν_b = g_i + d_i·b = q_i
    // So ν_i = w_i ((sψ/ψ) q_i + g_ψ + Σ_j w_j (q_i − q_j))/(Σ w + sψ/ψ), again without differences of large numbers.
    template <class R>
    void multipliers(const T *impulse, const T *slack, const R *g, const R *b, R *nu) const {
        const T ratio = slack[0] / impulse[0];
        T total = ratio, w[most_facets];
        R q[most_facets], sum = g[0];
        for (int i = 0; i < facets(); ++i) {
            w[i] = impulse[1 + i] / slack[1 + i];
            total += w[i];
            q[i] = g[1 + i] + x(i) * b[0] + y(i) * b[1];
            sum -= w[i] * q[i];
        }
        const T inverse = 1.0 / total;
        nu[0] = inverse * sum;
        for (int i = 0; i < facets(); ++i) {
            R value = g[0] + ratio * q[i];
            for (int j = 0; j < facets(); ++j) value += w[j] * (q[i] - q[j]);
            nu[1 + i] = (inverse * w[i]) * value;
        }
    }
};

}  // namespace torchdojo
