// The primitives of the kernels. Each is an intrinsic or an instruction on a GPU, and plain C++ for the
// emulator of the tests. Kernels use these names only, so that the same source compiles for both, without the
// headers of the CUDA toolkit.
//
// The text in front of this file defines the argument structs; `program.rs` generates it.

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#define FN __device__ __forceinline__
// A function of a format, see decode/decode.cuh.
#define METHOD static __device__ __forceinline__
// A kernel with one argument struct and a fixed number of threads per block.
#define KERNEL(name, Args, block_threads) \
    extern "C" __global__ void __launch_bounds__(block_threads) name(const __grid_constant__ Args a)
// The same for at least `blocks` blocks on a multiprocessor. Without it, the compiler may spill some registers so that
// more blocks fit.
#define KERNEL_OF_BLOCKS(name, Args, block_threads, blocks) \
    extern "C" __global__ void __launch_bounds__(block_threads, blocks) name(const __grid_constant__ Args a)
// Shared memory of a block. Its content is undefined until the block writes it.
#define SHARED(Element, name, count) __shared__ Element name[count]
// A table in device memory.
#define TABLE(Element, name, count) static __device__ const Element name[count]
#define UNROLL _Pragma("unroll")

FN u32 thread_index() { return threadIdx.x; }
FN u32 block_x() { return blockIdx.x; }
FN u32 block_y() { return blockIdx.y; }
FN u32 block_z() { return blockIdx.z; }
// Waits for all threads of the block.
#define barrier() __syncthreads()

FN u32 bits_of(f32 x) { return __float_as_uint(x); }
FN f32 from_bits(u32 x) { return __uint_as_float(x); }
// Sums and products with their own rounding, which the compiler does not contract to fused operations.
FN f32 add(f32 a, f32 b) { return __fadd_rn(a, b); }
FN f32 mul(f32 a, f32 b) { return __fmul_rn(a, b); }
FN f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
FN f32 quotient(f32 a, f32 b) { return __fdiv_rn(a, b); }
FN f32 root(f32 x) { return __fsqrt_rn(x); }
FN f32 exponential(f32 x) { return expf(x); }
FN f32 logarithm(f32 x) { return logf(x); }
FN f32 hyperbolic_tangent(f32 x) { return tanhf(x); }
FN f32 round_away(f32 x) { return roundf(x); }  // halves away from zero
FN f32 absolute(f32 x) { return fabsf(x); }
FN f32 complementary_error(f32 x) { return erfcf(x); }

// Sixteen bytes that are read once, such as weights: the load bypasses the first-level cache.
FN U4 load16(const void *at) {
    U4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}
