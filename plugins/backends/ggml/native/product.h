// Products of weight matrices and activation rows: linear, experts, and every format that only ggml knows (dots).
#pragma once
#include "panel.h"

namespace {

// Memory of one worker for one panel; it grows with the widest weight and goes with its thread.
struct Workspace {
    char *memory = nullptr;
    int64_t size = 0;
    ~Workspace() { free(memory); }
    char *room(int64_t bytes) {
        if (size < bytes) {
            free(memory);
            memory = (char *)malloc((size_t)bytes + 64);
            size = bytes;
        }
        return memory + (-(intptr_t)memory & 63);
    }
};

template <class T> Panel panel_in(Workspace &workspace, int64_t blocks) {
    const int64_t scales = T::scales ? blocks / 8 : blocks;
    char *memory = workspace.room(blocks * (256 + 2 * PANEL * 4 + T::scales * PANEL * 4 + PANEL * 2));
    Panel p;
    p.values = (uint8_t *)memory;
    p.d = (float *)(memory + blocks * 256);
    p.m = p.d + scales * PANEL;
    p.scales = (int32_t *)(p.m + scales * PANEL);
    p.minima = (int16_t *)(p.scales + blocks * T::scales * PANEL);
    return p;
}

TS_INLINE RowSet eight_rows(const char *matrix, int64_t row_bytes, int64_t first, int live) {
    RowSet w;
    for (int r = 0; r < PANEL; ++r) w.row[r] = (const uint8_t *)matrix + (first + (r < live ? r : live - 1)) * row_bytes;
    return w;
}

template <class T> TS_INLINE void one_row(const RowSet &w, const Panel &panel, int64_t blocks, const Activation &x, float *out, int live) {
#if defined(__AVX2__)
    (void)panel;
    multiply_row<T>(w, blocks, x, out, live);
#else
    unpack<T>(w, blocks, panel);
    multiply<T, 1>(panel, blocks, &x, &out, live);
#endif
}

template <class T> void product(ts_tensor *dst, int64_t inner, int ith, int nth) {
    const ts_tensor *input = dst->src[0], *weight = dst->src[1];
    const int64_t outputs = weight->ne[1], blocks = inner / 32, rows = row_count(input);
    static thread_local Workspace workspace;
    const Panel panel = panel_in<T>(workspace, blocks);
    const Share mine = share((outputs + PANEL - 1) / PANEL, ith, nth);
    const auto at = [&](int64_t i) { return activation((const char *)input->data + i * (int64_t)input->nb[1], inner, T::scales > 0); };
    for (int64_t p = mine.begin; p < mine.end; ++p) {
        const int64_t first = p * PANEL;
        const int live = (int)(outputs - first < PANEL ? outputs - first : PANEL);
        const RowSet w = eight_rows((const char *)weight->data, (int64_t)weight->nb[1], first, live);
        float *out = (float *)dst->data + first;
        if (rows == 1) {
            one_row<T>(w, panel, blocks, at(0), out, live);
            continue;
        }
        unpack<T>(w, blocks, panel);
        int64_t i = 0;
        for (; i + 4 <= rows; i += 4) {
            const Activation x[4] = {at(i), at(i + 1), at(i + 2), at(i + 3)};
            float *const y[4] = {out + i * outputs, out + (i + 1) * outputs, out + (i + 2) * outputs, out + (i + 3) * outputs};
            multiply<T, 4>(panel, blocks, x, y, live);
        }
        for (; i < rows; ++i) {
            const Activation x = at(i);
            float *const y = out + i * outputs;
            multiply<T, 1>(panel, blocks, &x, &y, live);
        }
    }
}

// The expert of a (row, choice), its activation row, and where its result goes.
struct Choice { int64_t expert, input, output; };

TS_INLINE Choice choice(const ts_tensor *dst, int64_t i) {
    const ts_tensor *index = dst->src[2];
    const int64_t k = index->ne[0], rows = index->ne[1], inputs = row_count(dst->src[0]);
    return Choice{((const int32_t *)index->data)[i], inputs == rows ? i / k : i, i};
}

template <class T> void expert_product(ts_tensor *dst, int64_t inner, int ith, int nth) {
    const ts_tensor *input = dst->src[0], *weight = dst->src[1], *index = dst->src[2];
    const int64_t outputs = weight->ne[1], blocks = inner / 32, choices = index->ne[0] * index->ne[1];
    static thread_local Workspace workspace;
    const Panel panel = panel_in<T>(workspace, blocks);
    const Share mine = share((outputs + PANEL - 1) / PANEL, ith, nth);
    for (int64_t i = 0; i < choices; ++i) {
        const Choice c = choice(dst, i);
        const bool present = c.expert >= 0 && c.expert < weight->ne[2];
        const Activation x = activation((const char *)input->data + c.input * (int64_t)input->nb[1], inner, T::scales > 0);
        for (int64_t p = mine.begin; p < mine.end; ++p) {
            const int64_t first = p * PANEL;
            const int live = (int)(outputs - first < PANEL ? outputs - first : PANEL);
            float *out = (float *)dst->data + c.output * outputs + first;
            if (!present) memset(out, 0, sizeof(float) * (size_t)live);
            else {
                const char *matrix = (const char *)weight->data + c.expert * (int64_t)weight->nb[2];
                one_row<T>(eight_rows(matrix, (int64_t)weight->nb[1], first, live), panel, blocks, x, out, live);
            }
        }
    }
}

// Calls body<T> for the weight's format.
#define TS_BY_FORMAT(body)                                                              \
    const int64_t inner = ((const ts_linear *)userdata)->inner;                         \
    switch (dst->src[1]->type) {                                                        \
        case 2: return body<Q4_0>(dst, inner, ith, nth);                                \
        case 3: return body<Q4_1>(dst, inner, ith, nth);                                \
        case 6: return body<Q5_0>(dst, inner, ith, nth);                                \
        case 7: return body<Q5_1>(dst, inner, ith, nth);                                \
        case 8: return body<Q8_0>(dst, inner, ith, nth);                                \
        case 12: return body<Q4_K>(dst, inner, ith, nth);                               \
        case 13: return body<Q5_K>(dst, inner, ith, nth);                               \
        case 14: return body<Q6_K>(dst, inner, ith, nth);                               \
    }

void linear(ts_tensor *dst, int ith, int nth, void *userdata) { TS_BY_FORMAT(product) }
void experts(ts_tensor *dst, int ith, int nth, void *userdata) { TS_BY_FORMAT(expert_product) }

// ---- every other weight type, through ggml's own product of one weight row and one activation row -------------------

void convert(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_convert *job = (const ts_convert *)userdata;
    const ts_tensor *x = dst->src[0];
    const Share mine = share(dst->ne[1], ith, nth);
    for (int64_t i = mine.begin; i < mine.end; ++i)
        job->from_float((const float *)x->data + i * job->inner, (char *)dst->data + i * (int64_t)dst->nb[1], job->inner);
}

void dots(ts_tensor *dst, int ith, int nth, void *userdata) {
    constexpr int64_t STRIP = 16;  // weight rows that stay in the cache while the activations pass
    const ts_dots *job = (const ts_dots *)userdata;
    const ts_tensor *input = dst->src[0], *weight = dst->src[1];
    const bool routed = dst->src[2] != nullptr;
    const int64_t outputs = weight->ne[1], results = routed ? dst->src[2]->ne[0] * dst->src[2]->ne[1] : row_count(input);
    const Share mine = share(outputs, ith, nth);
    for (int64_t first = mine.begin; first < mine.end; first += STRIP) {
        const int64_t last = first + STRIP < mine.end ? first + STRIP : mine.end;
        for (int64_t i = 0; i < results; ++i) {
            const Choice c = routed ? choice(dst, i) : Choice{0, i, i};
            const char *x = (const char *)input->data + c.input * (int64_t)input->nb[1];
            const char *matrix = (const char *)weight->data + c.expert * (int64_t)weight->nb[2];
            float *out = (float *)dst->data + c.output * outputs;
            for (int64_t o = first; o < last; ++o) {
                out[o] = 0.0f;
                if (c.expert >= 0 && c.expert < weight->ne[2])
                    job->vec_dot((int)job->inner, out + o, 0, matrix + o * (int64_t)weight->nb[1], 0, x, 0, 1);
            }
        }
    }
}

}  // namespace
