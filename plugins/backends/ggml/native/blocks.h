// Block-quantised weight formats: how 32 consecutive values of a row become bytes, and what scales them.
//
// Layouts are ggml's (ggml-common.h states them); nothing else of ggml is used. Simple formats scale 32 values with
// half-precision numbers. Super formats scale 256 values with half-precision numbers and, within them, 32 or 16 values
// with small integers.
#pragma once
#include "lanes.h"

namespace {

constexpr int PANEL = 8;  // weight rows that are multiplied together

// bytes: of one block. depth: how many products of pairs a 16-bit sum holds; 1 means that values are signed.
// zero: subtracted from every value. minimum: whether blocks carry a value to add. scales: integer scales of 32 values.
struct Q4_0 { static constexpr int bytes = 18, depth = 8, zero = 8, scales = 0; static constexpr bool minimum = false; };
struct Q4_1 { static constexpr int bytes = 20, depth = 8, zero = 0, scales = 0; static constexpr bool minimum = true; };
struct Q5_0 { static constexpr int bytes = 22, depth = 4, zero = 16, scales = 0; static constexpr bool minimum = false; };
struct Q5_1 { static constexpr int bytes = 24, depth = 4, zero = 0, scales = 0; static constexpr bool minimum = true; };
struct Q8_0 { static constexpr int bytes = 34, depth = 1, zero = 0, scales = 0; static constexpr bool minimum = false; };
struct Q4_K { static constexpr int bytes = 144, depth = 8, zero = 0, scales = 1; static constexpr bool minimum = true; };
struct Q5_K { static constexpr int bytes = 176, depth = 4, zero = 0, scales = 1; static constexpr bool minimum = true; };
struct Q6_K { static constexpr int bytes = 210, depth = 2, zero = 32, scales = 2; static constexpr bool minimum = false; };

TS_INLINE uint16_t load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
TS_INLINE uint32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
TS_INLINE float half_at(const uint8_t *p) { return fetch_one<TS_F16>((const char *)p, 0); }

// 32 bytes, and the few operations that unpacking needs.
#if defined(__AVX2__)
typedef __m256i Bytes;
TS_INLINE Bytes bytes_at(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
TS_INLINE Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
// (byte >> shift & mask) << to, of 32 bytes.
template <int MASK, int TO> TS_INLINE Bytes bits_at(const uint8_t *p, int shift) {
    const Bytes v = _mm256_and_si256(_mm256_srl_epi16(bytes_at(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(MASK));
    return TO ? _mm256_slli_epi16(v, TO) : v;
}
// Low nibbles of 16 bytes, then their high nibbles.
TS_INLINE Bytes nibbles_at(const uint8_t *p) {
    const __m128i q = _mm_loadu_si128((const __m128i *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(q, 4), q), _mm256_set1_epi8(15));
}
// Byte i is 16 where bit i is set, else 0.
TS_INLINE Bytes fifth_bits(uint32_t bits) {
    const __m256i from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    const __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), from), one);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, one), _mm256_set1_epi8(16));
}
#else
struct Bytes { uint8_t v[32]; };
TS_INLINE Bytes bytes_at(const uint8_t *p) { Bytes r; memcpy(r.v, p, 32); return r; }
TS_INLINE Bytes either(Bytes a, Bytes b) {
    for (int i = 0; i < 32; ++i) a.v[i] |= b.v[i];
    return a;
}
template <int MASK, int TO> TS_INLINE Bytes bits_at(const uint8_t *p, int shift) {
    Bytes r;
    for (int i = 0; i < 32; ++i) r.v[i] = (uint8_t)((p[i] >> shift & MASK) << TO);
    return r;
}
TS_INLINE Bytes nibbles_at(const uint8_t *p) {
    Bytes r;
    for (int i = 0; i < 16; ++i) { r.v[i] = p[i] & 15; r.v[i + 16] = p[i] >> 4; }
    return r;
}
TS_INLINE Bytes fifth_bits(uint32_t bits) {
    Bytes r;
    for (int i = 0; i < 32; ++i) r.v[i] = (uint8_t)((bits >> i & 1) << 4);
    return r;
}
#endif

// Values 32*b .. 32*b+31 of a weight row, as bytes in that order.
template <class T> TS_INLINE Bytes values(const uint8_t *row, int64_t b);
template <> TS_INLINE Bytes values<Q4_0>(const uint8_t *row, int64_t b) { return nibbles_at(row + b * 18 + 2); }
template <> TS_INLINE Bytes values<Q4_1>(const uint8_t *row, int64_t b) { return nibbles_at(row + b * 20 + 4); }
template <> TS_INLINE Bytes values<Q5_0>(const uint8_t *row, int64_t b) {
    const uint8_t *p = row + b * 22;
    return either(nibbles_at(p + 6), fifth_bits(load32(p + 2)));
}
template <> TS_INLINE Bytes values<Q5_1>(const uint8_t *row, int64_t b) {
    const uint8_t *p = row + b * 24;
    return either(nibbles_at(p + 8), fifth_bits(load32(p + 4)));
}
template <> TS_INLINE Bytes values<Q8_0>(const uint8_t *row, int64_t b) { return bytes_at(row + b * 34 + 2); }
template <> TS_INLINE Bytes values<Q4_K>(const uint8_t *row, int64_t b) {
    const int j = (int)(b & 7);
    return bits_at<15, 0>(row + (b >> 3) * 144 + 16 + 32 * (j >> 1), 4 * (j & 1));
}
template <> TS_INLINE Bytes values<Q5_K>(const uint8_t *row, int64_t b) {
    const uint8_t *p = row + (b >> 3) * 176;
    const int j = (int)(b & 7);
    return either(bits_at<15, 0>(p + 48 + 32 * (j >> 1), 4 * (j & 1)), bits_at<1, 4>(p + 16, j));
}
// Two halves of 128 values; in one, the low nibbles of ql[0:32] and ql[32:64], then their high nibbles; two bits of qh each.
template <> TS_INLINE Bytes values<Q6_K>(const uint8_t *row, int64_t b) {
    const uint8_t *p = row + (b >> 3) * 210;
    const int half = (int)(b >> 2 & 1), quarter = (int)(b & 3);
    return either(bits_at<15, 0>(p + 64 * half + 32 * (quarter & 1), 4 * (quarter >> 1)),
                  bits_at<3, 4>(p + 128 + 32 * half, 2 * quarter));
}

// The integer scales of a super-block (8, or 16 for Q6_K) and, where there are minima, those (8).
template <class T> TS_INLINE void integer_scales(const uint8_t *p, int16_t *scales, int16_t *minima) {
    if constexpr (T::minimum) {  // 6 bits each in twelve bytes: four plain, four with their upper bits beside the first
        const uint32_t a = load32(p + 4), b = load32(p + 8), c = load32(p + 12);
        const uint32_t v[4] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4, b & 0x3f3f3f3fu,
                               (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4};
        for (int j = 0; j < 8; ++j) {
            scales[j] = (int16_t)(v[j / 4] >> 8 * (j % 4) & 255);
            minima[j] = (int16_t)(v[2 + j / 4] >> 8 * (j % 4) & 255);
        }
    } else {
        for (int j = 0; j < 16; ++j) scales[j] = (int8_t)p[192 + j];
    }
}

// The half-precision scale of a block or super-block, and the (subtracted or added) minimum's.
template <class T> TS_INLINE float scale_of(const uint8_t *p) { return half_at(T::scales == 2 ? p + 208 : p); }
template <class T> TS_INLINE float minimum_of(const uint8_t *p) { return T::scales ? -half_at(p + 2) : half_at(p + 2); }

}  // namespace
