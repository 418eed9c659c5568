// attend: softmax over paged and batch-local sources, in segments of 1,024 rows and tiles of 32.
//
// Work is cut into blocks of query rows of one sequence by heads; workers take contiguous shares of about equal cost.
// A tile of keys meets all query rows of a block while it is in cache.
#pragma once
#include "rows.h"
#include "tile.h"

namespace {

constexpr int SEGMENT = 1024;
constexpr int MAX_QUERIES = 32;       // query rows (row x head) of a block
constexpr int WORKSPACE = 56 * 1024;  // floats
// For up to so many query rows keys are widened in registers, each time they are used; for more, once into a buffer. A
// conversion instruction is cheaper than the buffer's share of the cache; without one (LANES = 4) it is not.
constexpr int NARROW = LANES > 4 ? MAX_QUERIES : 4;

TS_INLINE int padded(int n) { return (n + 15) & ~15; }

// A half-open range of places in a source: store rows, batch rows counted from the sequence's first, or list entries.
struct Seen { int64_t begin, end; };

struct Query { const ts_attend *job; const ts_tensor *dst; };

TS_INLINE const int32_t *selection(const Query &at, const ts_source &source, int64_t row) {
    return (const int32_t *)at.dst->src[source.select_src]->data + row * source.select_k;
}

inline Seen seen(const Query &at, const ts_source &source, int64_t row) {
    const int64_t sequence = at.job->batch->seq[row];
    if (sequence < 0) return Seen{0, 0};
    if (source.select_src >= 0) {
        const int32_t *list = selection(at, source, row);
        int64_t count = 0;
        for (int i = 0; i < source.select_k; ++i) count += list[i] >= 0;
        return Seen{0, count * source.group};
    }
    const int32_t *range = source.range ? source.range : (const int32_t *)at.dst->src[source.range_src]->data;
    const int64_t first = source.key ? 0 : at.job->batch->first_row[sequence];
    const int64_t begin = range[2 * row] - first, end = range[2 * row + 1] - first;
    return Seen{begin > 0 ? begin : 0, end};
}

// Estimated work of one head of a row, in keys.
inline int64_t cost(const Query &at, int64_t row) {
    int64_t keys = 16;
    for (int s = 0; s < at.job->sources; ++s) {
        const Seen range = seen(at, at.job->source[s], row);
        keys += range.end > range.begin ? range.end - range.begin : 0;
    }
    return keys;
}

// The store row (or batch row) at a place of a source.
struct Walk {
    const Query &at;
    const ts_source &source;
    int64_t row, entry = -1, counted = -1;  // of a selection: list[entry] is the counted-th that is not negative

