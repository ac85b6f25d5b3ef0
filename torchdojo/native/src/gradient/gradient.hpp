// The backward pass of steps: from gradients of the next state and the impulses to gradients of state, input, wrench and parameters.
//
//   x⁺ = x + h v⁺,  φ⁺ = R(increment)ᵀ φ + M ω⁺
//
// A gradient of z⁺ has a part for w = (v⁺, ω⁺, …), a direct part for the current pose, and a part for the timestep
// (parameter_gradient.hpp). The part for w goes through the transposed system of adjoint.hpp. Gradients of quaternions are ambient and
// tangent to the sphere. With q ⊗ [1, φ/2], the gradient of a rotation vector φ is ½ vec(q̄ ⊗ g). The way back is 2 q ⊗ (0, g).
#pragma once

#include "base/interleave.hpp"
#include "solver/limit.hpp"
#include "gradient/adjoint.hpp"
#include "gradient/parameter_gradient.hpp"

namespace torchdojo {

struct GradientJob {
    Job step;                         // z, u, wrench, parameters of the step
    const double *w, *grad_z_next, *grad_impulses;  // impulses: may be null
    double *grad_z, *grad_u, *grad_wrench, *grad_parameters;  // the last three may be null; the gradient of parameters is added
    double grad_kappa;                // κ at which derivatives are taken, if they are not hard
    const double *near_limit;         // the solution for hard gradients, continued with `limit_options`; may be null
};

// Options that continue a solution to the κ at which contacts are classified (`hardened` in gradients/hard_limit.py).
inline Options limit_options(const Options &options) {
    Options limited = options;
    limited.kappa = std::min(options.kappa, constant::limit_kappa);
    limited.path_tol = constant::limit_path_tol;
    limited.residual_tol = std::max(options.residual_tol, constant::limit_residual_tol);
    limited.warm_only = true;
    limited.max_iterations = constant::limit_iterations + options.min_iterations;
    return limited;
}

template <class T>
class StepGradient {
public:
    explicit StepGradient(const MechanismTable &m)
        : mechanism(m), stepper(m), adjoint(m), w(m.num_unknowns), solution(m.num_unknowns), give(m.num_unknowns), parameters(m),
          grad_w(m.num_unknowns), grad_next(state_size * m.num_bodies), grad_impulses(m.num_impulses), wanted(m.num_contacts),
          smooth(size_t(lanes<T>) * m.num_unknowns), scratch_z(size_t(lanes<T>) * state_size * m.num_bodies),
          scratch_impulses(size_t(lanes<T>) * m.num_impulses) {}

    // Gradients of `count` steps, at most `lanes`. Lanes behind them repeat the last job. Gradients of parameters are complete after
    // `flush`.
    void run(const GradientJob *jobs, int count, const Options &options, const double *shared) {
        // Derivatives are taken at the κ of the step, or a larger one. The hard limit refines against other compliances.
        const bool on_tree = stepper.tree.usable && !mechanism.num_pairs && options.kappa >= constant::tree_kappa && !options.limit;
        load(jobs, count, options, shared, on_tree);
        adjoint.tree = on_tree ? &stepper.tree : nullptr;
        by_impulses = std::any_of(jobs, jobs + count, [](const GradientJob &job) { return job.grad_impulses != nullptr; });
        gather(grad_next, jobs, count, [](const GradientJob &job) { return job.grad_z_next; });
        gather(grad_impulses, jobs, count, [](const GradientJob &job) { return job.grad_impulses; });
        adjoint.give = options.limit ? give.data() : nullptr;
        pull_back();
        differentiate();
        if (options.complementarity_aware) escape();
        store(jobs, count);
        if (jobs[0].grad_parameters) add_parameters(jobs, count);
    }

    void flush() { parameters.flush(); }

    // The problems of the jobs, with their solutions in w and the points at which derivatives are taken in `solution`. `on_tree`: the tree
    // is prepared instead of the columns of joints.
    void load(const GradientJob *jobs, int count, const Options &options, const double *shared, bool on_tree = false) {
        move(jobs, count, options, shared);
        stepper.bind(options, shared);
        Problem<T> &problem = stepper.problem;
        if (!shared) gather(problem.parameters, jobs, count, [](const GradientJob &job) { return job.step.parameters; });
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const Job &step = jobs[std::min(lane, count - 1)].step;
            const double *parameters = shared ? shared : step.parameters;
            set(problem.parameters[parameter::timestep], lane, parameters[parameter::timestep] * step.timestep_factor);
            problem.samples[lane] = parameters;
        }
        gather(problem.z, jobs, count, [](const GradientJob &job) { return job.step.z; });
        gather(problem.u, jobs, count, [](const GradientJob &job) { return job.step.u; });
        gather(problem.wrench, jobs, count, [](const GradientJob &job) { return job.step.wrench; });
        gather(w, jobs, count, [](const GradientJob &job) { return job.w; });
        solution = w;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const int j = std::min(lane, count - 1);
            const double *start = jobs[j].near_limit ? jobs[j].near_limit
                                  : moved[j]         ? &smooth[size_t(j) * mechanism.num_unknowns]
                                                     : nullptr;
            for (int k = 0; start && k < mechanism.num_unknowns; ++k) set(solution[k], lane, start[k]);
        }
        problem.measured = Mask<T>{};
        problem.solves = !on_tree;
        prepare_step(problem, !on_tree);
        problem.solves = true;
        if (on_tree) stepper.tree.prepare(problem);
        if (options.limit) Limit<T>::apply(stepper.problem, stepper.cones, solution.data(), give.data());
    }

    const MechanismTable &mechanism;
    Stepper<T> stepper;
    Adjoint<T, T> adjoint;
    std::vector<T> w, solution, give; // give: from Limit::apply, for hard gradients

