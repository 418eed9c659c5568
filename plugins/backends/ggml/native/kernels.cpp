// All kernels for one instruction set. Compiled once for each, with TS_ISA = avx512, avx2 or portable.
#include "attend.h"
#include "product.h"
#include "recurrent.h"

#define TS_TEXT_(x) #x
#define TS_TEXT(x) TS_TEXT_(x)
#define TS_JOIN_(a, b) a##b
#define TS_JOIN(a, b) TS_JOIN_(a, b)

extern "C" const ts_kernels TS_JOIN(ts_kernels_, TS_ISA);
const ts_kernels TS_JOIN(ts_kernels_, TS_ISA) = {TS_TEXT(TS_ISA), store, attend, rope, conv, scan, top_k, gelu, quantise, linear, experts, convert, dots, norm};
