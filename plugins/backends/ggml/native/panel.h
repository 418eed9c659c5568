// Eight block-quantised weight rows by a few activation rows, with one defined order of additions.
//
// A result is, over scale blocks b (of 32 or 256 values) ascending,
//     acc = fma(dw[b] * dx[b], sum[b], acc);  with a minimum also  acc = fma(mw[b] * dx[b], least[b], acc)
// where sum and least are exact integers (with the integer scales of a super-block inside). However their terms are
// grouped, the bits are the same: for one row and for many, for every instruction set.
#pragma once
#include <stdlib.h>
#include "activation.h"
#include "blocks.h"

namespace {

struct RowSet { const uint8_t *row[PANEL]; };

// values [32-block][group of four][row][4]; d, m [scale block][row]; in super formats integer scales [32-block][1 or 2][row]
// and minima [super-block][pair of 32-blocks][row][2].
struct Panel { uint8_t *values; float *d, *m; int32_t *scales; int16_t *minima; };

TS_INLINE void interleave(const Bytes *v, uint8_t *out) {
#if defined(__AVX2__)
    __m256i two[8], four[8];
    for (int i = 0; i < 4; ++i) {
        two[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        two[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            four[i + 2 * j] = _mm256_unpacklo_epi64(two[i + j], two[i + j + 2]);
            four[i + 2 * j + 1] = _mm256_unpackhi_epi64(two[i + j], two[i + j + 2]);
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_store_si256((__m256i *)(out + 32 * i), _mm256_permute2x128_si256(four[i], four[4 + i], 0x20));
        _mm256_store_si256((__m256i *)(out + 32 * i + 128), _mm256_permute2x128_si256(four[i], four[4 + i], 0x31));
    }
#else
    for (int g = 0; g < 8; ++g)
        for (int r = 0; r < PANEL; ++r) memcpy(out + 32 * g + 4 * r, v[r].v + 4 * g, 4);
#endif
}

// Half-precision scales (and minima) of block b of eight rows.
template <class T> TS_INLINE void float_scales(const RowSet &w, int64_t b, float *d, float *m) {
#if defined(__AVX2__)
    const int at = T::scales == 2 ? 208 : 0;
    const uint8_t *p[PANEL];
    for (int r = 0; r < PANEL; ++r) p[r] = w.row[r] + b * T::bytes + at;
    const auto eight = [&](int offset) {
        return _mm256_cvtph_ps(_mm_setr_epi16((short)load16(p[0] + offset), (short)load16(p[1] + offset), (short)load16(p[2] + offset),
                                              (short)load16(p[3] + offset), (short)load16(p[4] + offset), (short)load16(p[5] + offset),
                                              (short)load16(p[6] + offset), (short)load16(p[7] + offset)));
    };
    _mm256_store_ps(d, eight(0));
    if (T::minimum) _mm256_store_ps(m, T::scales ? _mm256_xor_ps(eight(2), _mm256_set1_ps(-0.0f)) : eight(2));
#else
    for (int r = 0; r < PANEL; ++r) {
        d[r] = scale_of<T>(w.row[r] + b * T::bytes);
        if (T::minimum) m[r] = minimum_of<T>(w.row[r] + b * T::bytes);
    }
#endif
}

template <class T> void unpack(const RowSet &w, int64_t blocks, const Panel &panel) {
    for (int64_t b = 0; b < blocks; ++b) {
        Bytes v[PANEL];
        for (int r = 0; r < PANEL; ++r) v[r] = values<T>(w.row[r], b);
        interleave(v, panel.values + b * 256);
        if constexpr (T::scales == 0) float_scales<T>(w, b, panel.d + b * PANEL, panel.m + b * PANEL);
    }
    if constexpr (T::scales > 0)
        for (int64_t s = 0; s < blocks / 8; ++s) {
            float_scales<T>(w, s, panel.d + s * PANEL, panel.m + s * PANEL);
            for (int r = 0; r < PANEL; ++r) {
                int16_t scales[16], minima[8];
                integer_scales<T>(w.row[r] + s * T::bytes, scales, minima);
                for (int j = 0; j < 8 * T::scales; ++j) panel.scales[(s * 8 * T::scales + j) * PANEL + r] = scales[j];
                for (int j = 0; T::minimum && j < 8; ++j) panel.minima[((s * 4 + j / 2) * PANEL + r) * 2 + j % 2] = minima[j];
            }
        }
}

// ---- eight weight rows by C activation rows ---------------------------------------------------------------------------

#if defined(__AVX2__)

// Exact sums of products over the groups of four first .. first+count-1 of 32-block b; a lane is a weight row.
template <class T, int C, int COUNT> TS_INLINE void integer_sums(const uint8_t *panel, int64_t b, int first, const Activation *x, __m256i *sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i narrow[C];
    for (int c = 0; c < C; ++c) sum[c] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int g = 0; g < COUNT; ++g) {
        const __m256i w = _mm256_load_si256((const __m256i *)(panel + b * 256 + 32 * (first + g)));
        const __m256i magnitude = T::depth == 1 ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            __m256i v = _mm256_set1_epi32((int)load32((const uint8_t *)x[c].q + 32 * b + 4 * (first + g)));
            if (T::depth == 1) v = _mm256_sign_epi8(v, w);
            const __m256i product = _mm256_maddubs_epi16(magnitude, v);
            narrow[c] = g % T::depth == 0 ? product : _mm256_add_epi16(narrow[c], product);
            if (g % T::depth == T::depth - 1) sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(narrow[c], ones));
        }
    }
}

