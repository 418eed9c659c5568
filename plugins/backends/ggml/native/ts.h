// Interface of the native kernels: plain C structs that Python fills through ctypes, and ggml custom-op callbacks.
//
// Every kernel's arithmetic for a row depends on that row, its own sequence's state and constants only. The same
// source is compiled once per instruction set; all builds give the same bits (fixed lane counts, explicit fused
// multiply-add, no contraction, no reassociation).
#pragma once
#include <stdint.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TS_F32 = 0, TS_F16 = 1, TS_BF16 = 2 };

// Raised whenever a structure, a kernel's meaning or a bit of a kernel's result changes.
#define TS_ABI_VERSION 1

// Widest head of attend, most taps of conv and largest key width of scan; their workspaces lie on the stack.
enum { TS_MAX_HEAD_DIM = 1024, TS_MAX_TAPS = 32, TS_MAX_KEY_DIM = 1024 };

// ggml_tensor as it is laid out in ggml 0.20 to 0.25. Tensors that kernels read or write are float32 or int32.
struct ts_tensor {
    int32_t type; void *buffer;
    int64_t ne[4]; size_t nb[4];
    int32_t op; int32_t op_params[16]; int32_t flags;
    struct ts_tensor *src[10]; struct ts_tensor *view_src; size_t view_offs;
    void *data; char name[64]; void *extra; char padding[8];
};

// The batch of the step: one per compiled graph, at a fixed address; pointers and counts are rewritten before each replay.
struct ts_batch {
    int32_t rows, sequences, wanted, reserved;
    const int32_t *pos;        // [rows]
    const int32_t *seq;        // [rows], -1 = padding
    const int32_t *slot_out;   // [rows]
    const int32_t *first_row;  // [sequences]
    const int32_t *start;      // [sequences]
    const int32_t *length;     // [sequences]
    const int32_t *tail_slot;  // [sequences]
    const int32_t *slot_in;    // [sequences]
};

// One paged store. Row r of sequence s lies in block table[s*table_capacity + r/block_rows], at r%block_rows.
struct ts_paged {
    void *base; int32_t type; int32_t block_rows;
    int64_t width; int64_t table_capacity;
    const int32_t *table;
};

// store: src[0] = x f32 [w, N], contiguous; at = NULL: row pos of the row's sequence; else at [N][2] = (batch row, index), -1 skips.
struct ts_store { struct ts_batch *batch; struct ts_paged *paged; const int32_t *at; };

// One source of attend. key/value: paged stores, or NULL with key_src/value_src = index into dst->src of a contiguous
// f32 batch tensor of the rows of the batch, whose tiles are counted from the first row of the row's own sequence (a
// batch row's number is no property of the row). With a selection the range is not read; its entries are ascending,
// negative ones are left out.
struct ts_source {
    struct ts_paged *key, *value;      // value NULL and value_src < 0: the value is the key row cut to value_dim
    int32_t key_src, value_src;        // -1: not a batch tensor
    int32_t kv_heads, value_dim;
    const int32_t *range;              // [rows][2]; NULL with range_src >= 0: read dst->src[range_src]
    int32_t range_src, select_src;     // select_src >= 0: dst->src[select_src] is int32 [k, rows]
    int32_t select_k, group;
};

// attend: src[0] = q f32 [D*H, rows] (contiguous), dst f32 [Dv*H, rows]; sinks_src >= 0: dst->src[sinks_src] f32 [H].
struct ts_attend {
    struct ts_batch *batch;
    int32_t heads, head_dim, value_dim, sources;
    float scale, softcap;
    int32_t sinks_src, reserved;
    struct ts_source source[4];
};

// rope: src[0] = x f32 [D, H, rows], any strides over H and rows; src[1] = angles f32 [2, d/2, rows], contiguous; dst has
// the shape of x. Elements outside offset .. offset+dims-1 are copied.
struct ts_rope { int32_t dims, offset, neox, inverse; };

