// The near terms of two polytopes (polytope.hpp). Few corners and edges of a pair are near each other, and a direction finds them.
//
// For any unit vector n, a point of one core is at least its height along n above the highest point of the other core away from it. So
// features that are higher than the reach have no near term, whichever n is. The n of the nearest points (GJK: Gilbert, Johnson and Keerthi
// 1988) leaves the fewest.
#pragma once

#include "base/near_term.hpp"

namespace torchdojo {

// Pose of one core in the frame of another one.
struct RelativePose {
    Vec3<double> x;
    Mat3<double> R;
    Vec3<double> operator()(const Vec3<double> &p) const { return x + R * p; }
};

inline RelativePose relative_pose(const Vec3<double> *x, const Mat3<double> *R) {
    RelativePose pose = {transposed_times(R[1], x[0] - x[1]), {}};
    for (int k = 0; k < 3; ++k) {
        const Vec3<double> column = transposed_times(R[1], R[0].column(k));
        for (int i = 0; i < 3; ++i) pose.R.m[3 * i + k] = column[i];
    }
    return pose;
}

// Corners of two cores between which their nearest points lie, from which the next search starts, and a lower bound of their distance, or 0.
struct NearStart {
    int32_t count = 0, a[3], b[3];
    double apart = 0.0;
};

// The nearest points of two cores a and b, in the frame of b.
class NearestPoints {
public:
    Vec3<double> apart{0, 0, 0};  // from b to a; zero where cores overlap
    bool overlap = false, far = false;
    int supports = 0;

    // Stops where cores are farther than `most` apart.
    NearestPoints(const Polytope &a, const Polytope &b, const RelativePose &pose, double most, NearStart &start) : a(a), b(b), pose(pose) {
        if (start.count)
            for (int k = 0; k < start.count; ++k) put(start.a[k], start.b[k]);
        else {
            const Vec3<double> between = pose(a.center) - b.center;
            put(support(a, transposed_times(pose.R, -between)), support(b, between));
        }
        start.apart = search(most);
        start.count = overlap ? 0 : count;
        for (int k = 0; k < start.count; ++k) {
            start.a[k] = of_a[k];
            start.b[k] = of_b[k];
        }
    }

private:
    static constexpr int most_supports = 32;
    static constexpr double exact = 1e-8;  // gap of the squared distance to its bound, relative to it: directions are exact to 1e-4
    const Polytope &a, &b;
    const RelativePose &pose;
    int count = 0, of_a[4], of_b[4];
    Vec3<double> w[4];  // differences of corners

    void put(int i, int j) {
        of_a[count] = i;
        of_b[count] = j;
        w[count++] = pose(a.corner(i)) - b.corner(j);
    }

    // Returns a lower bound of the distance, or 0.
    double search(double most) {
        reduce();
        double square = dot(apart, apart);
        while (!overlap && supports < most_supports) {
            if (!(square > 1e-24)) {
                overlap = true;
                return 0.0;
            }
            const int i = support(a, transposed_times(pose.R, -apart)), j = support(b, apart);
            ++supports;
            const Vec3<double> next = pose(a.corner(i)) - b.corner(j);
            const double along = dot(apart, next);
            if (along > 0 && along * along > most * most * square) {
                far = true;
                return along / std::sqrt(square);
            }
            bool repeated = square - along <= exact * square;
            for (int k = 0; k < count && !repeated; ++k) repeated = of_a[k] == i && of_b[k] == j;
            const double bound = std::fmax(along, 0.0) / std::sqrt(square);  // the plane of `next` is between the cores
            if (repeated) return bound;
            const Vec3<double> previous = apart;
            put(i, j);
            reduce();
            const double nearer = dot(apart, apart);
            if (!overlap && !(nearer < square)) {
                apart = previous;
                return bound;
            }
            if (overlap) apart = previous;  // any direction is right, and this one is good
            square = nearer;
        }
        return 0.0;
    }