    int64_t place(int64_t i) {
        if (source.select_src < 0) return source.key ? i : at.job->batch->first_row[at.job->batch->seq[row]] + i;
        const int32_t *list = selection(at, source, row);
        while (counted < i / source.group) counted += list[++entry] >= 0;
        return (int64_t)list[entry] * source.group + i % source.group;
    }
};

// Pointers to one head of the rows at places tile+begin .. tile+end-1. The rows are asked into the cache.
void locate(Walk walk, const ts_paged *paged, int src, int head, int heads, int dim, int64_t tile, Span span, Rows &out) {
    const int64_t sequence = walk.at.job->batch->seq[walk.row];
    out.type = paged ? paged->type : TS_F32;
    const int64_t size = out.type == TS_F32 ? 4 : 2, skip = (int64_t)head * dim * size;
    const int64_t bytes = paged ? paged->width * size : (int64_t)heads * dim * size;
    for (int k = span.begin, run; k < span.end; k += run) {  // a run of rows that lie one after another
        const int64_t row = walk.place(tile + k), left = paged ? paged->block_rows - row % paged->block_rows : TILE;
        const char *first = paged ? row_of(paged, sequence, row) : (const char *)walk.at.dst->src[src]->data + row * bytes;
        run = walk.source.select_src >= 0 ? 1 : span.end - k < left ? span.end - k : (int)left;
        for (int i = 0; i < run; ++i) out.at[k + i] = first + i * bytes + skip;
    }
    for (int k = span.begin; k < span.end; ++k)
        for (int64_t byte = 0; byte < dim * size; byte += 64) __builtin_prefetch(out.at[k] + byte);
}

// A block of query rows: batch rows r0 .. r1-1 of one sequence by heads h0 .. h1-1, row-major.
struct Block {
    int64_t r0, r1;
    int h0, h1, n, ldq, lda;
    float *q, *a, *total, *tile;  // [n][ldq], [n][lda] of the segment, [n][lda] over all, [TILE][max(ldq, lda)]
    float x[MAX_QUERIES * TILE];
    float m[MAX_QUERIES], l[MAX_QUERIES], c[MAX_QUERIES];
    float total_m[MAX_QUERIES], total_l[MAX_QUERIES];
    Span span[MAX_QUERIES];
};

// A tile that some query row sees, and where its keys lie.
struct Step { int64_t tile; Span all; Rows keys; };

TS_INLINE Span clip(const Seen &row, int64_t tile) {
    const int64_t from = row.begin - tile, to = row.end - tile;
    return Span{from < 0 ? 0 : from > TILE ? TILE : (int)from, to < 0 ? 0 : to > TILE ? TILE : (int)to};
}

// Look for the first such tile from `tile` on. False if there is none before `end`.
bool find(const Query &at, const Block &b, const ts_source &source, const Seen *rows, int64_t tile, int64_t end, Step &out) {
    for (; tile < end; tile += TILE) {
        out.tile = tile, out.all = Span{TILE, 0};
        for (int64_t r = b.r0; r < b.r1; ++r) {
            const Span span = clip(rows[r - b.r0], tile);
            if (span.begin >= span.end) continue;
            out.all.begin = span.begin < out.all.begin ? span.begin : out.all.begin;
            out.all.end = span.end > out.all.end ? span.end : out.all.end;
        }
        if (out.all.begin >= out.all.end) continue;
        const int head = b.h0 / (at.job->heads / source.kv_heads);
        locate(Walk{at, source, b.r0}, source.key, source.key_src, head, source.kv_heads, at.job->head_dim, tile, out.all, out.keys);
        return true;
    }
    return false;
}

// Take the tile of `step` and go on to the next one, whose keys are on their way while this one's values are used.
bool take_tile(const Query &at, Block &b, const ts_source &source, const Seen *rows, int64_t end, Step &step) {
    const ts_attend *job = at.job;
    const int head = b.h0 / (job->heads / source.kv_heads), dim = job->head_dim, width = job->value_dim;
    const bool cut = !source.value && source.value_src < 0;
    const Span all = step.all;
    Rows &keys = step.keys, values;
    for (int i = 0; i < b.n; ++i) b.span[i] = clip(rows[i / (b.h1 - b.h0)], step.tile);
    if (!cut) locate(Walk{at, source, b.r0}, source.value, source.value_src, head, source.kv_heads, width, step.tile, all, values);
    if (b.n > NARROW || dim % 8 || (cut && width % LANES)) widen(keys, all, dim, b.ldq, b.tile);
    for (int i = 0, n; i < b.n; i += n) {
        n = bundle(b.n - i);
        float *out = b.x + i * TILE;
        const float *q = b.q + i * b.ldq;
        const int depth = (dim + 7) & ~7;
        if (keys.type == TS_F32) scores_by<TS_F32>(n, q, b.ldq, keys, all, depth, out);
        else if (keys.type == TS_F16) scores_by<TS_F16>(n, q, b.ldq, keys, all, depth, out);
        else scores_by<TS_BF16>(n, q, b.ldq, keys, all, depth, out);
    }
    const Softmax how{job->scale, job->softcap};
    for (int i = 0; i < b.n; ++i) {
        float *x = b.x + i * TILE;
        b.c[i] = 0.0f;
        if (b.span[i].begin < b.span[i].end) b.c[i] = weights(x, b.span[i], how, b.m + i);
        else memset(x, 0, sizeof(float) * TILE);
    }
    for (int i = 0; i < b.n; i += LANES) save(b.c + i, exponential(load(b.c + i)));
    if (b.n <= 4) totals<4>(b.l, b.x, b.c);
    else
        for (int i = 0; i < b.n; i += 8) totals<8>(b.l + i, b.x + i * TILE, b.c + i);
    if (cut) values = keys;
    else if (b.n > NARROW || width % LANES) widen(values, all, width, b.lda, b.tile);
    const bool more = find(at, b, source, rows, step.tile + TILE, end, step);
    for (int i = 0, n; i < b.n; i += n) {
        const Span span = b.span[i];
        n = bundle(b.n - i);
        for (int j = 1; j < n; ++j)
            if (b.span[i + j].begin != span.begin || b.span[i + j].end != span.end) n = j;
        if (span.begin >= span.end) continue;
        float *a = b.a + i * b.lda;
        const float *p = b.x + i * TILE, *c = b.c + i;
        const int columns = (width + LANES - 1) / LANES * LANES;
        if (values.type == TS_F32) weigh_by<TS_F32>(n, a, b.lda, p, c, values, span, columns);
        else if (values.type == TS_F16) weigh_by<TS_F16>(n, a, b.lda, p, c, values, span, columns);
        else weigh_by<TS_BF16>(n, a, b.lda, p, c, values, span, columns);
    }
    return more;
}

// Add the segment's partial result of query row i to the row's total.
void merge(Block &b, int i) {
    if (b.total_l[i] == 0.0f) {  // the first one
        memcpy(b.total + i * b.lda, b.a + i * b.lda, sizeof(float) * b.lda);
        b.total_m[i] = b.m[i], b.total_l[i] = b.l[i];
        return;
    }
    const float top = b.total_m[i] > b.m[i] ? b.total_m[i] : b.m[i];
    const float old = exponential(splat(b.total_m[i] - top))[0], now = exponential(splat(b.m[i] - top))[0];
    float *total = b.total + i * b.lda, *a = b.a + i * b.lda;
    for (int k = 0; k < b.lda; k += LANES) save(total + k, load(total + k) * old + load(a + k) * now);
    b.total_l[i] = b.total_l[i] * old + b.l[i] * now;
    b.total_m[i] = top;
}

void take_segment(const Query &at, Block &b, const ts_source &source, const Seen *rows, int64_t begin, int64_t end) {
    for (int i = 0; i < b.n; ++i) b.m[i] = -__builtin_inff(), b.l[i] = 0.0f;
    memset(b.a, 0, sizeof(float) * b.n * b.lda);
    Step step;
    bool more = find(at, b, source, rows, begin / TILE * TILE, end, step);
    while (more) more = take_tile(at, b, source, rows, end, step);
    for (int i = 0; i < b.n; ++i)
        if (b.l[i] != 0.0f) merge(b, i);
}

void take_block(const Query &at, Block &b) {
    const ts_attend *job = at.job;
    const int heads = b.h1 - b.h0, dim = job->head_dim, width = job->value_dim;
    memset(b.q, 0, sizeof(float) * b.n * b.ldq);
    for (int i = 0; i < b.n; ++i) {
        const int64_t query = (b.r0 + i / heads) * job->heads + b.h0 + i % heads;
        memcpy(b.q + i * b.ldq, (const float *)at.dst->src[0]->data + query * dim, sizeof(float) * dim);
        b.total_m[i] = -__builtin_inff();
        b.total_l[i] = 0.0f;
    }
    for (int s = 0; s < job->sources; ++s) {
        const ts_source &source = job->source[s];
        Seen rows[MAX_QUERIES], all{INT64_MAX, 0};
        for (int64_t r = b.r0; r < b.r1; ++r) {
            const Seen row = rows[r - b.r0] = seen(at, source, r);
            if (row.begin >= row.end) continue;
            all.begin = row.begin < all.begin ? row.begin : all.begin;
            all.end = row.end > all.end ? row.end : all.end;
        }
        for (int64_t begin = all.begin; begin < all.end;) {
            const int64_t border = (begin / SEGMENT + 1) * SEGMENT, end = border < all.end ? border : all.end;
            take_segment(at, b, source, rows, begin, end);
            begin = end;
        }
    }
    for (int i = 0; i < b.n; ++i) {
        const int head = b.h0 + i % heads;
        float *a = b.total + i * b.lda;
        if (job->sinks_src >= 0) {
            b.m[i] = ((const float *)at.dst->src[job->sinks_src]->data)[head];
            b.l[i] = 1.0f;
            memset(b.a + i * b.lda, 0, sizeof(float) * b.lda);
            merge(b, i);
        }
        float *out = (float *)at.dst->data + ((b.r0 + i / heads) * job->heads + head) * width;
        if (b.total_l[i] == 0.0f) memset(a, 0, sizeof(float) * b.lda);  // nothing was visible
        else
            for (int k = 0; k < b.lda; k += LANES) save(a + k, load(a + k) / b.total_l[i]);
        memcpy(out, a, sizeof(float) * width);
    }
}

// Rows r0 .. r1-1 by heads h0 .. h1-1, cut where a source's key head changes or a block is full.
void take_heads(const Query &at, Block &b, int64_t r0, int64_t r1, int h0, int h1, int limit) {
    for (int h = h0, end; h < h1; h = end) {
        end = h1;
        for (int s = 0; s < at.job->sources; ++s) {
            const int group = at.job->heads / at.job->source[s].kv_heads, border = (h / group + 1) * group;
            end = border < end ? border : end;
        }
        const int most = limit / (int)(r1 - r0);
        end = h + most < end ? h + most : end;
        b.r0 = r0, b.r1 = r1, b.h0 = h, b.h1 = end, b.n = (int)(r1 - r0) * (end - h);
        take_block(at, b);
    }
}

// The end of the block of rows that begins at row r: at most `most` rows of one sequence.
TS_INLINE int64_t rows_end(const ts_batch *batch, int64_t r, int64_t most) {
    int64_t end = r + 1;
    while (end < batch->rows && end < r + most && batch->seq[end] == batch->seq[r]) ++end;
    return end;
}

void attend(ts_tensor *dst, int ith, int nth, void *userdata) {
    const ts_attend *job = (const ts_attend *)userdata;
    const ts_batch *batch = job->batch;
    const Query at{job, dst};
    alignas(64) float workspace[WORKSPACE];
    Block b;
    b.ldq = padded(job->head_dim), b.lda = padded(job->value_dim);
    const int tile = TILE * (b.ldq > b.lda ? b.ldq : b.lda), fit = (WORKSPACE - tile) / (b.ldq + 2 * b.lda);
    const int limit = fit < MAX_QUERIES ? fit : MAX_QUERIES;
    b.tile = workspace, b.q = b.tile + tile, b.a = b.q + limit * b.ldq, b.total = b.a + limit * b.lda;
    memset(b.x, 0, sizeof b.x), memset(b.c, 0, sizeof b.c), memset(b.l, 0, sizeof b.l);

    int group = job->heads, most = MAX_QUERIES;
    for (int s = 0; s < job->sources; ++s) {
        const ts_source &source = job->source[s];
        group = job->heads / source.kv_heads < group ? job->heads / source.kv_heads : group;
        if (source.select_src >= 0) most = 1;  // every row has its own list
    }
    most = limit / group < most ? limit / group : most;
    most = most < 1 ? 1 : most;
    int64_t total = 0;
    for (int64_t r = 0; r < batch->rows; ++r) total += cost(at, r) * job->heads;
    const Share mine = share(total, ith, nth);
    int64_t done = 0;  // cost of all earlier blocks
    for (int64_t r = 0, end; r < batch->rows && done < mine.end; r = end) {
        end = rows_end(batch, r, most);
        int64_t each = 0;
        for (int64_t i = r; i < end; ++i) each += cost(at, i);
        const int64_t from = mine.begin - done, to = mine.end - done;
        const int64_t h0 = from <= 0 ? 0 : (from + each - 1) / each, h1 = (to + each - 1) / each;
        if (h0 < job->heads) take_heads(at, b, r, end, (int)h0, (int)(h1 < job->heads ? h1 : job->heads), limit);
        done += each * job->heads;
    }
}

}  // namespace
