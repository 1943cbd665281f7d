// The host versions of the primitives in prelude.cuh, and the functions of emulator.cpp that they call.
#pragma once

#define FN static inline __attribute__((unused))
#define METHOD static inline __attribute__((unused))
#define UNROLL

struct Thread {
    u32 index, block_x, block_y, block_z;
};

// What emulator.cpp provides. It sets the pointer when it loads the kernels.
struct Emulator {
    const Thread *(*thread)();
    void (*barrier)(int line);
    u32 (*exchange)(int line, u32 mask, u32 value, u32 from_lane);
    void (*together)(int line, void (*work)(void *const *lanes), void *own);
    void *(*shared)(const char *name, u64 bytes);
    void (*fault)(const char *reason, const void *address);
};
extern "C" const Emulator *lode_emulator;
const Emulator *lode_emulator;

// The entry has the name of the kernel; the number of threads and the size of its arguments are beside it.
#define KERNEL(name, Args, block_threads)                               \
    static void name##_body(const Args &a);                             \
    extern "C" const u32 name##_threads = block_threads;                \
    extern "C" const u32 name##_bytes = sizeof(Args);                   \
    extern "C" void name(const void *args);                             \
    extern "C" void name(const void *args) {                            \
        name##_body(*static_cast<const Args *>(args));                  \
    }                                                                   \
    static void name##_body(const Args &a)
