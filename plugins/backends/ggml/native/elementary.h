// exp, tanh and the normal distribution function from IEEE operations only: the same bits on every build.
//
// Polynomials are our own least-maximum fits. Errors, checked by the tests against float64: exp 1 ulp, tanh 2 ulp,
// phi 8 units of 2^-24 relative. Denormal results are kept; a NaN gives a NaN.
#pragma once
#include "lanes.h"

namespace {

// e^x = 2^n * (1 + r + r^2 * p(r)), n = round(x / ln 2), |r| <= ln 2 / 2; 2^n is applied in two exact halves.
TS_INLINE W exponential(W x) {
    x = greater(splat(-104.0f), x);
    x = smaller(splat(89.0f), x);
    const W shifted = fma(x, splat(0x1.715476p+0f), splat(0x1.8p23f)), n = shifted - 0x1.8p23f;
    W r = fma(n, splat(-0x1.62e4p-1f), x);
    r = fma(n, splat(-0x1.7f7d1cp-20f), r);
    W p = splat(0.00019789262f);
    p = fma(p, r, splat(0.0013945752f));
    p = fma(p, r, splat(0.008333504f));
    p = fma(p, r, splat(0.04166628f));
    p = fma(p, r, splat(0.16666666f));
    p = fma(p, r, splat(0.5f));
    p = fma(p * r, r, r) + 1.0f;
    const I whole = (I)shifted - 0x4b400000, half = whole >> 1;
    return p * (W)((half + 127) << 23) * (W)((whole - half + 127) << 23);
}

// Odd polynomial below 0.6, else 1 - 2 / (e^2|x| + 1).
TS_INLINE W hyperbolic_tangent(W x) {
    const I sign = (I)x & (I)splat(-0.0f);
    const W a = (W)((I)x ^ sign), z = a * a;
    W p = splat(-0.005905868f);
    p = fma(p, z, splat(0.020805385f));
    p = fma(p, z, splat(-0.053786684f));
    p = fma(p, z, splat(0.13331959f));
    p = fma(p, z, splat(-0.333333f));
    const W low = fma(p * z, a, a), high = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
    return (W)((I)(a < 0.6f ? low : high) | sign);
}

// Normal distribution function: with u = |x|, the tail is e^(-u^2/2) * t * p(t), t = 1 / (1 + 0.35 u).
TS_INLINE W phi(W x) {
    const W u = smaller(splat(20.0f), (W)((I)x & 0x7fffffff)), square = u * u, rest = fma(u, u, -square);
    const W t = 1.0f / fma(u, splat(0.35f), splat(1.0f));
    W p = splat(-0.029157886f);
    p = fma(p, t, splat(0.14403091f));
    p = fma(p, t, splat(-0.255839f));
    p = fma(p, t, splat(0.1593197f));
    p = fma(p, t, splat(-0.023212353f));
    p = fma(p, t, splat(0.1055525f));
    p = fma(p, t, splat(0.11982129f));
    p = fma(p, t, splat(0.13986352f));
    p = fma(p, t, splat(0.1396213f));
    W e = exponential(square * -0.5f);
    e = fma(e, rest * -0.5f, e);
    const W tail = e * (p * t);
    return x < 0.0f ? tail : 1.0f - tail;
}

TS_INLINE W gelu_of(W x, int kind) {
    if (kind == TS_SILU) return x / (exponential(-x) + 1.0f);
    if (kind == TS_GELU_ERF) return x * phi(x);
    // x * sigmoid(2z) is x/2 * (1 + tanh z) without its cancellation.
    const W z2 = x * 1.5957691216f * fma(x * x, splat(0.044715f), splat(1.0f));
    return x / (exponential(-z2) + 1.0f);
}

}  // namespace
