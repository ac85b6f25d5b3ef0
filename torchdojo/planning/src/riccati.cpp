// The backward recursion of differential dynamic programming, over problems and regularizations.
//
// At each node the value function is ½ dxᵀ V dx + vᵀ dx. One step back, with the linear step dx⁺ = A dx + B du + d:
//     [Qxx Qxu; Qux Quu] = [lxx 0; 0 luu] + [A B]ᵀ V [A B],   (Qx, Qu) = (lx, lu) + [A B]ᵀ (v + V d).
// The policy du = k + K dx minimizes Q with Quu + μ (BᵀB + ε I) in the place of Quu, and Qux + μ BᵀA in that of Qux: a penalty on how far the
// next state moves (Tassa, Erez and Todorov 2012, eq. 10). Bounds of the inputs make k the solution of a quadratic program in a box, and rows
// of K vanish where an input is at its bound (Tassa, Mansard and Todorov 2014). The reference is torchdojo/planning/riccati.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int kBoxIterations = 20;
constexpr int kLineSearch = 12;

// c (r, q) = or += a (r, p) times b (p, q); rows of c from column `first(i)` on.
inline void axpy4(double* c, const double* a, int64_t stride, const double* b, int64_t p, int64_t q, int64_t first) {
  int64_t k = 0;
  for (; k + 4 <= p; k += 4) {
    const double a0 = a[k * stride], a1 = a[(k + 1) * stride], a2 = a[(k + 2) * stride], a3 = a[(k + 3) * stride];
    const double *b0 = b + k * q, *b1 = b0 + q, *b2 = b1 + q, *b3 = b2 + q;
    for (int64_t j = first; j < q; ++j) c[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
  }
  for (; k < p; ++k) {
    const double a0 = a[k * stride];
    const double* b0 = b + k * q;
    for (int64_t j = first; j < q; ++j) c[j] += a0 * b0[j];
  }
}

// Cholesky factor of a (m, m) in place, lower triangle. False where a is not positive definite.
bool cholesky(double* a, int64_t m) {
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
void solve(const double* l, double* x, int64_t m, int64_t q) {
  for (int64_t i = 0; i < m; ++i) {
    double* row = x + i * q;
    for (int64_t k = 0; k < i; ++k) {
      const double f = l[i * m + k];
      for (int64_t j = 0; j < q; ++j) row[j] -= f * x[k * q + j];
    }
    const double inverse = 1.0 / l[i * m + i];
    for (int64_t j = 0; j < q; ++j) row[j] *= inverse;
  }
  for (int64_t i = m - 1; i >= 0; --i) {
    double* row = x + i * q;
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

  bool factorize(const double* H, int64_t m) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < m; ++j) factor[i * m + j] = held[i] || held[j] ? double(i == j) : H[i * m + j];
    return cholesky(factor.data(), m);
  }

  static double value(const double* H, const double* g, const double* x, int64_t m) {
    double total = 0.0;
    for (int64_t i = 0; i < m; ++i) {
      double s = 0.0;
      for (int64_t j = 0; j < m; ++j) s += H[i * m + j] * x[j];
      total += x[i] * (0.5 * s + g[i]);
    }
    return total;
  }

  // x = argmin ½ xᵀHx + gᵀx in [lower, upper] by projected Newton steps. Leaves the factor of the free inputs and `held`.
  bool minimize(const double* H, const double* g, const double* lower, const double* upper, double* x, int64_t m) {
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

struct Workspace {
  std::vector<double> V, v, VM, H, g, Qr, Qux, sol, Quuk, QuuK, S, lower, upper;
  Box box;
  Workspace(int64_t n, int64_t m)
      : V(n * n), v(n), VM(n * (n + m)), H((n + m) * (n + m)), g(n + m), Qr(m * m), Qux(m * n), sol(m * (n + 1)), Quuk(m), QuuK(m * n),
        S(m * n), lower(m), upper(m), box(m) {}
};

}  // namespace

extern "C" {

struct TdRiccati {
  int64_t problems, regularizations, steps, n, m, threads;
  const double *AB;         // (P, T, n, n + m): A and B side by side
  const double *BB;         // (P, T, m, n + m): BᵀA and BᵀB side by side
  const double *defect;     // (P, T, n), or null
  const double *lx, *lxx;   // (P, T + 1, n), (P, T + 1, n, n)
  const double *lu, *luu;   // (P, T, m), (P, T, m, m)
  const double *lower, *upper;  // (P, T, m) least and largest du, or null
  const double *mu;         // (P, M)
  double floor;             // ε
  double *k, *K;            // (P, M, T, m), (P, M, T, m, n)
  double *expected;         // (P, M, 2): Σ kᵀQu and Σ ½ kᵀQuu k
  double *dx, *du;          // (P, M, T + 1, n), (P, M, T, m), or null
  int64_t *ok;              // (P, M)
};

static void sweep(const TdRiccati& in, int64_t problem, int64_t which, Workspace& w) {
  const int64_t n = in.n, m = in.m, q = n + m, T = in.steps, item = problem * in.regularizations + which;
  const double mu = in.mu[item];
  double *k = in.k + item * T * m, *K = in.K + item * T * m * n;
  double first = 0.0, second = 0.0;
  in.ok[item] = 0;
  std::copy_n(in.lx + (problem * (T + 1) + T) * n, n, w.v.data());
  std::copy_n(in.lxx + (problem * (T + 1) + T) * n * n, n * n, w.V.data());
  for (int64_t t = T - 1; t >= 0; --t) {
    const int64_t node = problem * T + t;
    const double *AB = in.AB + node * n * q, *BB = in.BB + node * m * q;
    const double *lx = in.lx + (problem * (T + 1) + t) * n, *lxx = in.lxx + (problem * (T + 1) + t) * n * n;
    const double *lu = in.lu + node * m, *luu = in.luu + node * m * m;
    if (in.defect) {
      const double* d = in.defect + node * n;
      for (int64_t i = 0; i < n; ++i) {
        double s = 0.0;
        for (int64_t j = 0; j < n; ++j) s += w.V[i * n + j] * d[j];
        w.g[i] = s;
      }
      for (int64_t i = 0; i < n; ++i) w.v[i] += w.g[i];
    }
    std::fill(w.VM.begin(), w.VM.end(), 0.0);
    std::fill(w.H.begin(), w.H.end(), 0.0);
    std::fill(w.g.begin(), w.g.end(), 0.0);
    for (int64_t i = 0; i < n; ++i) axpy4(w.VM.data() + i * q, w.V.data() + i * n, 1, AB, n, q, 0);
    for (int64_t i = 0; i < q; ++i) axpy4(w.H.data() + i * q, AB + i, q, w.VM.data(), n, q, std::min(i, n));
    axpy4(w.g.data(), w.v.data(), 1, AB, n, q, 0);
    // H has [xx upper, xu; ., uu]; rows of u are complete from column n on.
    double* Quu = w.H.data() + n * q + n;  // rows q apart
    for (int64_t i = 0; i < m; ++i) {
      w.g[n + i] += lu[i];
      for (int64_t j = 0; j < m; ++j) {
        Quu[i * q + j] += luu[i * m + j];
        w.Qr[i * m + j] = Quu[i * q + j] + mu * (BB[i * q + n + j] + (i == j ? in.floor : 0.0));
      }
      for (int64_t j = 0; j < n; ++j) w.Qux[i * n + j] = w.H[j * q + n + i];
    }
    const double* Qu = w.g.data() + n;
    double *kt = k + t * m, *Kt = K + t * m * n;
    if (in.lower) {
      if (!w.box.minimize(w.Qr.data(), Qu, in.lower + node * m, in.upper + node * m, kt, m)) return;
    } else {
      std::fill(w.box.held.begin(), w.box.held.end(), 0);
      if (!w.box.factorize(w.Qr.data(), m)) return;
      for (int64_t i = 0; i < m; ++i) kt[i] = -Qu[i];
      solve(w.box.factor.data(), kt, m, 1);
    }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) Kt[i * n + j] = w.box.held[i] ? 0.0 : -(w.Qux[i * n + j] + mu * BB[i * q + j]);
    solve(w.box.factor.data(), Kt, m, n);
    // V and v of this node, with the Quu and Qux that are not regularized.
    for (int64_t i = 0; i < m; ++i) {
      double s = 0.0;
      for (int64_t j = 0; j < m; ++j) s += Quu[i * q + j] * kt[j];
      w.Quuk[i] = s + Qu[i];
      first += kt[i] * Qu[i];
      second += 0.5 * kt[i] * s;
      // S = ½ Quu K + Qux, so that KᵀS + SᵀK = KᵀQuuK + KᵀQux + QuxᵀK
      double* S = w.S.data() + i * n;
      for (int64_t j = 0; j < n; ++j) S[j] = w.Qux[i * n + j];
      for (int64_t a = 0; a < m; ++a) {
        const double f = 0.5 * Quu[i * q + a];
        for (int64_t j = 0; j < n; ++j) S[j] += f * Kt[a * n + j];
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      double s = lx[i] + w.g[i];
      for (int64_t a = 0; a < m; ++a) s += Kt[a * n + i] * w.Quuk[a] + w.Qux[a * n + i] * kt[a];
      w.v[i] = s;
      double* row = w.V.data() + i * n;
      for (int64_t j = i; j < n; ++j) row[j] = 0.5 * (lxx[i * n + j] + lxx[j * n + i]) + w.H[i * q + j];
      for (int64_t a = 0; a < m; ++a) {
        const double f = Kt[a * n + i], s2 = w.S[a * n + i];
        const double *S = w.S.data() + a * n, *Ka = Kt + a * n;
        for (int64_t j = i; j < n; ++j) row[j] += f * S[j] + s2 * Ka[j];
      }
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < i; ++j) w.V[i * n + j] = w.V[j * n + i];
  }
  in.expected[2 * item] = first;
  in.expected[2 * item + 1] = second;
  if (!std::isfinite(first) || !std::isfinite(second)) return;
  in.ok[item] = 1;
  if (!in.dx) return;
  double *dx = in.dx + item * (T + 1) * n, *du = in.du + item * T * m;
  std::fill_n(dx, n, 0.0);
  for (int64_t t = 0; t < T; ++t) {
    const double* AB = in.AB + (problem * T + t) * n * q;
    const double* x = dx + t * n;
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

void td_riccati(const TdRiccati* in) {
  const int64_t items = in->problems * in->regularizations;
#pragma omp parallel num_threads(static_cast<int>(std::max<int64_t>(1, std::min(in->threads, items))))
  {
    Workspace workspace(in->n, in->m);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) sweep(*in, item / in->regularizations, item % in->regularizations, workspace);
  }
}
}