#define KERNEL_OF_BLOCKS(name, Args, block_threads, blocks) KERNEL(name, Args, block_threads)
#define SHARED(Element, name, count) \
    Element *const name = static_cast<Element *>(lode_emulator->shared(#name, sizeof(Element) * (count)))
#define TABLE(Element, name, count) static const Element name[count]

FN u32 thread_index() { return lode_emulator->thread()->index; }
FN u32 block_x() { return lode_emulator->thread()->block_x; }
FN u32 block_y() { return lode_emulator->thread()->block_y; }
FN u32 block_z() { return lode_emulator->thread()->block_z; }
#define barrier() lode_emulator->barrier(__LINE__)

FN u32 bits_of(f32 x) {
    u32 bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
FN f32 from_bits(u32 bits) {
    f32 x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
// The compiler runs with -ffp-contract=off, so these round separately.
FN f32 add(f32 a, f32 b) { return a + b; }
FN f32 mul(f32 a, f32 b) { return a * b; }
FN f32 fused(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
FN f32 quotient(f32 a, f32 b) { return a / b; }
FN f32 root(f32 x) { return __builtin_sqrtf(x); }
FN f32 exponential(f32 x) { return __builtin_expf(x); }
FN f32 logarithm(f32 x) { return __builtin_logf(x); }
FN f32 hyperbolic_tangent(f32 x) { return __builtin_tanhf(x); }
FN f32 round_away(f32 x) { return __builtin_roundf(x); }
FN f32 absolute(f32 x) { return __builtin_fabsf(x); }
FN f32 complementary_error(f32 x) { return __builtin_erfcf(x); }

template <class T> FN T load_aligned(const void *at) {
    if (reinterpret_cast<u64>(at) % sizeof(T)) lode_emulator->fault("a load at a misaligned address", at);
    T v;
    __builtin_memcpy(&v, at, sizeof(T));
    return v;
}
FN U4 load16(const void *at) { return load_aligned<U4>(at); }
FN F4 load_f4(const f32 *at) { return load_aligned<F4>(at); }
FN u32 load1(const void *at) { return load_aligned<u8>(at); }
FN u32 load2(const void *at) { return load_aligned<u16>(at); }
FN u32 load4(const void *at) { return load_aligned<u32>(at); }
FN u64 load8(const void *at) { return load_aligned<u64>(at); }
FN f32 half_to_f32(u32 bits) {
    u32 sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x400) return from_bits(sign | ((magnitude << 13) + (112u << 23)));
    f32 value = (f32)magnitude * (1.0f / 16777216.0f);
    return sign ? -value : value;
}
// Rounds to nearest, ties to even.
FN u32 f32_to_half(f32 x) {
    u32 bits = bits_of(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return sign | 0x7fff;
    if (magnitude >= 0x47800000u) return sign | 0x7c00;
    if (magnitude < 0x38800000u) {
        // Adding a half leaves the multiples of 2^-24 in the low bits.
        return sign | (bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u);
    }
    magnitude += 0xfff + ((magnitude >> 13) & 1);
    return sign | ((magnitude - (112u << 23)) >> 13);
}
FN i32 dp4a(u32 a, u32 b, i32 sum) {
    for (int i = 0; i < 4; ++i) sum += (i32)(i8)(u8)(a >> (8 * i)) * (i32)(i8)(u8)(b >> (8 * i));
    return sum;
}
FN u32 count_ones(u32 x) { return (u32)__builtin_popcount(x); }

// Only one fiber of a block runs at a time.
FN u32 atomic_add_shared(u32 *at, u32 plus) {
    u32 before = *at;
    *at = before + plus;
    return before;
}

// Rounds to nearest, ties to even.
FN u32 f32_to_bf16(f32 x) {
    u32 bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
FN u32 f32_to_bf16x2(f32 low, f32 high) { return f32_to_bf16(low) | f32_to_bf16(high) << 16; }

// What a lane contributes to `load_matrices`, and what it gets.
struct MatrixRow {
    u32 row[4];
    u32 *to;
};
FN void load_matrices_of_lanes(void *const *lanes) {
    for (u32 lane = 0; lane < 32; ++lane) {
        u32 *to = static_cast<MatrixRow *>(lanes[lane])->to;
        for (u32 i = 0; i < 4; ++i) to[i] = static_cast<MatrixRow *>(lanes[8 * i + lane / 4])->row[lane % 4];
    }
}
FN void load_matrices_at(int line, u32 *to, const void *row) {
    // Read by the lane, so that an invalid address is its fault.
    U4 v = load_aligned<U4>(row);
    MatrixRow own = {{v.x, v.y, v.z, v.w}, to};
    lode_emulator->together(line, load_matrices_of_lanes, &own);
}
#define load_matrices(to, row) load_matrices_at(__LINE__, to, row)

// What a lane contributes to `multiply_tiles`.
struct TileParts {
    f32 *sums;
    const u32 *a, *b;
};
// The products are exact, and the sum is rounded once. A GPU rounds more often.
FN void multiply_tiles_of_lanes(void *const *lanes) {
    f32 a[16][16], b[8][16];
    for (u32 lane = 0; lane < 32; ++lane) {
        const TileParts &own = *static_cast<TileParts *>(lanes[lane]);
        u32 g = lane / 4, t = lane % 4;
        for (u32 half = 0; half < 2; ++half) {
            for (u32 i = 0; i < 4; ++i) {
                a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = from_bits(own.a[i] >> (16 * half) << 16);
            }
            for (u32 i = 0; i < 2; ++i) b[g][2 * t + 8 * i + half] = from_bits(own.b[i] >> (16 * half) << 16);
        }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        f32 *sums = static_cast<TileParts *>(lanes[lane])->sums;
        for (u32 i = 0; i < 4; ++i) {
            const f32 *row = a[lane / 4 + 8 * (i / 2)], *column = b[2 * (lane % 4) + i % 2];
            double sum = sums[i];
            for (u32 k = 0; k < 16; ++k) sum += (double)row[k] * column[k];
            sums[i] = (f32)sum;
        }
    }
}
FN void multiply_tiles_at(int line, f32 *sums, const u32 *a, const u32 *b) {
    TileParts own = {sums, a, b};
    lode_emulator->together(line, multiply_tiles_of_lanes, &own);
}
#define multiply_tiles(sums, a, b) multiply_tiles_at(__LINE__, sums, a, b)

#define shuffle_xor(mask, value, lane_bits) \
    lode_emulator->exchange(__LINE__, mask, value, (lode_emulator->thread()->index % 32) ^ (lane_bits))
#define shuffle(mask, value, lane) lode_emulator->exchange(__LINE__, mask, value, lane)
