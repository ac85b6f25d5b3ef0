// Gradients of steps of mechanisms whose bodies touch at near terms (near_steps.hpp).
//
// The call keeps the terms, states and solutions of all steps, but not the parts of steps in halves, which are solved once more.
#pragma once

#include "abi/near_impacts.hpp"

namespace torchdojo {

inline void NearSteps::backward(double kappa, const TdGradient &g) {
    const int64_t nu = m.num_inputs, ni = m.num_impulses, nw = m.num_unknowns, nb6 = 6 * m.num_bodies;
    impulses.resize(count * ni);
    w.resize(count * nw);
    again = true;
    // Parameters of each environment, with the terms of its slots.
    std::vector<double> rows(size_t(count * width));
    for (int64_t n = 0; n < count; ++n) std::copy_n(row(n), width, &rows[n * width]);
    std::vector<double> start(count * states), end(start.size()), along(start.size()), by_z(start.size()), by_u(count * nu),
        by_wrench(g.grad_wrench ? count * nb6 : 0), by_impulses(g.grad_impulses ? count * ni : 0), inputs(r.u ? count * nu : 0);
    if (g.grad_wrench) std::fill_n(g.grad_wrench + first * nb6, count * nb6, 0.0);
    for (int64_t t = r.steps - 1; t >= 0; --t) {
        for (int64_t n = 0; n < count; ++n) {
            const int64_t in_call = first + n;
            const int64_t *stored_terms = near.terms + (in_call * near.stored + t) * pairs.size();
            for (int64_t k = 0; k < pairs.size(); ++k) {
                double *term = &rows[n * width + pairs.term[k]];
                put_term(stored_terms[pairs.place[k]], term);
                term[parameter::slot::fading] = 1.0;
            }
            std::copy_n(before_step(in_call, t), states, &start[n * states]);
            std::copy_n(r.z + in_call * r.z_stride + t * states, states, &end[n * states]);
            std::copy_n(r.w + (in_call * r.w_steps + t) * nw, nw, &w[n * nw]);
            const int64_t place = in_call * r.steps + t;
            // Halves follow below. In this call they count as steps that failed, whose gradients are zero.
            status[n] = r.substeps[place] > 1 ? int64_t(max_iterations) : r.status[place];
            iterations[n] = r.iterations[place];
            substeps[n] = 1;
            if (r.u) std::copy_n(r.u + place * nu, nu, &inputs[n * nu]);
            if (g.grad_impulses) std::copy_n(g.grad_impulses + place * ni, ni, &by_impulses[n * ni]);
            const double *grad_z = g.grad_z + in_call * g.grad_z_stride + t * states;
            for (int64_t k = 0; k < states; ++k) along[n * states + k] = grad_z[k] + (t + 1 < r.steps ? by_z[n * states + k] : 0.0);
        }
        TdRollout one = call(rows.data(), count, start.data(), r.u ? inputs.data() : nullptr);
        if (r.wrench) one.wrench = r.wrench + first * nb6;
        one.z = end.data();
        TdGradient gradient = {};
        gradient.grad_z = along.data();
        gradient.grad_z_stride = states;
        gradient.grad_impulses = g.grad_impulses ? by_impulses.data() : nullptr;
        gradient.grad_z0 = by_z.data();
        gradient.grad_u = g.grad_u ? by_u.data() : nullptr;
        gradient.grad_wrench = g.grad_wrench ? by_wrench.data() : nullptr;
        handle.backward(many, options, kappa, one, gradient, nullptr, 0, count);
        for (int64_t n = 0; n < count; ++n)
            if (r.substeps[(first + n) * r.steps + t] > 1) through_halves(n, t, kappa, along.data() + n * states, gradient);
        for (int64_t n = 0; n < count && g.grad_u; ++n) std::copy_n(&by_u[n * nu], nu, g.grad_u + ((first + n) * r.steps + t) * nu);
        for (size_t k = 0; k < by_wrench.size(); ++k) g.grad_wrench[first * nb6 + k] += by_wrench[k];
    }
    std::copy_n(by_z.data(), by_z.size(), g.grad_z0 + first * states);
}

inline void NearSteps::through_halves(int64_t n, int64_t t, double kappa, const double *along, const TdGradient &gradient) {
    const int64_t in_call = first + n, nu = m.num_inputs, ni = m.num_impulses, nb6 = 6 * m.num_bodies;
    std::copy_n(before_step(in_call, t), states, &from[n * states]);
    allow(n);
    environments[n].overflows = false;
    std::fill_n(&w[n * m.num_unknowns], m.num_unknowns, 0.0);
    std::vector<Part> parts;
    double *by_z = gradient.grad_z0 + n * states, *by_u = gradient.grad_u ? gradient.grad_u + n * nu : nullptr;
    double *by_wrench = gradient.grad_wrench ? gradient.grad_wrench + n * nb6 : nullptr;
    if (!halve(n, t, 0, &parts)) return;
    std::vector<double> carried(along, along + states), part_by_u(nu), part_by_wrench(nb6), by_start(states);
    int64_t counts[] = {success, 0, 1};
    for (size_t k = parts.size(); k-- > 0;) {
        const Part &part = parts[k];
        TdRollout one = call(part.row.data(), 1, part.start.data(), r.u ? r.u + (in_call * r.steps + t) * nu : nullptr);
        if (r.wrench) one.wrench = r.wrench + in_call * nb6;
        one.z = const_cast<double *>(part.end.data());
        one.w = const_cast<double *>(part.w.data());
        one.status = &counts[0];
        one.iterations = &counts[1];
        one.substeps = &counts[2];
        TdGradient part_gradient = {};
        part_gradient.grad_z = carried.data();
        part_gradient.grad_z_stride = states;
        part_gradient.grad_impulses = gradient.grad_impulses ? gradient.grad_impulses + n * ni : nullptr;
        part_gradient.grad_z0 = by_start.data();
        part_gradient.grad_u = by_u ? part_by_u.data() : nullptr;
        part_gradient.grad_wrench = by_wrench ? part_by_wrench.data() : nullptr;
        handle.backward(false, options, kappa, one, part_gradient, nullptr, 0, 1);
        carried = by_start;
        for (int64_t i = 0; by_u && i < nu; ++i) by_u[i] += part_by_u[i];
        for (int64_t i = 0; by_wrench && i < nb6; ++i) by_wrench[i] += part_by_wrench[i];
    }
    std::copy(carried.begin(), carried.end(), by_z);
}

}  // namespace torchdojo