    struct Part {
        int size = 0, corner[3];
        Vec3<double> point{0, 0, 0};
        double square = std::numeric_limits<double>::infinity();
        void take(const Part &other) {
            if (other.square < square) *this = other;
        }
    };
    Part segment(int i, int j) const {
        const Vec3<double> u = w[j] - w[i];
        const double uu = dot(u, u), t = uu > 0 ? -dot(w[i], u) / uu : 0.0;
        Part part;
        if (t <= 0 || t >= 1) {
            part.size = 1;
            part.corner[0] = t <= 0 ? i : j;
            part.point = w[part.corner[0]];
        } else {
            part.size = 2;
            part.corner[0] = i;
            part.corner[1] = j;
            part.point = w[i] + t * u;
        }
        part.square = dot(part.point, part.point);
        return part;
    }
    Part triangle(int i, int j, int k) const {
        const Vec3<double> u = w[j] - w[i], v = w[k] - w[i], n = cross(u, v);
        const double nn = dot(n, n), longest = std::fmax(dot(u, u), dot(v, v));
        Part part;
        if (nn > 1e-20 * longest * longest && dot(cross(w[i], w[j]), n) > 0 && dot(cross(w[j], w[k]), n) > 0 &&
            dot(cross(w[k], w[i]), n) > 0) {
            part.size = 3;
            part.corner[0] = i;
            part.corner[1] = j;
            part.corner[2] = k;
            part.point = (dot(w[i], n) / nn) * n;
            part.square = dot(part.point, part.point);
            return part;
        }
        part.take(segment(i, j));
        part.take(segment(j, k));
        part.take(segment(k, i));
        return part;
    }
    // The point of the simplex that is nearest to zero, and the corners that carry it.
    void reduce() {
        Part part;
        if (count == 1) {
            part.size = 1;
            part.corner[0] = 0;
            part.point = w[0];
        } else if (count == 2) {
            part = segment(0, 1);
        } else if (count == 3) {
            part = triangle(0, 1, 2);
        } else {
            bool outside = false;
            for (int k = 0; k < 4; ++k) {
                const int i = (k + 1) % 4, j = (k + 2) % 4, l = (k + 3) % 4;
                const Vec3<double> n = cross(w[j] - w[i], w[l] - w[i]);
                const double height = dot(n, w[k] - w[i]), height_of_origin = -dot(n, w[i]);
                if (height * height_of_origin > 0 && std::fabs(height) > 1e-14 * std::sqrt(dot(n, n))) continue;
                outside = true;
                part.take(triangle(i, j, l));
            }
            if (!outside) {
                overlap = true;
                return;
            }
        }
        int kept_a[3], kept_b[3];
        Vec3<double> kept_w[3];
        for (int k = 0; k < part.size; ++k) {
            kept_a[k] = of_a[part.corner[k]];
            kept_b[k] = of_b[part.corner[k]];
            kept_w[k] = w[part.corner[k]];
        }
        count = part.size;
        apart = part.point;
        for (int k = 0; k < count; ++k) {
            of_a[k] = kept_a[k];
            of_b[k] = kept_b[k];
            w[k] = kept_w[k];
        }
    }
};

// Searches of one thread, with their memory.
class NearSearch {
public:
    // The nearest terms of a pair with gaps below `reach`, up to `capacity` of them, the nearest first. Each is (kind, feature, feature).
    // Returns the number of terms. Crossings of lines farther apart than `reach` do not count, whatever their blended gap is. Where shapes
    // overlap, terms in excess of the capacity do not count either: the nearest ones lead out.
    int64_t operator()(const Polytope &a, const Polytope &b, const Vec3<double> *x, const Mat3<double> *R, double reach, int64_t capacity,
                       double *terms, double *gaps, NearStart &start) {
        const double radius = a.radius + b.radius;
        const TwoPoses poses = {{x[0], x[1]}, {R[0], R[1]}};
        int64_t number_found = 0;
        const auto add = [&](int kind, int i, int j) {
            const int term[3] = {kind, i, j};
            const NearTerm<double> candidate = near_term<double>(a, b, poses, term, 0.0);
            // Lines of edges that are past each other belong to no nearest points, unless the cores overlap a little.
            if (!(candidate.gap < reach) ||
                (kind == crossing_term && (!(candidate.weight > 0) || !(candidate.raw < reach) || candidate.raw < -past * radius)))
                return;
            int64_t place = std::min(number_found++, capacity);
            for (; place > 0 && gaps[place - 1] > candidate.gap; --place)
                if (place < capacity) {
                    gaps[place] = gaps[place - 1];
                    std::copy_n(terms + 3 * (place - 1), 3, terms + 3 * place);
                }
            if (place >= capacity) return;
            gaps[place] = candidate.gap;
            for (int k = 0; k < 3; ++k) terms[3 * place + k] = term[k];
        };
        const Vec3<double> between = x[0] - x[1];
        const double bound = a.extent + b.extent + radius + reach;
        start.apart = 0.0;
        if (dot(between, between) > bound * bound) return 0;
        if (a.vertices + b.vertices == 2 || a.ellipsoid || b.ellipsoid) {
            add(corner_term, 0, 0);
            return number_found;
        }
        const RelativePose pose = relative_pose(x, R);
        const double edge_near = width(a, b, reach), near = edge_near - 2 * ends;
        // A distance beyond the need is a bound for some more steps.
        const NearestPoints points(a, b, pose, edge_near + looks_beyond, start);
        if (start.apart > edge_near) return 0;
        const double square = dot(points.apart, points.apart);
        const Vec3<double> n = square > 0 ? (1 / std::sqrt(square)) * points.apart : Vec3<double>{0, 0, 1};

        const double lowest = -measure(a, -transposed_times(pose.R, n), -dot(n, pose.x), sides[0]), top = measure(b, n, 0.0, sides[1]);
        if (lowest - top > edge_near) return 0;
        choose(a, near, edge_near, -top, sides[0]);
        choose(b, near, edge_near, lowest, sides[1]);
        for (const int i : sides[0].corners)
            if (!is_beyond(b, pose(a.corner(i)), radius + reach)) add(corner_term, i, 0);
        for (const int i : sides[1].corners)
            if (!is_beyond(a, transposed_times(pose.R, b.corner(i) - pose.x), radius + reach)) add(other_corner_term, i, 0);
        place(a, pose, sides[0]);
        place(b, {{0, 0, 0}, {{1, 0, 0, 0, 1, 0, 0, 0, 1}}}, sides[1]);
        const double widest = std::fmax(radius + reach, (past - 1) * radius) * (1 + 1e-9) + 1e-12;
        for (const Edge &edge_a : sides[0].edges)
            for (const Edge &edge_b : sides[1].edges)
                if (-edge_a.low - edge_b.low <= near && may_cross(edge_a, edge_b, radius + reach, widest))
                    add(crossing_term, edge_a.number, edge_b.number);
        return number_found > capacity && gaps[0] < -constant::near_terms::reach ? capacity : number_found;
    }

