// Linear systems with a row per coordinate of a tree. They couple coordinates on one branch alone, from a leaf to the root; eliminating leaves
// first leaves it so (Featherstone 2008, "Rigid Body Dynamics Algorithms", section 6.5).
#pragma once

#include <algorithm>
#include <vector>

#include "base/simd.hpp"

namespace torchdojo {

template <class T>
class BranchSystem {
public:
    static constexpr int chunk = 8;  // right-hand sides that are solved for together: factors are read once

    // up: for each coordinate those after it on the way to the root.
    void set(std::vector<std::vector<int>> up) {
        above = std::move(up);
        size = int(above.size());
        below.resize(size);
        matrix.resize(size_t(size) * size);
        inverse.resize(size);
        for (int k = 0; k < size; ++k)
            for (const int to : above[k]) below[to].push_back(k);
        starts.resize(size_t(size) * ((size + chunk - 1) / chunk));
        for (int first = 0; first < size; first += chunk) {
            std::vector<char> filled(size, 0);
            for (int c = first; c < std::min(first + chunk, size); ++c) {
                filled[c] = 1;
                for (const int to : above[c]) filled[to] = 1;
            }
            for (int k = 0; k < size; ++k)
                for (const int from : below[k])
                    if (filled[from]) starts[size_t(size) * (first / chunk) + k].push_back(from);
        }
    }

    TD_INLINE T &operator()(int row, int column) { return matrix[size_t(size) * row + column]; }

    // Keeps the matrix for `misfit`.
    void keep() { kept = matrix; }

    void factor() {
        for (int k = 0; k < size; ++k) {
            const T *pivot_row = &matrix[size_t(size) * k];
            inverse[k] = 1.0 / pivot_row[k];
            for (const int row : above[k]) {
                T *to = &matrix[size_t(size) * row];
                const T part = to[k] * inverse[k];
                to[k] = part;
                for (const int column : above[k]) to[column] -= part * pivot_row[column];
            }
        }
    }

    // Solves for v (size, chunk) in place.
    void solve(T *v) const { solve(v, below.data()); }
    // The same where v starts as rows `first` to `first` + `chunk` of the unit matrix.
    void solve_unit(T *v, int first) const { solve(v, &starts[size_t(size) * (first / chunk)]); }

    // rest −= (kept matrix) v
    void misfit(const T *v, T *rest) const {
        for (int k = 0; k < size; ++k) {
            const T *row = &kept[size_t(size) * k];
            T *to = rest + chunk * k;
            subtract(to, row, below[k], v);
            for (int c = 0; c < chunk; ++c) to[c] -= row[k] * v[chunk * k + c];
            subtract(to, row, above[k], v);
        }
    }

private:
    int size = 0;
    std::vector<T> matrix, kept, inverse;  // the matrix and then its factors; 1/pivots
    std::vector<std::vector<int>> above, below;
    std::vector<std::vector<int>> starts;  // per chunk and row: the entries of `below` that elimination fills from rows of the unit matrix

    void solve(T *v, const std::vector<int> *sources) const {
        for (int k = 0; k < size; ++k)
            if (!sources[k].empty()) subtract(v + chunk * k, &matrix[size_t(size) * k], sources[k], v);
        for (int k = size - 1; k >= 0; --k) {
            T *solution = v + chunk * k;
            subtract(solution, &matrix[size_t(size) * k], above[k], v);
            for (int c = 0; c < chunk; ++c) solution[c] *= inverse[k];
        }
    }

    // to −= Σ row[k] v[k] over coordinates k
    static TD_INLINE void subtract(T *to, const T *row, const std::vector<int> &coordinates, const T *v) {
        T sum[chunk];
        for (int c = 0; c < chunk; ++c) sum[c] = to[c];
        for (const int k : coordinates) {
            const T part = row[k], *other = v + chunk * k;
            for (int c = 0; c < chunk; ++c) sum[c] -= part * other[c];
        }
        for (int c = 0; c < chunk; ++c) to[c] = sum[c];
    }
};

}  // namespace torchdojo