// Fewer bytes, at an address that is a multiple of their size.
FN u32 load1(const void *at) { return __ldg((const u8 *)at); }
FN u32 load2(const void *at) { return __ldg((const u16 *)at); }
FN u32 load4(const void *at) { return __ldg((const u32 *)at); }
FN u64 load8(const void *at) { return __ldg((const u64 *)at); }
// Sixteen bytes that several warps read, such as activations. The kernel must not write them.
FN F4 load_f4(const f32 *at) {
    F4 v;
    asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(at));
    return v;
}
FN f32 half_to_f32(u32 bits) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)bits));
    return x;
}
FN u32 f32_to_half(f32 x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
FN i32 dp4a(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
FN u32 count_ones(u32 x) { return __popc(x); }

// Adds to a number in shared memory. Returns the number before.
FN u32 atomic_add_shared(u32 *at, u32 plus) { return atomicAdd(at, plus); }

// The value of the lane whose index differs in `lane_bits`. All lanes of `mask` take part.
FN u32 shuffle_xor(u32 mask, u32 value, u32 lane_bits) { return __shfl_xor_sync(mask, value, lane_bits); }
// The value of lane `lane`.
FN u32 shuffle(u32 mask, u32 value, u32 lane) { return __shfl_sync(mask, value, lane); }

// Two floats as BF16, rounded to nearest, ties to even; the first one is in the low half. From compute
// capability 8.0 on.
FN u32 f32_to_bf16x2(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// Four matrices of 8 by 8 values of sixteen bits from shared memory, with all lanes of a warp. Lane `8 i + r`
// passes the address of the sixteen bytes of row r of matrix i. Lane `4 r + c` gets values `2 c` and `2 c + 1` of
// row r of each matrix.
FN void load_matrices(u32 *to, const void *row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
// `sums[16, 8] += a[16, 16] * b[16, 8]` of BF16 with sums of f32, with all lanes of a warp. From compute capability
// 8.0 on. With g = lane / 4 and t = lane % 4, a lane has two values at
//   a: rows g, g + 8, g, g + 8 and columns 2 t, 2 t, 2 t + 8, 2 t + 8;
//   b: rows 2 t and 2 t + 8 (and the next ones), column g;
//   sums: rows g and g + 8, columns 2 t and 2 t + 1.
FN void multiply_tiles(f32 *sums, const u32 *a, const u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

#include "emulator.h"

#endif

static const u32 ALL_LANES = 0xffffffffu;
static const u32 WARP = 32;
// Evaluated at run time, so that the compiler of the emulator accepts it in every context.
#define NOT_A_NUMBER from_bits(0x7fc00000u)
#define INFINITE from_bits(0x7f800000u)

FN u32 lane_index() { return thread_index() % WARP; }
FN u32 warp_index() { return thread_index() / WARP; }
FN u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
// The larger value; NaN if one is NaN.
FN f32 larger(f32 a, f32 b) { return a > b || a != a ? a : b; }

FN f32 bf16_to_f32(u32 bits) { return from_bits(bits << 16); }

// An E4M3 code ("fn": no infinities, 0x7f and 0xff are NaN).
FN f32 e4m3_to_f32(u32 code) {
    u32 magnitude = code & 0x7f;
    f32 normal = from_bits((magnitude << 20) + (120u << 23));
    f32 subnormal = mul((f32)magnitude, 1.0f / 512.0f);
    f32 value = magnitude < 8 ? subnormal : magnitude == 0x7f ? NOT_A_NUMBER : normal;
    return code & 0x80 ? -value : value;
}

// An E8M0 code: `2^(code - 127)`; 0 is a subnormal number, 255 is NaN.
FN f32 e8m0_to_f32(u32 code) {
    return code == 0 ? from_bits(0x00400000u) : code == 255 ? NOT_A_NUMBER : from_bits(code << 23);
}

FN u32 word(const U4 &v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
FN u32 byte(u32 w, u32 i) { return (w >> (8 * i)) & 0xff; }
// Byte `i` of sixteen.
FN u32 byte(const U4 &v, u32 i) { return byte(word(v, i / 4), i % 4); }
FN i32 signed_byte(u32 code) { return (i32)(i8)(u8)code; }

FN f32 warp_sum(f32 x) {
    UNROLL
    for (u32 lanes = 16; lanes > 0; lanes /= 2) {
        x = add(x, from_bits(shuffle_xor(ALL_LANES, bits_of(x), lanes)));
    }
    return x;
}

FN f32 warp_max(f32 x) {
    UNROLL
    for (u32 lanes = 16; lanes > 0; lanes /= 2) {
        x = larger(x, from_bits(shuffle_xor(ALL_LANES, bits_of(x), lanes)));
    }
    return x;
}

// The sum of a value of each thread, in every thread of a block of `THREADS`. `scratch` has a value per warp,
// and is free again after the next barrier.
template <u32 THREADS> FN f32 block_sum(f32 x, f32 *scratch) {
    x = warp_sum(x);
    if (lane_index() == 0) scratch[warp_index()] = x;
    barrier();
    f32 sum = 0.0f;
    for (u32 warp = 0; warp < THREADS / WARP; ++warp) sum = add(sum, scratch[warp]);
    barrier();
    return sum;
}

// As `block_sum`, the largest value.
template <u32 THREADS> FN f32 block_max(f32 x, f32 *scratch) {
    x = warp_max(x);
    if (lane_index() == 0) scratch[warp_index()] = x;
    barrier();
    f32 largest = scratch[0];
    for (u32 warp = 1; warp < THREADS / WARP; ++warp) largest = larger(largest, scratch[warp]);
    barrier();
    return largest;
}