    // Distance of cores from which on they have no terms nearer than `reach`. Crossings count beyond the ends of edges, and there is a margin
    // for rounding and tilted planes.
    static double width(const Polytope &a, const Polytope &b, double reach) {
        return a.radius + b.radius + reach + Polytope::tilt * (a.size + b.size) + 2 * ends;
    }

private:
    static constexpr double looks_beyond = 0.1;  // [m]
    static constexpr double past = constant::near_terms::past, ends = constant::near_terms::ends;
    struct Edge {
        int number;
        double low, half, square, over;  // over: share of the edge's length by which a crossing may be beyond its ends
        Vec3<double> start, along, middle, inward[2], outward;
        bool lone;  // whether the edge has no faces
    };
    struct Side {
        std::vector<double> depth;  // position of each corner along the direction towards the other core
        std::vector<int> corners, numbers;
        std::vector<Edge> edges;
    } sides[2];

    // Whether the plane of some face tells that a point is farther from a core than `most`.
    static bool is_beyond(const Polytope &core, const Vec3<double> &p, double most) {
        const Pack limit = broadcast<Pack>(most * (1 + 1e-9) + 1e-12);
        for (int i = 0; i < int(core.planes.size()) / 4; ++i)
            if (any(plane_height(core, i, p) > limit)) return true;
        return false;
    }

