// The backward recursion of differential dynamic programming, over problems and regularizations.
//
// At each node the value function is ½ dxᵀ V dx + vᵀ dx. One step back, with the linear step dx⁺ = A dx + B du + d:
//     [Qxx Qxu; Qux Quu] = [lxx luxᵀ; lux luu] + [A B]ᵀ V [A B],   (Qx, Qu) = (lx, lu) + [A B]ᵀ (v + V d).
// The policy du = k + K dx minimizes Q with Quu + μ (BᵀB + ε I) in the place of Quu, and Qux + μ BᵀA in that of Qux: a penalty on how far the
// next state moves (Tassa, Erez and Todorov 2012, eq. 10). Bounds of the inputs make k the solution of a quadratic program in a box, and rows
// of K vanish where an input is at its bound (Tassa, Mansard and Todorov 2014). The reference is torchdojo/planning/riccati.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kBoxIterations = 20;
constexpr int kLineSearch = 12;

constexpr int64_t kLanes = 8;
typedef double Vector __attribute__((vector_size(8 * kLanes)));

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

inline Vector load(const double *p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// A tile of kRows rows and kWide vectors of c += aᵀ b, with a entry (k, i) at a[k * a_k + i * a_i].
template <int kRows, int kWide>
inline void tile(double *c, int64_t ldc, const double *a, int64_t a_i, int64_t a_k, const double *b, int64_t ldb, int64_t depth) {
    Vector sum[kRows][kWide];
    for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kWide; ++j) sum[i][j] = load(c + i * ldc + j * kLanes);
    for (int64_t k = 0; k < depth; ++k) {
        Vector row[kWide];
        for (int j = 0; j < kWide; ++j) row[j] = load(b + k * ldb + j * kLanes);
        for (int i = 0; i < kRows; ++i) {
            const double factor = a[k * a_k + i * a_i];
            for (int j = 0; j < kWide; ++j) sum[i][j] += factor * row[j];
        }
    }
    for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kWide; ++j) std::memcpy(c + i * ldc + j * kLanes, &sum[i][j], sizeof(Vector));
}

template <int kRows>
inline void strip(double *c, int64_t ldc, const double *a, int64_t a_i, int64_t a_k, const double *b, int64_t ldb, int64_t depth,
                  int64_t from, int64_t to) {
    int64_t j = from;
    for (; j + 2 * kLanes <= to; j += 2 * kLanes) tile<kRows, 2>(c + j, ldc, a, a_i, a_k, b + j, ldb, depth);
    for (; j < to; j += kLanes) tile<kRows, 1>(c + j, ldc, a, a_i, a_k, b + j, ldb, depth);
}

// c (rows, cols) += aᵀ b: columns in whole vectors, so leading dimensions are padded. `upper`: only on and right of the diagonal, for
// rows up to `square`.
void multiply(double *c, int64_t ldc, const double *a, int64_t a_i, int64_t a_k, const double *b, int64_t ldb, int64_t depth, int64_t rows,
              int64_t cols, bool upper, int64_t square) {
    int64_t i = 0;
    for (; i < rows; i += 4) {
        const int64_t from = upper ? std::min(i, square) / kLanes * kLanes : 0;
        double *row = c + i * ldc;
        const double *column = a + i * a_i;
        switch (std::min<int64_t>(4, rows - i)) {
            case 4: strip<4>(row, ldc, column, a_i, a_k, b, ldb, depth, from, cols); break;
            case 3: strip<3>(row, ldc, column, a_i, a_k, b, ldb, depth, from, cols); break;
            case 2: strip<2>(row, ldc, column, a_i, a_k, b, ldb, depth, from, cols); break;
            default: strip<1>(row, ldc, column, a_i, a_k, b, ldb, depth, from, cols);
        }
    }
}

// Cholesky factor of a (m, m) in place, lower triangle. False where a is not positive definite.
bool cholesky(double *a, int64_t m) {
    for (int64_t j = 0; j < m; ++j) {
        double d = a[j * m + j];
        for (int64_t k = 0; k < j; ++k) d -= a[j * m + k] * a[j * m + k];
        if (!(d > 0.0) || !std::isfinite(d)) return false;
        d = std::sqrt(d);
        a[j * m + j] = d;
        for (int64_t i = j + 1; i < m; ++i) {
            double s = a[i * m + j];
            for (int64_t k = 0; k < j; ++k) s -= a[i * m + k] * a[j * m + k];
            a[i * m + j] = s / d;
        }
    }
    return true;
}

