// State that is carried from row to row: conv and scan. Workers share channels, or heads and columns; rows go in order.
#pragma once
#include "rows.h"

namespace {

constexpr int CHANNELS = 64, COLUMNS = 32;  // of one piece of work; multiples of LANES

// y = bias + sum over taps, ascending, of weight * earlier row, for the channels c .. c+n-1 of one sequence.
void convolve(const ts_conv *job, ts_tensor *dst, int sequence, int64_t c, int64_t n, const float *weight) {
    const ts_batch *batch = job->batch;
    const int64_t channels = dst->ne[0], first = batch->first_row[sequence], start = batch->start[sequence];
    const float *x = (const float *)dst->src[0]->data, *bias = job->has_bias ? (const float *)dst->src[2]->data + c : nullptr;
    float *ring = job->ring + (int64_t)batch->tail_slot[sequence] * job->ring_rows * channels;
    const int64_t length = batch->length[sequence];
    for (int64_t r = 0; r < length; ++r) {
        float *out = (float *)dst->data + (first + r) * channels + c;
        float y[CHANNELS] = {};
        if (bias) memcpy(y, bias, sizeof(float) * n);
        for (int t = 0; t < job->taps; ++t) {
            const int64_t p = start + r - (int64_t)(job->taps - 1 - t) * job->dilation;
            if (p < 0) continue;
            const float *in = (p >= start ? x + (first + p - start) * channels : ring + p % job->ring_rows * channels) + c;
            float line[CHANNELS] = {};
            memcpy(line, in, sizeof(float) * n);
            for (int i = 0; i < CHANNELS; i += LANES) save(y + i, fma(load(weight + t * CHANNELS + i), load(line + i), load(y + i)));
        }
        memcpy(out, y, sizeof(float) * n);
    }
    for (int64_t r = length > job->ring_rows ? length - job->ring_rows : 0; r < length; ++r)
        memcpy(ring + (start + r) % job->ring_rows * channels + c, x + (first + r) * channels + c, sizeof(float) * n);
}

void conv(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_conv *job = (const ts_conv *)userdata;
    const ts_batch *batch = job->batch;
    const int64_t channels = dst->ne[0];
    const Share mine = share((channels + CHANNELS - 1) / CHANNELS, ith, nth);
    for (int64_t piece = mine.begin; piece < mine.end; ++piece) {
        const int64_t c = piece * CHANNELS, n = channels - c < CHANNELS ? channels - c : CHANNELS;
        float weight[TS_MAX_TAPS * CHANNELS] = {};
        for (int64_t i = 0; i < n; ++i)
            for (int t = 0; t < job->taps; ++t)
                weight[t * CHANNELS + i] = ((const float *)dst->src[1]->data)[(c + i) * job->taps + t];
        for (int s = 0; s < batch->sequences; ++s)
            if (batch->length[s] > 0) convolve(job, dst, s, c, n, weight);
        for (int64_t r = 0; r < batch->rows; ++r)
            if (batch->seq[r] < 0) memset((float *)dst->data + r * channels + c, 0, sizeof(float) * n);
    }
}

// Move COLUMNS columns (n of them real) of a [Dk][Dv] state between its slot and a work array [Dk][COLUMNS].
void take_state(float *work, const float *slot, int dim, int width, int n) {
    for (int i = 0; i < dim; ++i, work += COLUMNS, slot += width) memcpy(work, slot, sizeof(float) * n);
}

void give_state(const float *work, float *slot, int dim, int width, int n) {
    for (int i = 0; i < dim; ++i, work += COLUMNS, slot += width) memcpy(slot, work, sizeof(float) * n);
}

// One row: S = decay * S; u = v - S'k if delta else v; S += k (x) (beta * u); returns S'q in `out`. Sums ascend over Dk.
void advance(float *state, const float *decay, const float *k, const float *q, float beta, const float *v, bool delta, int dim, float *out) {
    constexpr int N = COLUMNS / LANES;
    W sum[N], step[N];
    for (int n = 0; n < N; ++n) sum[n] = W{};
    if (delta)
        for (int i = 0; i < dim; ++i)
            for (int n = 0; n < N; ++n) {
                float *at = state + i * COLUMNS + n * LANES;
                const W s = load(at) * decay[i];
                save(at, s);
                sum[n] = fma(s, splat(k[i]), sum[n]);
            }
    for (int n = 0; n < N; ++n) {
        step[n] = (load(v + n * LANES) - sum[n]) * beta;
        sum[n] = W{};
    }
    for (int i = 0; i < dim; ++i)
        for (int n = 0; n < N; ++n) {
            float *at = state + i * COLUMNS + n * LANES;
            const W s = fma(splat(k[i]), step[n], delta ? load(at) : load(at) * decay[i]);
            save(at, s);
            sum[n] = fma(s, splat(q[i]), sum[n]);
        }
    for (int n = 0; n < N; ++n) save(out + n * LANES, sum[n]);
}

// exp of the row's gate: one for the head, or one for each element of the key.
void decays(const ts_scan *job, const float *gate, int64_t row, int head, float *out) {
    const int dim = job->key_dim;
    if (!job->gate_per_channel) {
        const float e = exponential(splat(gate[row * job->heads + head]))[0];
        for (int i = 0; i < dim; ++i) out[i] = e;
        return;
    }
    for (int i = 0; i < dim; i += LANES) {
        float part[LANES] = {};
        const int n = dim - i < LANES ? dim - i : LANES;
        memcpy(part, gate + (row * job->heads + head) * dim + i, sizeof(float) * n);
        save(part, exponential(load(part)));
        memcpy(out + i, part, sizeof(float) * n);
    }
}

void scan_columns(const ts_scan *job, ts_tensor *dst, int sequence, int head, int column) {
    const ts_batch *batch = job->batch;
    const int dim = job->key_dim, width = job->value_dim, n = width - column < COLUMNS ? width - column : COLUMNS;
    const int key_head = job->tile ? head % job->key_heads : head / (job->heads / job->key_heads);
    const float *in[5];
    for (int i = 0; i < 5; ++i) in[i] = (const float *)dst->src[i]->data;
    const auto slot = [&](int64_t s) { return job->state + ((s * job->heads + head) * dim) * width + column; };
    alignas(64) float state[TS_MAX_KEY_DIM * COLUMNS];
    float decay[TS_MAX_KEY_DIM], v[COLUMNS] = {}, out[COLUMNS];
    memset(state, 0, sizeof(float) * dim * COLUMNS);
    if (batch->slot_in[sequence] >= 0) take_state(state, slot(batch->slot_in[sequence]), dim, width, n);
    const int64_t first = batch->first_row[sequence], end = first + batch->length[sequence];
    for (int64_t r = first; r < end; ++r) {
        const int64_t key = (r * job->key_heads + key_head) * dim, value = (r * job->heads + head) * width + column;
        decays(job, in[3], r, head, decay);
        memcpy(v, in[2] + value, sizeof(float) * n);
        advance(state, decay, in[1] + key, in[0] + key, in[4][r * job->heads + head], v, job->delta, dim, out);
        memcpy((float *)dst->data + value, out, sizeof(float) * n);
        if (batch->slot_out[r] >= 0) give_state(state, slot(batch->slot_out[r]), dim, width, n);
    }
}

void scan(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_scan *job = (const ts_scan *)userdata;
    const ts_batch *batch = job->batch;
    const int pieces = (job->value_dim + COLUMNS - 1) / COLUMNS;
    const Share mine = share((int64_t)job->heads * pieces, ith, nth);
    for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int s = 0; s < batch->sequences; ++s)
            if (batch->length[s] > 0) scan_columns(job, dst, s, (int)(i / pieces), (int)(i % pieces) * COLUMNS);
    const int64_t row = (int64_t)job->heads * job->value_dim;
    const Share rows = share(batch->rows, ith, nth);
    for (int64_t r = rows.begin; r < rows.end; ++r)
        if (batch->seq[r] < 0) memset((float *)dst->data + r * row, 0, sizeof(float) * row);
}

}  // namespace