template <class T, int C> TS_INLINE void panel_simple(const Panel &w, int64_t blocks, const Activation *x, __m256 *acc) {
    for (int64_t b = 0; b < blocks; ++b) {
        __m256i sum[C];
        integer_sums<T, C, 8>(w.values, b, 0, x, sum);
        for (int c = 0; c < C; ++c) {
            const __m256 d = _mm256_set1_ps(x[c].d[b]);
            if (T::zero) sum[c] = _mm256_sub_epi32(sum[c], _mm256_set1_epi32(T::zero * x[c].sums[b]));
            acc[c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.d + b * PANEL), d), _mm256_cvtepi32_ps(sum[c]), acc[c]);
            if (T::minimum)
                acc[c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.m + b * PANEL), d), _mm256_set1_ps((float)x[c].sums[b]), acc[c]);
        }
    }
}

template <class T, int C> TS_INLINE void panel_super(const Panel &w, int64_t blocks, const Activation *x, __m256 *acc) {
    constexpr int per = T::scales, count = 8 / per;
    for (int64_t s = 0; s < blocks / 8; ++s) {
        __m256i total[C];
        for (int c = 0; c < C; ++c) total[c] = _mm256_setzero_si256();
        for (int64_t b = 8 * s; b < 8 * s + 8; ++b)
            for (int h = 0; h < per; ++h) {
                __m256i sum[C];
                integer_sums<T, C, count>(w.values, b, h * count, x, sum);
                const __m256i scale = _mm256_load_si256((const __m256i *)(w.scales + (b * per + h) * PANEL));
                for (int c = 0; c < C; ++c) {
                    if (T::zero) sum[c] = _mm256_sub_epi32(sum[c], _mm256_set1_epi32(T::zero * (per == 2 ? x[c].halves[2 * b + h] : x[c].sums[b])));
                    total[c] = _mm256_add_epi32(total[c], _mm256_mullo_epi32(sum[c], scale));
                }
            }
        for (int c = 0; c < C; ++c) {
            const __m256 d = _mm256_set1_ps(x[c].d[s]);
            acc[c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.d + s * PANEL), d), _mm256_cvtepi32_ps(total[c]), acc[c]);
            if (!T::minimum) continue;
            __m256i least = _mm256_setzero_si256();
            for (int p = 0; p < 4; ++p) {
                const __m256i pair = _mm256_set1_epi32((int)load32((const uint8_t *)(x[c].sums + 8 * s + 2 * p)));
                least = _mm256_add_epi32(least, _mm256_madd_epi16(_mm256_load_si256((const __m256i *)(w.minima + (s * 4 + p) * 16)), pair));
            }
            acc[c] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(w.m + s * PANEL), d), _mm256_cvtepi32_ps(least), acc[c]);
        }
    }
}

template <class T, int C> TS_INLINE void multiply(const Panel &w, int64_t blocks, const Activation *x, float *const *out, int rows) {
    __m256 acc[C];
    for (int c = 0; c < C; ++c) acc[c] = _mm256_setzero_ps();
    if constexpr (T::scales) panel_super<T, C>(w, blocks, x, acc);
    else panel_simple<T, C>(w, blocks, x, acc);
    for (int c = 0; c < C; ++c) {
        float lanes[PANEL];
        _mm256_storeu_ps(lanes, acc[c]);
        memcpy(out[c], lanes, sizeof(float) * (size_t)rows);
    }
}

// ---- eight weight rows by one activation row: no panel, every weight is read once ------------------------------------

TS_INLINE __m256i pair_products(__m256i w, __m256i x, bool is_signed) {
    return is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}

// Lane r becomes the sum of the eight lanes of v[r].
TS_INLINE __m256i lane_sums(const __m256i *v) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// Eight weight rows lie one behind the other, and so do the next eight: while block b is computed, the same part of those
// is fetched.
template <class T> TS_INLINE void prefetch_next(const RowSet &w, int64_t blocks, int64_t b) {
    const char *next = (const char *)w.row[0] + (blocks + b) * PANEL * T::bytes;
#pragma GCC unroll 32
    for (int i = 0; i < PANEL * T::bytes; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
}

template <class T> TS_INLINE __m256 row_simple(const RowSet &w, int64_t blocks, const Activation &x) {
    alignas(32) float d[PANEL], m[PANEL];
    __m256 acc = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
        prefetch_next<T>(w, blocks, b);
        const __m256i q = _mm256_loadu_si256((const __m256i *)(x.q + 32 * b));
        __m256i v[PANEL];
#pragma GCC unroll 8
        for (int r = 0; r < PANEL; ++r) v[r] = _mm256_madd_epi16(pair_products(values<T>(w.row[r], b), q, T::depth == 1), _mm256_set1_epi16(1));
        __m256i sum = lane_sums(v);
        if (T::zero) sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(T::zero * x.sums[b]));
        float_scales<T>(w, b, d, m);
        const __m256 dx = _mm256_set1_ps(x.d[b]);
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(d), dx), _mm256_cvtepi32_ps(sum), acc);
        if (T::minimum) acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(m), dx), _mm256_set1_ps((float)x.sums[b]), acc);
    }
    return acc;
}