// x (m, q) = a⁻¹ x in place, with the factor of a.
void solve(const double *l, double *x, int64_t m, int64_t q) {
    for (int64_t i = 0; i < m; ++i) {
        double *row = x + i * q;
        for (int64_t k = 0; k < i; ++k) {
            const double f = l[i * m + k];
            for (int64_t j = 0; j < q; ++j) row[j] -= f * x[k * q + j];
        }
        const double inverse = 1.0 / l[i * m + i];
        for (int64_t j = 0; j < q; ++j) row[j] *= inverse;
    }
    for (int64_t i = m - 1; i >= 0; --i) {
        double *row = x + i * q;
        for (int64_t k = i + 1; k < m; ++k) {
            const double f = l[k * m + i];
            for (int64_t j = 0; j < q; ++j) row[j] -= f * x[k * q + j];
        }
        const double inverse = 1.0 / l[i * m + i];
        for (int64_t j = 0; j < q; ++j) row[j] *= inverse;
    }
}

struct Box {
    std::vector<double> factor, gradient, trial, step;
    std::vector<char> held, before;
    explicit Box(int64_t m) : factor(m * m), gradient(m), trial(m), step(m), held(m), before(m) {}

    bool factorize(const double *H, int64_t m) {
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < m; ++j) factor[i * m + j] = held[i] || held[j] ? double(i == j) : H[i * m + j];
        return cholesky(factor.data(), m);
    }

    static double value(const double *H, const double *g, const double *x, int64_t m) {
        double total = 0.0;
        for (int64_t i = 0; i < m; ++i) {
            double s = 0.0;
            for (int64_t j = 0; j < m; ++j) s += H[i * m + j] * x[j];
            total += x[i] * (0.5 * s + g[i]);
        }
        return total;
    }

    // x = argmin ½ xᵀHx + gᵀx in [lower, upper] by projected Newton steps. Leaves the factor of the free inputs and `held`.
    bool minimize(const double *H, const double *g, const double *lower, const double *upper, double *x, int64_t m) {
        for (int64_t i = 0; i < m; ++i) x[i] = std::min(std::max(0.0, lower[i]), upper[i]);
        std::fill(before.begin(), before.end(), 2);
        for (int round = 0; round < kBoxIterations; ++round) {
            double scale = 0.0, free_gradient = 0.0;
            for (int64_t i = 0; i < m; ++i) {
                double s = g[i];
                for (int64_t j = 0; j < m; ++j) s += H[i * m + j] * x[j];
                gradient[i] = s;
                scale = std::max(scale, std::fabs(g[i]));
                held[i] = (x[i] <= lower[i] && s > 0.0) || (x[i] >= upper[i] && s < 0.0);
                if (!held[i]) free_gradient = std::max(free_gradient, std::fabs(s));
            }
            if (held != before && !factorize(H, m)) return false;
            before = held;
            if (free_gradient <= 1e-12 * (scale + 1e-300)) return true;
            for (int64_t i = 0; i < m; ++i) step[i] = held[i] ? 0.0 : -gradient[i];
            solve(factor.data(), step.data(), m, 1);
            const double start = value(H, g, x, m);
            double slope = 0.0, alpha = 1.0;
            for (int64_t i = 0; i < m; ++i) slope += step[i] * gradient[i];
            bool moved = false;
            for (int search = 0; search < kLineSearch && !moved; ++search, alpha *= 0.5) {
                for (int64_t i = 0; i < m; ++i) trial[i] = std::min(std::max(x[i] + alpha * step[i], lower[i]), upper[i]);
                moved = value(H, g, trial.data(), m) <= start + 0.1 * alpha * slope + 1e-15 * std::fabs(start);
            }
            if (!moved) return true;
            std::copy(trial.begin(), trial.end(), x);
        }
        return true;
    }
};

