// Every element of a mechanism, with the functions of all phases of a step and of its derivative:
//
//     prepare         computes the numbers that stay the same during the step
//
//     linearize       adds to residual and condensed matrix at w
//
//     condense        adds the condensed cones to the matrix
//
//     differentiate   computes the numbers for derivatives that do not depend on the right-hand side
//
//     multiply        adds −λᵀ ∂r/∂(z, u, f)
//
//     add_parameters  adds −λᵀ ∂r/∂(parameters)
//
// The complementarity of contacts and joints is in ConeElements (solver/cones.hpp).
#pragma once

#include "elements/contacts.hpp"
#include "elements/coupling.hpp"
#include "elements/joint.hpp"
#include "elements/joint_adjoint.hpp"
#include "elements/joint_parameters.hpp"
#include "elements/string_coupling.hpp"
#include "elements/tendon.hpp"

namespace torchdojo {

template <class T>
struct Joints : JointEquations<T>, JointAdjoint<T>, JointParameters<T> {};

template <class T>
using Elements = List<Joints<T>, Couplings<T>, StringCouplings<T>, Tendons<T>, Contacts<T>>;

}  // namespace torchdojo
