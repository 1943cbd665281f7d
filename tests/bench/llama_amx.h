/* Included before every source file of llama.cpp's build with AMX: see llama_build.py.
 *
 * GCC's <amxtileintrin.h> does not declare that ldtilecfg and tileloadd read memory, so GCC removes the stores to
 * llama.cpp's tile configuration, and the program crashes at its first matrix (llama.cpp issue 20824 and pull request
 * 26954). These definitions declare it.
 */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_loadd_internal
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#define _tile_loadd(tile, base, stride) _tile_loadd_internal(tile, base, stride)
#define _tile_loadd_internal(tile, base, stride)         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile  \
                     :: "r"((const void *)(base)), "r"((long)(stride)) : "memory")
#endif
