// Vectors, fused multiply-add and number formats: the only code that differs between instruction sets.
//
// Elementwise work uses W, the widest vector of the build; its width changes no result. A dot product always uses
// eight lanes (Dot) and one reduction tree, whatever the build. Everything has internal linkage: objects built for
// different instruction sets must never share an inline function.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include "ts.h"

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float W __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));

#define TS_INLINE inline __attribute__((always_inline))

TS_INLINE W load(const float *p) { W x; memcpy(&x, p, sizeof x); return x; }
TS_INLINE void save(float *p, W x) { memcpy(p, &x, sizeof x); }
TS_INLINE W splat(float x) { return x - W{}; }  // x - 0 keeps the sign of zero
TS_INLINE W greater(W a, W b) { return a > b ? a : b; }
TS_INLINE W smaller(W a, W b) { return a < b ? a : b; }

TS_INLINE W fma(W a, W b, W c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    W r;
    for (int i = 0; i < LANES; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#endif
}

// Formats. Half to single is exact; single to half rounds to nearest even; a NaN stays one and becomes quiet.

TS_INLINE W widen_half(U h) {
    const U sign = (h & 0x8000u) << 16, special = (U)((h & 0x7c00u) == 0x7c00u);
    const U quiet = (U)((h & 0x03ffu) != 0u) & special & 0x00400000u;
    const W scaled = (W)((h & 0x7fffu) << 13) * 0x1p112f;  // denormal halves become normal floats
    const U wide = ((h & 0x7fffu) << 13) | 0x7f800000u | quiet;
    return (W)((special ? wide : (U)scaled) | sign);
}

TS_INLINE uint16_t half_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // rounds to 65536 or is infinite
    if (a < 0x33000001u) return (uint16_t)sign;               // at most half of the smallest denormal
    if (a < 0x38800000u) {                                    // denormal half: shift the whole significand
        const int shift = 126 - (int)(a >> 23);
        const uint32_t m = (a & 0x7fffffu) | 0x800000u, kept = m >> shift, rest = m & ((1u << shift) - 1), mid = 1u << (shift - 1);
        return (uint16_t)(sign | (kept + (rest > mid || (rest == mid && (kept & 1u)))));
    }
    return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}

TS_INLINE uint16_t bfloat_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}

template <int F> constexpr int BYTES = F == TS_F32 ? 4 : 2;

// LANES elements of format F, starting at element i of p.
template <int F> TS_INLINE W fetch(const char *p, int64_t i) {
    if constexpr (F == TS_F32) return load((const float *)p + i);
    H h;
    memcpy(&h, p + 2 * i, sizeof h);
    if constexpr (F == TS_BF16) return (W)(__builtin_convertvector(h, U) << 16);
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__)
    return _mm256_cvtph_ps((__m128i)h);
#else
    return widen_half(__builtin_convertvector(h, U));
#endif
}

template <int F> TS_INLINE float fetch_one(const char *p, int64_t i) {
    if constexpr (F == TS_F32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    if constexpr (F == TS_BF16) {
        const uint32_t u = (uint32_t)h << 16;
        float x;
        memcpy(&x, &u, 4);
        return x;
    }
    return widen_half(U{} + (uint32_t)h)[0];
}

// Eight partial sums of a dot product: lane j takes elements j, j+8, j+16.. in that order.

#if defined(__AVX2__)
typedef __m256 Dot;
TS_INLINE Dot dot_zero() { return _mm256_setzero_ps(); }
TS_INLINE Dot dot_fma(Dot a, Dot b, Dot c) { return _mm256_fmadd_ps(a, b, c); }
template <int F> TS_INLINE Dot dot_fetch(const char *p, int64_t i) {
    if constexpr (F == TS_F32) return _mm256_loadu_ps((const float *)p + i);
    const __m128i h = _mm_loadu_si128((const __m128i *)(p + 2 * i));
    if constexpr (F == TS_BF16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    return _mm256_cvtph_ps(h);
}
#else
struct Dot { W low, high; };
TS_INLINE Dot dot_zero() { return Dot{W{}, W{}}; }
TS_INLINE Dot dot_fma(Dot a, Dot b, Dot c) { return Dot{fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
template <int F> TS_INLINE Dot dot_fetch(const char *p, int64_t i) { return Dot{fetch<F>(p, i), fetch<F>(p, i + 4)}; }
#endif

// The sums of eight Dots: lanes j and j+4 first, then j and j+2, then j and j+1.
TS_INLINE void dot_sums(const Dot *d, float *out) {
#if defined(__AVX2__)
    __m256 four[4], two[2];
    for (int k = 0; k < 4; ++k)
        four[k] = _mm256_add_ps(_mm256_permute2f128_ps(d[k], d[k + 4], 0x20), _mm256_permute2f128_ps(d[k], d[k + 4], 0x31));
    for (int k = 0; k < 2; ++k) {
        const __m256d a = _mm256_castps_pd(four[2 * k]), b = _mm256_castps_pd(four[2 * k + 1]);
        two[k] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd)));
#else
    for (int k = 0; k < 8; ++k) {
        const W four = d[k].low + d[k].high;
        out[k] = (four[0] + four[2]) + (four[1] + four[3]);
    }
#endif
}

}  // namespace
