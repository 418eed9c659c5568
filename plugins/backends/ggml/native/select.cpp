// Chooses the kernels that this processor can run.
#include <string.h>
#include "ts.h"

#if defined(_WIN32)
#define TS_EXPORT extern "C" __declspec(dllexport)
#else
#define TS_EXPORT extern "C" __attribute__((visibility("default")))
#endif

extern "C" {
#if defined(TS_X86)
extern const ts_kernels ts_kernels_avx512, ts_kernels_avx2;
#endif
extern const ts_kernels ts_kernels_portable;
}

namespace {

struct Choice { const ts_kernels *kernels; bool runs; };

}  // namespace

TS_EXPORT const ts_kernels *ts_select(const char *name) {
#if defined(TS_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    const Choice choices[] = {
#if defined(TS_X86)
        {&ts_kernels_avx512, avx512},
        {&ts_kernels_avx2, avx2},
#endif
        {&ts_kernels_portable, true},
    };
    for (const Choice &choice : choices)
        if (choice.runs && (!name || strcmp(name, choice.kernels->isa) == 0)) return choice.kernels;
    return nullptr;
}

TS_EXPORT int32_t ts_abi_version(void) { return TS_ABI_VERSION; }