// A super-block's total (less zero * sums, scaled) of one row, spread over lanes; `least` likewise in four lanes.
template <class T> TS_INLINE __m256i row_total(const uint8_t *row, int64_t s, const Activation &x, __m128i *least) {
    int16_t scales[16], minima[8];
    integer_scales<T>(row + s * T::bytes, scales, minima);
    __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
        const int64_t b = 8 * s + j;
        const __m256i q = _mm256_loadu_si256((const __m256i *)(x.q + 32 * b));
        const __m256i scale = T::scales == 2 ? _mm256_set_m128i(_mm_set1_epi16(scales[2 * j + 1]), _mm_set1_epi16(scales[2 * j]))
                                             : _mm256_set1_epi16(scales[j]);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pair_products(values<T>(row, b), q, false), scale));
    }
    if (T::zero) {
        const __m256i sums = _mm256_loadu_si256((const __m256i *)(x.halves + 16 * s));
        const __m256i weighted = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)scales), sums);
        total = _mm256_sub_epi32(total, _mm256_mullo_epi32(weighted, _mm256_set1_epi32(T::zero)));
    }
    if (T::minimum) *least = _mm_madd_epi16(_mm_loadu_si128((const __m128i *)minima), _mm_loadu_si128((const __m128i *)(x.sums + 8 * s)));
    return total;
}

template <class T> TS_INLINE __m256 row_super(const RowSet &w, int64_t blocks, const Activation &x) {
    alignas(32) float d[PANEL], m[PANEL];
    __m256 acc = _mm256_setzero_ps();
    for (int64_t s = 0; s < blocks / 8; ++s) {
        prefetch_next<T>(w, blocks / 8, s);
        __m256i v[PANEL];
        __m128i least[PANEL];
        for (int r = 0; r < PANEL; ++r) v[r] = row_total<T>(w.row[r], s, x, &least[r]);
        float_scales<T>(w, s, d, m);
        const __m256 dx = _mm256_set1_ps(x.d[s]);
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(d), dx), _mm256_cvtepi32_ps(lane_sums(v)), acc);
        if (!T::minimum) continue;
        for (int r = 0; r < PANEL; ++r) v[r] = _mm256_zextsi128_si256(least[r]);
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(m), dx), _mm256_cvtepi32_ps(lane_sums(v)), acc);
    }
    return acc;
}

template <class T> TS_INLINE void multiply_row(const RowSet &w, int64_t blocks, const Activation &x, float *out, int rows) {
    float lanes[PANEL];
    if constexpr (T::scales) _mm256_storeu_ps(lanes, row_super<T>(w, blocks, x));
    else _mm256_storeu_ps(lanes, row_simple<T>(w, blocks, x));
    memcpy(out, lanes, sizeof(float) * (size_t)rows);
}

#else

// The definition, one weight row and one activation row at a time.
template <class T> float dot(const Panel &w, int64_t blocks, const Activation &x, int r) {
    constexpr int per = T::scales ? T::scales : 1, count = 8 / per, span = T::scales ? 8 : 1;
    float acc = 0.0f;
    for (int64_t s = 0; s < blocks / span; ++s) {
        int32_t sum = 0, least = 0;
        for (int64_t b = span * s; b < span * (s + 1); ++b) {
            for (int h = 0; h < per; ++h) {
                int32_t part = 0;
                for (int k = 4 * h * count; k < 4 * (h + 1) * count; ++k) {
                    const uint8_t v = w.values[b * 256 + 32 * (k / 4) + 4 * r + k % 4];
                    part += ((T::depth == 1 ? (int8_t)v : v) - T::zero) * x.q[32 * b + k];
                }
                sum += T::scales ? part * w.scales[(b * per + h) * PANEL + r] : part;
            }
            if (T::minimum) least += x.sums[b] * (T::scales ? w.minima[((b / 2) * PANEL + r) * 2 + b % 2] : 1);
        }
        acc = __builtin_fmaf(w.d[s * PANEL + r] * x.d[s], (float)sum, acc);
        if (T::minimum) acc = __builtin_fmaf(w.m[s * PANEL + r] * x.d[s], (float)least, acc);
    }
    return acc;
}

template <class T, int C> void multiply(const Panel &w, int64_t blocks, const Activation *x, float *const *out, int rows) {
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < rows; ++r) out[c][r] = dot<T>(w, blocks, x[c], r);
}

#endif

}  // namespace