private:
    ParameterGradient<T> parameters;
    T by_timestep;                    // derivative of the next state at fixed velocities
    bool by_impulses;                 // whether some job has a gradient of its impulses
    std::vector<T> grad_w, grad_next, grad_impulses;
    std::vector<Mask<T>> wanted;      // contacts to open
    std::vector<double> smooth, scratch_z, scratch_impulses;
    bool moved[lanes<T>];

    // Numbers of all jobs side by side. The lanes behind the last job repeat its numbers. Null gives zeros.
    template <class F>
    static void gather(std::vector<T> &to, const GradientJob *jobs, int count, F &&array) {
        const double *from[lanes<T>];
        int present = 0;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            from[lane] = array(jobs[std::min(lane, count - 1)]);
            present += from[lane] != nullptr;
        }
        if (!present) return std::fill(to.begin(), to.end(), T{});
        if (present < lanes<T>) {
            for (int lane = 0; lane < lanes<T>; ++lane)
                for (size_t k = 0; k < to.size(); ++k) set(to[k], lane, from[lane] ? from[lane][k] : 0.0);
            return;
        }
        interleave(from, to.size(), to.data());
    }

    // Continues the solutions to the κ at which derivatives are taken (point_of_derivative in gradients/hard_limit.py). Jobs with the same
    // κ run together.
    void move(const GradientJob *jobs, int count, const Options &options, const double *shared) {
        auto goal = [&](int j) { return options.limit ? std::min(options.kappa, constant::limit_kappa) : jobs[j].grad_kappa; };
        bool done[lanes<T>];
        for (int j = 0; j < count; ++j) {
            moved[j] = false;
            done[j] = jobs[j].near_limit || goal(j) == options.kappa;
        }
        for (int j = 0; j < count; ++j) {
            if (done[j]) continue;
            int group[lanes<T>], size = 0;
            for (int k = j; k < count; ++k)
                if (goal(k) == goal(j)) {
                    group[size++] = k;
                    done[k] = true;
                }
            follow(jobs, group, size, goal(j), options, shared);
        }
    }

    void follow(const GradientJob *jobs, const int *group, int size, double kappa, const Options &options, const double *shared) {
        Options follow_options = options.limit ? limit_options(options) : options;
        follow_options.kappa = kappa;
        follow_options.interior = !options.limit;
        int64_t status[lanes<T>], iterations[lanes<T>], substeps[lanes<T>];
        struct Feed {
            Job jobs[lanes<T>];
            int position = 0, count;
            bool next(int, Job &job) {
                if (position == count) return false;
                job = jobs[position++];
                return true;
            }
            void finished(int, const Job &, bool) {}
        } feed;
        feed.count = size;
        for (int i = 0; i < size; ++i) {
            const int j = group[i];
            Job &job = feed.jobs[i];
            job = jobs[j].step;
            job.warm = jobs[j].w;
            job.w = &smooth[size_t(j) * mechanism.num_unknowns];
            job.z_next = &scratch_z[size_t(j) * state_size * mechanism.num_bodies];
            job.impulses = &scratch_impulses[size_t(j) * mechanism.num_impulses];
            job.status = &status[j];
            job.iterations = &iterations[j];
            job.substeps = &substeps[j];
        }
        stepper.run(feed, follow_options, shared);
        for (int i = 0; i < size; ++i) moved[group[i]] = status[group[i]] == success;
    }

    // Opening pressed contacts may give a larger gradient than the exact one just computed. The larger gradient then replaces the exact
    // one; better_of in gradients/hard_limit.py gives the reason.
    void escape() {
        const T *nu = adjoint.multiplier.data();
        T best = controls();
        bool any_wanted = false, any_inner = false;
        for (size_t c = 0; c < mechanism.contacts.size(); ++c) {
            const ContactTable &contact = mechanism.contacts[c];
            wanted[c] = select_mask(give[contact.impulse] > T{}, nu[contact.impulse] < T{}, Mask<T>{});
            any_wanted = any_wanted || any(wanted[c]);
            any_inner = any_inner || (any(wanted[c]) && between_bodies(contact));
        }
        if (!any_wanted) return;
        const std::vector<T> exact = solution, held = give;
        std::vector<T> chosen = exact, chosen_give = held;
        for (const bool all : {false, true}) {
            if (all && !any_inner) continue;
            solution = exact;
            give = held;
            for (size_t c = 0; c < mechanism.contacts.size(); ++c)
                if (all || !between_bodies(mechanism.contacts[c]))
                    Limit<T>::open(mechanism, mechanism.contacts[c], wanted[c], solution.data(), give.data());
            differentiate();
            const T size = controls();
            const Mask<T> better = size > (1.0 + constant::tie) * best;
            best = select(better, size, best);
            for (int k = 0; k < mechanism.num_unknowns; ++k) {
                chosen[k] = select(better, solution[k], chosen[k]);
                chosen_give[k] = select(better, give[k], chosen_give[k]);
            }
        }
        solution = chosen;
        give = chosen_give;
        differentiate();
    }

    // Solves the transposed system at `solution` for grad_w.
    void differentiate() {
        adjoint.factor(stepper.problem, stepper.cones, solution.data());
        adjoint.solve(stepper.problem, solution.data(), grad_w.data(), by_impulses);
        adjoint.multiply(stepper.problem, solution.data());
    }

    bool between_bodies(const ContactTable &contact) const { return other_body(mechanism, contact) < mechanism.num_bodies; }

    // Squared norm of the gradient of the inputs. Without inputs, the wrench takes their place.
    T controls() const {
        T sum{};
        for (const T &u : adjoint.gradient.u) sum += u * u;
        if (mechanism.num_inputs) return sum;
        for (int i = 0; i < mechanism.num_bodies; ++i)
            sum += dot(adjoint.gradient.force[i], adjoint.gradient.force[i]) + dot(adjoint.gradient.torque[i], adjoint.gradient.torque[i]);
        return sum;
    }

    // Turns grad_next and grad_impulses into grad_w. The direct part for the pose stays in grad_next (x) and `direct` (φ).
    void pull_back() {
        const T h = stepper.problem.timestep();
        by_timestep = T{};
        std::fill(grad_w.begin(), grad_w.end(), T{});
        for (int k = 0; k < mechanism.num_impulses; ++k) grad_w[mechanism.impulses[k]] = grad_impulses[k];
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *g = &grad_next[state_size * i];
            const Vec3<T> omega = load3(&w[6 * i + 3]), a = (0.5 * h) * omega;
            const T c = sqrt(1.0 - dot(a, a));
            const Quat<T> increment{c, a}, next = stepper.problem.bodies[i].pose.q * increment;
            const Vec3<T> phi = 0.5 * (conjugate(next) * load4(g + 6)).v;
            by_timestep += dot(load3(g), load3(&w[6 * i])) + dot(phi, omega) / c;
            // Mᵀ φ = h (c φ + a (a·φ)/c + a × φ)
            store3(&grad_w[6 * i], load3(g + 3) + h * load3(g));
            store3(&grad_w[6 * i + 3], load3(g + 10) + h * (c * phi + (dot(a, phi) / c) * a + cross(a, phi)));
            store3(&grad_next[state_size * i + 6], rotation_matrix(increment) * phi);
        }
    }

    void store(const GradientJob *jobs, int count) {
        const DataGradient<T> &g = adjoint.gradient;
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const BodyData<T> &body = stepper.problem.bodies[i];
            T *to = &grad_next[state_size * i];
            const Quat<T> q = body.pose.q * Quat<T>{T{}, g.phi[i] + load3(to + 6)};
            const T scale = 2.0 / body.q_norm;
            store3(to, g.x[i] + load3(to));
            store3(to + 3, g.v[i]);
            to[6] = scale * q.w;
            store3(to + 7, scale * q.v);
            store3(to + 10, g.omega[i]);
        }
        double *to[lanes<T>];
        for (int lane = 0; lane < count; ++lane) to[lane] = jobs[lane].grad_z;
        separate(grad_next.data(), grad_next.size(), to, count);
        for (int lane = 0; lane < count; ++lane) {
            const GradientJob &job = jobs[lane];
            for (int k = 0; job.grad_u && k < mechanism.num_inputs; ++k) job.grad_u[k] = get(g.u[k], lane);
            for (int i = 0; job.grad_wrench && i < mechanism.num_bodies; ++i)
                for (int k = 0; k < 3; ++k) {
                    job.grad_wrench[6 * i + k] = get(g.force[i][k], lane);
                    job.grad_wrench[6 * i + 3 + k] = get(g.torque[i][k], lane);
                }
        }
    }

    void add_parameters(const GradientJob *jobs, int count) {
        double *rows[lanes<T>] = {};
        T factor{};
        for (int lane = 0; lane < count; ++lane) {
            rows[lane] = jobs[lane].grad_parameters;
            set(factor, lane, jobs[lane].step.timestep_factor);
        }
        parameters.direct(rows);
        parameters.add(stepper.problem, adjoint, solution.data(), by_timestep, factor);
    }
};

}  // namespace torchdojo