// Leading dimensions: N = padded(n) for V, lxx, Kp and S; Q = padded(n + m) for AB, VM and H.
struct Workspace {
    int64_t N, Q;
    std::vector<double> AB, lxx, VM, H, g, Qr, Qux, Quuk, Kp, S;
    Box box;
    Workspace(int64_t n, int64_t m)
        : N(padded(n)), Q(padded(n + m)), AB(n * Q), lxx(n * N), VM(n * Q), H((n + m) * Q), g(Q), Qr(m * m), Qux(m * n), Quuk(m), Kp(m * N),
          S(m * N), box(m) {}
};

// The value function of a sweep, at the node that it has come to.
struct Value {
    std::vector<double> V, v, next;
    double first = 0.0, second = 0.0;  // of `expected`
    bool ok = true;
    Value(int64_t n, int64_t N) : V(n * N), v(n), next(n) {}
};

}  // namespace

extern "C" {

struct TdRiccati {
    int64_t problems, regularizations, steps, n, m, threads;
    const double *AB;  // (P, T, n, n + m): A and B side by side
    const double *BB;  // (P, T, m, n + m): BᵀA and BᵀB side by side
    const double *defect;  // (P, T, n), or null
    const double *lx, *lxx;  // (P, T + 1, n), (P, T + 1, n, n)
    const double *lu, *luu;  // (P, T, m), (P, T, m, m)
    const double *lux;  // (P, T, m, n), or null
    const double *lower, *upper;  // (P, T, m) least and largest du, or null
    const double *mu;  // (P, M)
    double floor;  // ε
    double *k, *K;  // (P, M, T, m), (P, M, T, m, n)
    double *expected;  // (P, M, 2): Σ kᵀQu and Σ ½ kᵀQuu k
    double *dx, *du;  // (P, M, T + 1, n), (P, M, T, m), or null
    int64_t *ok;  // (P, M)
};

// Numbers that all regularizations of a problem share at node t.
static void load(const TdRiccati &in, int64_t problem, int64_t t, Workspace &w) {
    const int64_t n = in.n, q = in.n + in.m;
    const double *AB = in.AB + (problem * in.steps + t) * n * q, *lxx = in.lxx + (problem * (in.steps + 1) + t) * n * n;
    for (int64_t i = 0; i < n; ++i) {
        std::copy_n(AB + i * q, q, w.AB.data() + i * w.Q);
        for (int64_t j = i; j < n; ++j) w.lxx[i * w.N + j] = 0.5 * (lxx[i * n + j] + lxx[j * n + i]);
    }
}

// A node of a sweep, and where it stands among all sweeps and all nodes.
struct Node {
    int64_t problem, item, node, t;
    Node(const TdRiccati &in, int64_t problem, int64_t which, int64_t t)
        : problem(problem), item(problem * in.regularizations + which), node(problem * in.steps + t), t(t) {}
    double *k(const TdRiccati &in) const { return in.k + (item * in.steps + t) * in.m; }
    double *K(const TdRiccati &in) const { return in.K + (item * in.steps + t) * in.m * in.n; }
};

// Q of a node from the value function of the next one: g has (Qx, Qu), H has [xx upper, xu; ., uu], Qux is the other half, and Qr is Quu with
// the regularization. Takes the defect into v.
static void expand(const TdRiccati &in, const Node &at, Workspace &w, Value &value) {
    const int64_t n = in.n, m = in.m, q = n + m, N = w.N, Q = w.Q;
    const double mu = in.mu[at.item], *BB = in.BB + at.node * m * q, *lu = in.lu + at.node * m, *luu = in.luu + at.node * m * m;
    const double *V = value.V.data();
    if (in.defect) {
        const double *d = in.defect + at.node * n;
        std::copy_n(value.v.data(), n, value.next.data());
        for (int64_t i = 0; i < n; ++i)  // V is symmetric
            for (int64_t j = 0; j < n; ++j) value.next[j] += d[i] * V[i * N + j];
        value.v.swap(value.next);
    }
    std::fill(w.VM.begin(), w.VM.end(), 0.0);
    std::fill(w.H.begin(), w.H.end(), 0.0);
    std::fill(w.g.begin(), w.g.end(), 0.0);
    multiply(w.VM.data(), Q, V, N, 1, w.AB.data(), Q, n, n, Q, false, 0);
    multiply(w.H.data(), Q, w.AB.data(), 1, Q, w.VM.data(), Q, n, q, Q, true, n);
    multiply(w.g.data(), Q, value.v.data(), n, 1, w.AB.data(), Q, n, 1, Q, false, 0);
    double *Quu = w.H.data() + n * Q + n;  // rows Q apart, complete from column n on
    for (int64_t i = 0; i < m; ++i) {
        w.g[n + i] += lu[i];
        for (int64_t j = 0; j < m; ++j) {
            Quu[i * Q + j] += luu[i * m + j];
            w.Qr[i * m + j] = Quu[i * Q + j] + mu * (BB[i * q + n + j] + (i == j ? in.floor : 0.0));
        }
        for (int64_t j = 0; j < n; ++j) w.Qux[i * n + j] = w.H[j * Q + n + i];
        if (in.lux)
            for (int64_t j = 0; j < n; ++j) w.Qux[i * n + j] += in.lux[(at.node * m + i) * n + j];
    }
}

// Writes the policy of a node. False where Quu is not positive definite.
static bool choose(const TdRiccati &in, const Node &at, Workspace &w) {
    const int64_t n = in.n, m = in.m, q = n + m;
    const double mu = in.mu[at.item], *BB = in.BB + at.node * m * q, *Qu = w.g.data() + n;
    double *k = at.k(in), *K = at.K(in);
    if (in.lower) {
        if (!w.box.minimize(w.Qr.data(), Qu, in.lower + at.node * m, in.upper + at.node * m, k, m)) return false;
    } else {
        std::fill(w.box.held.begin(), w.box.held.end(), 0);
        if (!w.box.factorize(w.Qr.data(), m)) return false;
        for (int64_t i = 0; i < m; ++i) k[i] = -Qu[i];
        solve(w.box.factor.data(), k, m, 1);
    }
    for (int64_t i = 0; i < m; ++i) {
        if (w.box.held[i]) std::fill_n(K + i * n, n, 0.0);
        else
            for (int64_t j = 0; j < n; ++j) K[i * n + j] = -(w.Qux[i * n + j] + mu * BB[i * q + j]);
    }
    solve(w.box.factor.data(), K, m, n);
    return true;
}

// V and v of a node under its policy, with the Quu and Qux that are not regularized.
static void evaluate(const TdRiccati &in, const Node &at, Workspace &w, Value &value) {
    const int64_t n = in.n, m = in.m, N = w.N, Q = w.Q;
    const double *lx = in.lx + (at.node + at.problem) * n;  // a problem has one node more than steps
    const double *Quu = w.H.data() + n * Q + n, *Qu = w.g.data() + n, *k = at.k(in), *K = at.K(in);
    double *V = value.V.data(), *v = value.v.data();
    for (int64_t j = 0; j < n; ++j) v[j] = lx[j] + w.g[j];
    for (int64_t i = 0; i < m; ++i) {
        double s = 0.0;
        for (int64_t j = 0; j < m; ++j) s += Quu[i * Q + j] * k[j];
        const double slope = s + Qu[i];
        value.first += k[i] * Qu[i];
        value.second += 0.5 * k[i] * s;
        // S = ½ Quu K + Qux, so that KᵀS + SᵀK = KᵀQuuK + KᵀQux + QuxᵀK
        double *S = w.S.data() + i * N;
        const double *row = K + i * n, *Qux = w.Qux.data() + i * n;
        for (int64_t j = 0; j < n; ++j) v[j] += row[j] * slope + Qux[j] * k[i];
        std::copy_n(row, n, w.Kp.data() + i * N);
        std::copy_n(Qux, n, S);
        for (int64_t a = 0; a < m; ++a) {
            const double f = 0.5 * Quu[i * Q + a];
            for (int64_t j = 0; j < n; ++j) S[j] += f * K[a * n + j];
        }
    }
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i; j < n; ++j) V[i * N + j] = w.lxx[i * N + j] + w.H[i * Q + j];
    multiply(V, N, w.Kp.data(), 1, N, w.S.data(), N, m, n, N, true, n);
    multiply(V, N, w.S.data(), 1, N, w.Kp.data(), N, m, n, N, true, n);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) V[i * N + j] = V[j * N + i];
}

