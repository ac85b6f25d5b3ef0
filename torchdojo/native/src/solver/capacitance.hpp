// The transposed system by the matrix without its pressed contacts, for many right-hand sides.
//
// With A the matrix without these contacts, whose factors keep their digits (refinement.hpp), the system is
//     Aᵀ α + Cᵀ ν = b,   ν = K (g + Bᵀ α).
// With W = A⁻ᵀ Cᵀ, computed once, and y = A⁻ᵀ b, its solution is (I + K Bᵀ W) ν = K (g + Bᵀ y), α = y − W ν. That takes a small
// capacitance matrix (Hager, "Updating the inverse of a matrix", SIAM Review 31, 1989) and a product with W. It saves a product with the
// matrix and a second solution for refinement.
#pragma once

#include <numeric>

#include "solver/refinement.hpp"

namespace torchdojo {

template <class T>
class Capacitance {
public:
    explicit Capacitance(const MechanismTable &m) : mechanism(m) {}

    std::vector<int> contacts;  // left out of the matrix
    std::vector<char> left_out;  // whether each contact is left out of the matrix
    int size = 0;  // size of ν: three for each contact, or one without friction
    std::vector<T> spread;  // W, by rows of the matrix

    void clear() {
        contacts.clear();
        size = 0;
    }

    // Takes the contacts of pressed bodies out of the condensed matrix before it is factored, or none if they are too many to pay.
    bool take(const Refinement<T> &refinement, Problem<T> &problem) {
        refinement.each_pressed(problem, [&](int32_t offset, const T *) {
            for (int c = 0; c < mechanism.num_contacts; ++c)
                if (mechanism.bodies[mechanism.contacts[c].body].diagonal == offset) {
                    contacts.push_back(c);
                    size += rows(c);
                }
        });
        if (size * mechanism.schedule.num_rows > most_work * mechanism.schedule.num_values) {
            clear();
            return false;
        }
        refinement.each_pressed(problem, [&](int32_t offset, const T *before) { std::copy_n(before, 36, &problem.values[offset]); });
        spread.resize(size_t(size) * mechanism.schedule.num_rows);
        matrix.resize(size_t(size) * size);
        scale.resize(size);
        order.resize(size);
        return true;
    }

    int rows(int c) const { return mechanism.contacts[c].friction ? 3 : 1; }

    // Entry of K Bᵀ W.
    void set_entry(int row, int column, const T &value) { matrix[size_t(row) * size + column] = value + (row == column ? 1.0 : 0.0); }

    // Factors by Gaussian elimination with row scaling and partial pivoting.
    void factor() {
        const int n = size;
        for (int r = 0; r < n; ++r) {
            T largest{};
            for (int c = 0; c < n; ++c) largest = max(largest, abs(matrix[r * n + c]));
            scale[r] = 1.0 / largest;
            for (int c = 0; c < n; ++c) matrix[r * n + c] *= scale[r];
        }
        std::iota(order.begin(), order.end(), 0);
        for (int p = 0; p < n; ++p) {
            int best = p;
            for (int r = p + 1; r < n; ++r)
                if (abs(matrix[r * n + p]) > abs(matrix[best * n + p])) best = r;
            if (best != p) {
                std::swap_ranges(&matrix[p * n], &matrix[p * n] + n, &matrix[best * n]);
                std::swap(order[p], order[best]);
            }
            const T reciprocal = 1.0 / matrix[p * n + p];
            matrix[p * n + p] = reciprocal;
            for (int r = p + 1; r < n; ++r) {
                const T l = matrix[r * n + p] * reciprocal;
                matrix[r * n + p] = l;
                for (int c = p + 1; c < n; ++c) matrix[r * n + c] -= l * matrix[p * n + c];
            }
        }
    }

    // ν from K (g + Bᵀ y)
    template <class R>
    void solve(const R *right, R *nu) const {
        const int n = size;
        for (int r = 0; r < n; ++r) {
            nu[r] = scale[order[r]] * right[order[r]];
            for (int c = 0; c < r; ++c) nu[r] -= matrix[r * n + c] * nu[c];
        }
        for (int r = n - 1; r >= 0; --r) {
            for (int c = r + 1; c < n; ++c) nu[r] -= matrix[r * n + c] * nu[c];
            nu[r] *= matrix[r * n + r];
        }
    }

    // x −= W ν, several rows at once, since the sums of one row wait for each other.
    template <class R>
    void subtract_spread(const R *nu, R *x) const {
        constexpr int rows = 6;
        const int num_rows = mechanism.schedule.num_rows;
        const T *w = spread.data();
        auto subtract = [&](auto count) {
            constexpr int n = decltype(count)::value;
            R sum[n];
            for (int r = 0; r < n; ++r) sum[r] = x[r];
            for (int j = 0; j < size; ++j)
                for (int r = 0; r < n; ++r) sum[r] -= w[r * size + j] * nu[j];
            for (int r = 0; r < n; ++r) x[r] = sum[r];
            x += n;
            w += n * size;
        };
        int k = 0;
        for (; k + rows <= num_rows; k += rows) subtract(ldu::Size<rows>{});
        for (; k < num_rows; ++k) subtract(ldu::Size<1>{});
    }

private:
    static constexpr double most_work = 1.5;  // cost of the products with W, in products with the matrix
    const MechanismTable &mechanism;
    std::vector<T> matrix, scale;  // factors of I + K Bᵀ W, its rows scaled and in `order`
    std::vector<int> order;
};

}  // namespace torchdojo
