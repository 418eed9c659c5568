// One tile of attend: 32 key rows against a few query rows. Every (query row, key) pair has one order of operations,
// whichever rows are computed together.
#pragma once
#include "elementary.h"

namespace {

constexpr int TILE = 32;

// Where the rows of a tile lie, and in what format.
struct Rows { const char *at[TILE]; int type; };

struct Span { int begin, end; };

// Up to eight keys against Q query rows: out[q*TILE + k] = <query q, key k>. dim is a multiple of 8.
template <int Q, int F> TS_INLINE void eight_scores(const float *q, int ldq, const char *const *key, int dim, float *out) {
    constexpr int K = Q == 1 ? 8 : 4;  // sums, one vector of each query and one of a key fill 16 registers
    Dot sums[Q][8];
    for (int first = 0; first < 8; first += K) {
        Dot sum[Q][K];
        for (int i = 0; i < Q; ++i)
            for (int k = 0; k < K; ++k) sum[i][k] = dot_zero();
        for (int d = 0; d < dim; d += 8) {
            Dot query[Q];
            for (int i = 0; i < Q; ++i) query[i] = dot_fetch<TS_F32>((const char *)(q + i * ldq), d);
            for (int k = 0; k < K; ++k) {
                const Dot x = dot_fetch<F>(key[first + k], d);
                for (int i = 0; i < Q; ++i) sum[i][k] = dot_fma(query[i], x, sum[i][k]);
            }
        }
        for (int i = 0; i < Q; ++i)
            for (int k = 0; k < K; ++k) sums[i][first + k] = sum[i][k];
    }
    for (int i = 0; i < Q; ++i) dot_sums(sums[i], out + i * TILE);
}

template <int Q, int F> void scores(const float *q, int ldq, const Rows &keys, Span span, int dim, float *out) {
    for (int k = span.begin & ~7; k < span.end; k += 8) {
        const char *key[8];  // rows outside the span are not there; any row that is serves in their place
        for (int i = 0; i < 8; ++i) key[i] = keys.at[k + i < span.begin || k + i >= span.end ? span.begin : k + i];
        eight_scores<Q, F>(q, ldq, key, dim, out + k);
    }
}

// a[q] = a[q] * c[q] + sum over the span, ascending, of p[q] * value, for N vectors of columns from column `at` on.
template <int Q, int F, int N>
TS_INLINE void columns(float *a, int lda, const float *p, const float *c, const Rows &values, Span span, int at) {
    W sum[Q][N];
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) sum[i][n] = load(a + i * lda + at + n * LANES) * c[i];
    for (int k = span.begin; k < span.end; ++k) {
        W weight[Q];
        for (int i = 0; i < Q; ++i) weight[i] = splat(p[i * TILE + k]);
        for (int n = 0; n < N; ++n) {
            const W x = fetch<F>(values.at[k], at + n * LANES);
            for (int i = 0; i < Q; ++i) sum[i][n] = fma(weight[i], x, sum[i][n]);
        }
    }
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) save(a + i * lda + at + n * LANES, sum[i][n]);
}

// The same for all columns. width is a multiple of LANES.
template <int Q, int F>
void weigh(float *a, int lda, const float *p, const float *c, const Rows &values, Span span, int width) {
    constexpr int N = Q == 1 ? 8 : 4;
    int at = 0;
    for (; at + N * LANES <= width; at += N * LANES) columns<Q, F, N>(a, lda, p, c, values, span, at);
    for (; at < width; at += LANES) columns<Q, F, 1>(a, lda, p, c, values, span, at);
}

// l[q] = l[q] * c[q] + sum of p[q], ascending, for Q query rows at once. A weight outside a row's span is zero.
template <int Q> void totals(float *l, const float *p, const float *c) {
    float sum[Q];
    for (int i = 0; i < Q; ++i) sum[i] = l[i] * c[i];
    for (int k = 0; k < TILE; ++k)
        for (int i = 0; i < Q; ++i) sum[i] += p[i * TILE + k];
    for (int i = 0; i < Q; ++i) l[i] = sum[i];
}

struct Softmax { float scale, softcap; };

TS_INLINE float largest(W x) {
    float most[LANES];
    save(most, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
    return most[0];
}

// Scores become weights exp(x - m) in place, zero outside the span; m is raised to the tile's maximum. Returns old m - new m.
inline float weights(float *x, Span span, Softmax how, float *m) {
    constexpr int N = TILE / LANES;
    W s[N];
    for (int n = 0; n < N; ++n) {
        s[n] = load(x + n * LANES) * how.scale;
        if (how.softcap != 0.0f) s[n] = hyperbolic_tangent(s[n] / how.softcap) * how.softcap;
    }
    if (span.end - span.begin < TILE) {
        for (int n = 0; n < N; ++n) save(x + n * LANES, s[n]);
        for (int k = 0; k < span.begin; ++k) x[k] = -__builtin_inff();
        for (int k = span.end; k < TILE; ++k) x[k] = -__builtin_inff();
        for (int n = 0; n < N; ++n) s[n] = load(x + n * LANES);
    }
    W most = s[0];
    for (int n = 1; n < N; ++n) most = greater(most, s[n]);
    const float old = *m, here = largest(most), top = old > here ? old : here;
    for (int n = 0; n < N; ++n) save(x + n * LANES, exponential(s[n] - top));
    *m = top;
    return old - top;
}

template <int F> void scores_by(int n, const float *q, int ldq, const Rows &keys, Span span, int dim, float *out) {
    if (n == 1) scores<1, F>(q, ldq, keys, span, dim, out);
    else if (n == 2) scores<2, F>(q, ldq, keys, span, dim, out);
    else scores<3, F>(q, ldq, keys, span, dim, out);
}

template <int F>
void weigh_by(int n, float *a, int lda, const float *p, const float *c, const Rows &v, Span span, int width) {
    if (n == 1) weigh<1, F>(a, lda, p, c, v, span, width);
    else if (n == 2) weigh<2, F>(a, lda, p, c, v, span, width);
    else weigh<3, F>(a, lda, p, c, v, span, width);
}

// How many of n query rows to take together: as many as registers hold, and no single one left over from four.
TS_INLINE int bundle(int n) { return n == 4 ? 2 : n < 3 ? n : 3; }

template <int F> void widen(const Rows &rows, Span span, int width, int padded, float *out) {
    for (int k = span.begin; k < span.end; ++k) {
        float *to = out + k * padded;
        int i = 0;
        for (; i + LANES <= width; i += LANES) save(to + i, fetch<F>(rows.at[k], i));
        for (; i < width; ++i) to[i] = fetch_one<F>(rows.at[k], i);
        for (; i < padded; ++i) to[i] = 0.0f;
    }
}

// Copy the rows of the span to a float32 buffer, padded with zeros, and let the pointers name the copies.
inline void widen(Rows &rows, Span span, int width, int padded, float *buffer) {
    if (rows.type == TS_F32) widen<TS_F32>(rows, span, width, padded, buffer);
    else if (rows.type == TS_F16) widen<TS_F16>(rows, span, width, padded, buffer);
    else widen<TS_BF16>(rows, span, width, padded, buffer);
    for (int k = span.begin; k < span.end; ++k) rows.at[k] = (const char *)(buffer + k * padded);
    rows.type = TS_F32;
}

}  // namespace
