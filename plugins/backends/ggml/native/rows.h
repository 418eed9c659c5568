// Kernels that treat each row, or each element, alone: store, rope, gelu, norm, top_k.
#pragma once
#include <math.h>
#include "elementary.h"

namespace {

struct Share { int64_t begin, end; };

// The part of n items that worker ith of nth takes.
TS_INLINE Share share(int64_t n, int ith, int nth) { return Share{n * ith / nth, n * (ith + 1) / nth}; }

TS_INLINE int64_t row_count(const ts_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

TS_INLINE char *row_of(const ts_paged *p, int64_t sequence, int64_t row) {
    const int64_t block = p->table[sequence * p->table_capacity + row / p->block_rows];
    const int64_t bytes = p->width * (p->type == TS_F32 ? 4 : 2);
    return (char *)p->base + (block * p->block_rows + row % p->block_rows) * bytes;
}

void narrow_half(const float *x, uint16_t *out, int64_t n) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; ++i) out[i] = half_of(x[i]);
}

void store(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_store *job = (const ts_store *)userdata;
    const ts_batch *batch = job->batch;
    const ts_paged *paged = job->paged;
    const ts_tensor *x = dst->src[0];
    const int64_t width = paged->width, total = x->ne[0] * row_count(x) / width;
    const Share mine = share(total, ith, nth);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t from = job->at ? job->at[2 * i] : i, to = job->at ? job->at[2 * i + 1] : batch->pos[i];
        if (from < 0 || to < 0 || batch->seq[from] < 0) continue;
        const float *in = (const float *)x->data + i * width;
        char *out = row_of(paged, batch->seq[from], to);
        if (paged->type == TS_F32) memcpy(out, in, (size_t)width * 4);
        else if (paged->type == TS_F16) narrow_half(in, (uint16_t *)out, width);
        else
            for (int64_t c = 0; c < width; ++c) ((uint16_t *)out)[c] = bfloat_of(in[c]);
    }
}

void rope(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_rope *job = (const ts_rope *)userdata;
    const ts_tensor *x = dst->src[0];
    const int64_t heads = x->ne[1], pairs = job->dims / 2, dim = x->ne[0], end = job->offset + job->dims;
    const int64_t step = job->neox ? 1 : 2, apart = job->neox ? pairs : 1;
    const float sign = job->inverse ? -1.0f : 1.0f;
    const Share mine = share(heads * x->ne[2], ith, nth);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t row = i / heads, head = i % heads;
        const float *in = (const float *)((const char *)x->data + head * x->nb[1] + row * x->nb[2]);
        float *out = (float *)((char *)dst->data + head * dst->nb[1] + row * dst->nb[2]);
        const float *angles = (const float *)dst->src[1]->data + row * job->dims;
        memcpy(out, in, (size_t)job->offset * 4);
        memcpy(out + end, in + end, (size_t)(dim - end) * 4);
        for (int64_t k = 0; k < pairs; ++k) {
            const int64_t at = job->offset + k * step;
            const float a = in[at], b = in[at + apart], c = angles[2 * k], s = angles[2 * k + 1] * sign;
            out[at] = a * c - b * s;
            out[at + apart] = a * s + b * c;
        }
    }
}

TS_INLINE W gated(W gate, W up, const ts_gelu *job) {
    if (job->limit != 0.0f) {
        gate = smaller(splat(job->limit), gate);
        up = greater(splat(-job->limit), smaller(splat(job->limit), up));
    }
    return gelu_of(gate, job->kind) * up;
}

void gelu(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_gelu *job = (const ts_gelu *)userdata;
    const float *x = (const float *)dst->src[0]->data;
    const float *up = job->gated ? (const float *)dst->src[1]->data : nullptr;
    float *out = (float *)dst->data;
    const int64_t total = dst->ne[0] * row_count(dst);
    const Share mine = share((total + LANES - 1) / LANES, ith, nth);
    for (int64_t i = mine.begin * LANES; i < mine.end * LANES; i += LANES) {
        if (i + LANES <= total) {
            const W g = load(x + i);
            save(out + i, up ? gated(g, load(up + i), job) : gelu_of(g, job->kind));
            continue;
        }
        float part[2][LANES] = {};
        const size_t rest = (size_t)(total - i) * 4;
        memcpy(part[0], x + i, rest);
        if (up) memcpy(part[1], up + i, rest);
        const W g = load(part[0]);
        save(part[0], up ? gated(g, load(part[1]), job) : gelu_of(g, job->kind));
        memcpy(out + i, part[0], rest);
    }
}

// Sums of squares in the order of a dot product: eight lanes, one tree; a rest shorter than eight is filled with zeros.
float square_sum(const float *x, int64_t n) {
    Dot dots[8];
    for (Dot &d : dots) d = dot_zero();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const Dot v = dot_fetch<TS_F32>((const char *)x, i);
        dots[0] = dot_fma(v, v, dots[0]);
    }
    if (i < n) {
        float rest[8] = {};
        memcpy(rest, x + i, (size_t)(n - i) * 4);
        const Dot v = dot_fetch<TS_F32>((const char *)rest, 0);
        dots[0] = dot_fma(v, v, dots[0]);
    }
    float sums[8];
    dot_sums(dots, sums);
    return sums[0];
}

void norm(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_norm *job = (const ts_norm *)userdata;
    const int64_t n = job->width, rows = dst->ne[0] * row_count(dst) / n, period = job->period / n;
    const float *weights = job->has_weight ? (const float *)dst->src[1]->data : nullptr;
    const Share mine = share(rows, ith, nth);
    for (int64_t r = mine.begin; r < mine.end; ++r) {
        const float *x = (const float *)dst->src[0]->data + r * n;
        const float *weight = weights ? weights + (r % period) * n : nullptr;
        float *out = (float *)dst->data + r * n;
        const float scale = 1.0f / sqrtf(square_sum(x, n) / (float)n + job->eps);
        if (weight)
            for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
        else
            for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale;
    }
}

// Whether element a of x comes before element b: larger first, NaN after every number, then the lower index.
TS_INLINE bool before(const float *x, int32_t a, int32_t b) {
    const float xa = x[a], xb = x[b];
    if (xa > xb) return true;
    if (xa < xb) return false;
    const bool bad_a = xa != xa, bad_b = xb != xb;
    return bad_a != bad_b ? bad_b : a < b;
}

// Restore the heap whose root is the element that comes last, after heap[at] changed.
void sift(const float *x, int32_t *heap, int64_t n, int64_t at) {
    const int32_t value = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) ++child;
        if (!before(x, value, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

void top_k(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_topk *job = (const ts_topk *)userdata;
    const ts_tensor *src = dst->src[0];
    const int64_t n = src->ne[0], k = job->k < n ? job->k : n;
    const Share mine = share(row_count(src), ith, nth);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        const float *x = (const float *)src->data + row * n;
        int32_t *heap = (int32_t *)dst->data + row * job->k;
        for (int64_t i = 0; i < job->k; ++i) heap[i] = i < k ? (int32_t)i : -1;
        for (int64_t i = k / 2; i-- > 0;) sift(x, heap, k, i);
        for (int64_t i = k; k > 0 && i < n; ++i) {
            if (x[i] <= x[heap[0]] || !before(x, (int32_t)i, heap[0])) continue;
            heap[0] = (int32_t)i;
            sift(x, heap, k, 0);
        }
        for (int64_t left = k; left-- > 1;) {  // the one that comes last goes to the end
            const int32_t last = heap[0];
            heap[0] = heap[left];
            heap[left] = last;
            sift(x, heap, left, 0);
        }
    }
}

}  // namespace