    // Depths of corners along a direction, and the largest one.
    static double measure(const Polytope &core, const Vec3<double> &direction, double shift, Side &side) {
        const int blocks = int(core.corners.size()) / 3;
        side.depth.resize(size_t(blocks * pack_lanes));
        Pack top = broadcast<Pack>(-std::numeric_limits<double>::infinity());
        for (int i = 0; i < blocks; ++i) {
            const Pack depth = corner_height(core, i, direction) + shift;
            std::memcpy(&side.depth[i * pack_lanes], &depth, sizeof depth);
            top = max(depth, top);
        }
        double most = top[0];
        for (int k = 1; k < pack_lanes; ++k) most = top[k] > most ? top[k] : most;
        return most;
    }

    // Corners whose height above the other core is at most `near`, and edges at corners whose height is at most `edge_near`.
    static void choose(const Polytope &core, double near, double edge_near, double other, Side &side) {
        side.corners.clear();
        side.numbers.clear();
        for (int i = 0; i < core.vertices; ++i) {
            const double height = other - side.depth[i];
            if (height > edge_near) continue;
            if (height <= near) side.corners.push_back(i);
            for (const int32_t e : core.edges_of_corner[i]) side.numbers.push_back(e);
        }
        std::sort(side.numbers.begin(), side.numbers.end());
        side.numbers.erase(std::unique(side.numbers.begin(), side.numbers.end()), side.numbers.end());
    }

    static void place(const Polytope &core, const RelativePose &pose, Side &side) {
        side.edges.clear();
        for (const int e : side.numbers) {
            const double *row = core.edge_row(e), length = core.length[e];
            const int from = int(row[0]), to = int(row[1]);
            const Vec3<double> start = pose(core.corner(from)), along = pose(core.corner(to)) - start;
            const double slope = std::fabs(side.depth[to] - side.depth[from]) / length;
            const double depth = std::max(side.depth[from], side.depth[to]) + ends * slope;
            side.edges.push_back({e,
                                  depth,
                                  0.5 * length,
                                  length * length,
                                  ends / length,
                                  start,
                                  along,
                                  start + 0.5 * along,
                                  {pose.R * load3(row + 4), pose.R * load3(row + 7)},
                                  pose.R * load3(row + 10),
                                  !core.faces});
        }
    }

    // Whether the crossing of two edges may count, by the cheap tests of `crossing_gap`. reach: largest distance of the cores. widest: largest
    // distance of the lines.
    static bool may_cross(const Edge &a, const Edge &b, double reach, double widest) {
        const Vec3<double> between = a.middle - b.middle, apart = a.start - b.start;
        const double most = a.half + b.half + reach;
        if (dot(between, between) > most * most * (1 + 1e-9)) return false;
        const Vec3<double> across = cross(a.along, b.along);
        const double square = dot(across, across), low = constant::near_terms::parallel_low;
        if (square < low * low * a.square * b.square * (1 - 1e-9)) return false;
        const double uv = dot(a.along, b.along), ud = dot(a.along, apart), vd = dot(b.along, apart);
        const double line = dot(across, apart), s = uv * vd - b.square * ud, t = a.square * vd - uv * ud;
        const auto within = [&](double along, double over) {
            return along > -(over + 1e-6) * square && along < (1 + over + 1e-6) * square;
        };
        if (!(line * line <= widest * widest * square && within(s, a.over) && within(t, b.over))) return false;
        // Whether the normal belongs to both edges.
        const Vec3<double> axis = (1 / std::sqrt(square)) * across;
        const double side = dot(axis, a.lone && b.lone ? apart : b.outward - a.outward), sign = side < 0 ? -1.0 : 1.0;
        if (std::fabs(side) < 1e-9) return true;
        for (int k = 0; k < 2; ++k)
            if (std::max(-sign * dot(a.inward[k], axis), sign * dot(b.inward[k], axis)) > constant::near_terms::cone_high + 1e-9)
                return false;
        return true;
    }
};

}  // namespace torchdojo