// Takes the value function from node t + 1 to node t, and writes the policy there. False where Quu is not positive definite.
static bool back(const TdRiccati &in, const Node &at, Workspace &w, Value &value) {
    expand(in, at, w, value);
    if (!choose(in, at, w)) return false;
    evaluate(in, at, w, value);
    return true;
}

// dx and du: the policy on the linear steps.
static void follow(const TdRiccati &in, int64_t problem, int64_t which) {
    const int64_t n = in.n, m = in.m, q = n + m, T = in.steps, item = problem * in.regularizations + which;
    const double *k = in.k + item * T * m, *K = in.K + item * T * m * n;
    double *dx = in.dx + item * (T + 1) * n, *du = in.du + item * T * m;
    std::fill_n(dx, n, 0.0);
    for (int64_t t = 0; t < T; ++t) {
        const double *AB = in.AB + (problem * T + t) * n * q;
        const double *x = dx + t * n;
        double *u = du + t * m, *next = dx + (t + 1) * n;
        for (int64_t i = 0; i < m; ++i) {
            double s = k[t * m + i];
            for (int64_t j = 0; j < n; ++j) s += K[(t * m + i) * n + j] * x[j];
            u[i] = s;
            if (in.lower) {
                const int64_t place = (problem * T + t) * m + i;
                u[i] = std::min(std::max(s, in.lower[place]), in.upper[place]);
            }
        }
        for (int64_t i = 0; i < n; ++i) {
            double s = in.defect ? in.defect[(problem * T + t) * n + i] : 0.0;
            for (int64_t j = 0; j < n; ++j) s += AB[i * q + j] * x[j];
            for (int64_t j = 0; j < m; ++j) s += AB[i * q + n + j] * u[j];
            next[i] = s;
        }
    }
}

