// 8-bit activations: a row is quantised once, for every weight that reads it.
//
// Simple weight formats want one scale for 32 values, super formats one for 256; scale = max |x| / 127, values rounded
// to nearest even. Beside the values lie their sums, over 32 and, for super formats, over 16.
#pragma once
#include "rows.h"

namespace {

// A quantised row: scales, sums of 32 values, in super formats also of 16 values, and the values.
struct Activation { const float *d; const int16_t *sums, *halves; const int8_t *q; };

TS_INLINE int64_t activation_bytes(int64_t inner, bool super) { return super ? inner / 256 * 308 : inner / 32 * 38; }

TS_INLINE Activation activation(const char *row, int64_t inner, bool super) {
    const int64_t blocks = inner / 32, scales = super ? inner / 256 : blocks;
    const int16_t *sums = (const int16_t *)(row + 4 * scales), *halves = sums + blocks;
    return Activation{(const float *)row, sums, halves, (const int8_t *)(halves + (super ? 2 * blocks : 0))};
}

void quantise_row(const float *x, int64_t inner, bool super, char *out) {
    const int64_t span = super ? 256 : 32;
    const Activation a = activation(out, inner, super);
    float *d = (float *)a.d;
    int16_t *sums = (int16_t *)a.sums, *halves = (int16_t *)a.halves;
    int8_t *q = (int8_t *)a.q;
    for (int64_t b = 0; b < inner / span; ++b) {
        W most = W{}, nothing = W{};
        for (int64_t i = 0; i < span; i += LANES) {
            const W v = load(x + b * span + i);
            most = greater((W)((I)v & 0x7fffffff), most);
            nothing = nothing + v * 0.0f;  // a NaN or an infinity must not vanish in the rounding
        }
        float peak = most[0], poison = nothing[0];
        for (int l = 1; l < LANES; ++l) {
            peak = most[l] > peak ? most[l] : peak;
            poison += nothing[l];
        }
        d[b] = peak / 127.0f + poison;
        const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
        for (int64_t i = b * span; i < (b + 1) * span; i += 16) {
            int16_t sum = 0;
            for (int64_t k = i; k < i + 16; ++k) {
                // Adding 1.5 * 2^23 rounds to nearest even; the sum's low bits are the integer.
                float shifted = x[k] * inverse + 0x1.8p23f;
                int32_t bits;
                memcpy(&bits, &shifted, 4);
                q[k] = (int8_t)bits;
                sum = (int16_t)(sum + q[k]);
            }
            if (super) halves[i / 16] = sum;
            sums[i / 32] = i % 32 ? (int16_t)(sums[i / 32] + sum) : sum;
        }
    }
}

void quantise(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_quantise *job = (const ts_quantise *)userdata;
    const ts_tensor *x = dst->src[0];
    const Share mine = share(row_count(x), ith, nth);
    for (int64_t i = mine.begin; i < mine.end; ++i)
        quantise_row((const float *)x->data + i * job->inner, job->inner, job->super != 0, (char *)dst->data + i * dst->nb[1]);
}

}  // namespace
