// Friction of a contact, or torsional and rolling friction, in a disc (disc.hpp) or in a pyramid (pyramid.hpp).
#pragma once

#include "elements/disc.hpp"
#include "elements/pyramid.hpp"

namespace torchdojo {

// Impulse along both axes, from the impulses of the friction.
template <class R>
TD_INLINE void tangential(const ContactTable &friction, const R *impulse, R *beta) {
    beta[0] = impulse[1];
    beta[1] = impulse[2];
    if (friction.is_pyramid()) Pyramid<R>{friction}.tangential(impulse + 1, beta);
}

// Residuals of friction in a cone of a given height, from the slip along both tangents.
template <class T>
TD_INLINE void friction_rows(const ContactTable &friction, const T &height, const T *impulse, const T *slack, const T &s1, const T &s2,
                             T *row) {
    if (friction.is_pyramid()) {
        row[0] = height - slack[0];
        for (int i = 0; i < friction.facets; ++i) {
            row[0] -= impulse[1 + i];
            row[1 + i] = friction.direction_x(i) * s1 + friction.direction_y(i) * s2 + impulse[0] - slack[1 + i];
        }
    } else if (friction.friction) {
        row[0] = impulse[0] - height;
        row[1] = s1 - slack[1];
        row[2] = s2 - slack[2];
    }
}

// K C of a condensed contact.
template <class T>
TD_INLINE void stiffen(const ContactTable &contact, const ContactData<T> &data, const T *C, T *KC) {
    for (int c = 0; c < 6; ++c) {
        KC[c] = data.stiffness * C[c];
        if (contact.friction)
            for (int i = 0; i < 2; ++i)
                KC[6 * (1 + i) + c] = data.coupling[i] * C[c] + data.compliance[2 * i] * C[6 + c] + data.compliance[2 * i + 1] * C[12 + c];
    }
}

}  // namespace torchdojo