// conv: src[0] = x f32 [C, rows], contiguous; src[1] = weight f32 [K, C], src[2] = bias f32 [C] or absent; ring [tails][ring_rows][C].
struct ts_conv { struct ts_batch *batch; float *ring; int32_t ring_rows, taps, dilation, has_bias; };

// scan: src = q [Dk*Hk, rows], k, v [Dv*H, rows], g [H or H*Dk, rows], beta [H, rows]; state [slots][H][Dk][Dv] f32.
// All contiguous.
struct ts_scan {
    struct ts_batch *batch; float *state;
    int32_t heads, key_heads, key_dim, value_dim;
    int32_t delta, tile, gate_per_channel, reserved;
};

// top_k: src[0] = x f32 [N, rows]; dst int32 [k, rows], descending, the lower index first among equals. A NaN ranks below
// every number; places beyond N get -1.
struct ts_topk { int32_t k, reserved; };

enum { TS_GELU_TANH = 0, TS_GELU_ERF = 1, TS_SILU = 2 };

// gelu: kind is one of the above. act: src[0] = x. glu: src[0] = gate, src[1] = up, both contiguous of the same shape;
// kind(min(gate, limit)) * clamp(up, -limit, limit), without clamps for limit 0.
struct ts_gelu { int32_t kind, gated; float limit; int32_t reserved; };

// quantise: src[0] = x f32 [inner, rows], contiguous; dst i8 [bytes, rows], bytes = inner/32*38, or inner/256*308 where
// `super` (one scale for 256 values instead of 32).
struct ts_quantise { int64_t inner, super; };

// linear: src[0] = quantised activations [bytes, rows], src[1] = weights [inner, outputs] of ggml type Q4_0, Q4_1, Q5_0, Q5_1,
// Q8_0 (plain activations), Q4_K, Q5_K or Q6_K (super ones); dst f32 [outputs, rows].
struct ts_linear { int64_t inner; };

// experts: as linear, with weights [inner, outputs, experts] and src[2] = chosen int32 [k, rows]; activations of `rows` rows, or
// of k * rows; dst f32 [outputs, k, rows]. An expert outside 0 .. experts-1 gives zeros.

// convert: src[0] = x f32 [inner, rows], contiguous; dst i8 [bytes, rows], each row as `from_float` writes it.
struct ts_convert { int64_t inner; void (*from_float)(const float *x, void *row, int64_t inner); };

// dots: linear (and, with src[2], experts) for every other weight type, one call of ggml's own `vec_dot` a result.
struct ts_dots {
    int64_t inner;
    void (*vec_dot)(int n, float *result, size_t, const void *weight, size_t, const void *x, size_t, int rows);
};

// norm: src[0] = x f32 [n, rows], contiguous, n = `width`; src[1] = weight f32, `period` elements, or absent;
// x * (1 / sqrt(mean x^2 + eps)) * weight.
struct ts_norm { int64_t width; int64_t period; float eps; int32_t has_weight; };

typedef void (*ts_kernel)(struct ts_tensor *dst, int ith, int nth, void *userdata);

// parallel: runs `parts` parts of another kernel on a pool's threads; for graphs that ggml itself runs on one thread.
struct ts_pool;
struct ts_call { ts_kernel kernel; void *args; struct ts_pool *pool; int64_t parts; };
void ts_parallel(struct ts_tensor *dst, int ith, int nth, void *userdata);

// A pool of `threads` threads, the caller's among them. NULL if there is no memory. Destroy it when no graph runs on it.
struct ts_pool *ts_pool_create(int32_t threads);
void ts_pool_destroy(struct ts_pool *pool);

struct ts_kernels {
    const char *isa;           // "avx512", "avx2" or "portable"
    ts_kernel store, attend, rope, conv, scan, top_k, gelu, quantise, linear, experts, convert, dots, norm;
};

// The kernels for an instruction set by name, or the best this CPU runs with name = NULL. NULL if it cannot run here.
const struct ts_kernels *ts_select(const char *name);
int32_t ts_abi_version(void);

#ifdef __cplusplus
}
#endif
