// The equations of one step and their derivatives by hand. dynamics/residual.py is the specification of the equations.
#pragma once

#include "elements/elements.hpp"

namespace torchdojo {

// Computes the values that stay the same during the step; `columns` as in Problem.
template <class T>
void prepare_step(Problem<T> &problem, bool columns = true) {
    problem.columns = columns;
    problem.prepare_bodies();
    Elements<T>::each([&](auto element) { element.prepare(problem); });
}

// Residual and condensed matrix at w, with K of each contact as cones.hpp has set it, or without B K C, which `condense_step` adds later.
// If not `derived`, only the residual is computed, and the matrix is of no use. Bodies, joints and contacts with half-spaces leave it as it
// is, and rarer elements add to it.
template <bool condensed = true, bool derived = true, class T>
void linearize_step(Problem<T> &problem, const T *w) {
    if constexpr (derived)
        for (const auto &[offset, count] : problem.mechanism.fill) std::fill_n(&problem.values[offset], count, T{});
    for (int i = 0; i < problem.mechanism.num_bodies; ++i) problem.template linearize_body<derived>(i, w);
    Elements<T>::each([&](auto element) { element.template linearize<condensed, derived>(problem, w); });
}

template <class T>
void condense_step(Problem<T> &problem) {
    Elements<T>::each([&](auto element) { element.condense(problem); });
}

}  // namespace torchdojo