// The result of a sweep that failed: zeros, which try nothing.
static void clear(const TdRiccati &in, int64_t item) {
    std::fill_n(in.k + item * in.steps * in.m, in.steps * in.m, 0.0);
    std::fill_n(in.K + item * in.steps * in.m * in.n, in.steps * in.m * in.n, 0.0);
    std::fill_n(in.expected + 2 * item, 2, 0.0);
    if (!in.dx) return;
    std::fill_n(in.dx + item * (in.steps + 1) * in.n, (in.steps + 1) * in.n, 0.0);
    std::fill_n(in.du + item * in.steps * in.m, in.steps * in.m, 0.0);
}

// Sweeps of `count` regularizations of a problem, from `first` on. They go from node to node together: what they share is read once.
static void sweep(const TdRiccati &in, int64_t problem, int64_t first, int64_t count, Workspace &w, std::vector<Value> &values) {
    const int64_t n = in.n, T = in.steps;
    const double *lx = in.lx + (problem * (T + 1) + T) * n, *lxx = in.lxx + (problem * (T + 1) + T) * n * n;
    for (int64_t c = 0; c < count; ++c) {
        Value &value = values[c];
        value.first = value.second = 0.0, value.ok = true;
        std::copy_n(lx, n, value.v.data());
        for (int64_t i = 0; i < n; ++i) std::copy_n(lxx + i * n, n, value.V.data() + i * w.N);
    }
    for (int64_t t = T - 1; t >= 0; --t) {
        load(in, problem, t, w);
        for (int64_t c = 0; c < count; ++c) values[c].ok = values[c].ok && back(in, Node(in, problem, first + c, t), w, values[c]);
    }
    for (int64_t c = 0; c < count; ++c) {
        const int64_t item = problem * in.regularizations + first + c;
        const Value &value = values[c];
        in.expected[2 * item] = value.first;
        in.expected[2 * item + 1] = value.second;
        in.ok[item] = value.ok && std::isfinite(value.first) && std::isfinite(value.second);
        if (!in.ok[item]) clear(in, item);
        else if (in.dx) follow(in, problem, first + c);
    }
}

void td_riccati(const TdRiccati *in) {
    // One thread takes all regularizations of a problem, unless threads would be left without one.
    const int64_t together = in->problems < in->threads ? 1 : in->regularizations, parts = in->regularizations / together;
    const int64_t items = in->problems * parts;
#pragma omp parallel num_threads(static_cast<int>(std::max<int64_t>(1, std::min(in->threads, items))))
    {
        Workspace workspace(in->n, in->m);
        std::vector<Value> values(together, Value(in->n, workspace.N));
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) sweep(*in, item / parts, item % parts, together, workspace, values);
    }
}
}
