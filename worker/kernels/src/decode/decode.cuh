// How kernels read packed weights. Each format is a struct with the same members:
//
// - `RUNS`: a unit is `16 * RUNS` values, and a lane of a warp processes whole units. Consecutive lanes read
//   consecutive bytes.
// - `Raw`, `load(matrix, row, unit)`: the bytes of a unit in registers, codes in loads of sixteen bytes.
// - `offset(unit, run)`: the position of the first of the run's 16 consecutive values in the row.
// - `decode(raw, run, w)`: the values of a run, with one rounding per operation in the order of the scalar
//   version in mod.rs, so that the bits are the same.
//
// A matrix is stored as planes: of each row first the codes of all blocks, then their other fields, each
// plane at its own address. `planes.rs` defines them; `BYTES_0` to `BYTES_4` are the bytes per block in each.

FN const u8 *plane(const Matrix &m, u32 index, u64 row) {
    return (const u8 *)m.planes[index] + row * m.strides[index];
}

FN u32 nibble(const U4 &q, u32 i, u32 high) { return (word(q, i / 4) >> (8 * (i % 4) + 4 * high)) & 15; }

// Value `code` of a table of sixteen signed bytes.
FN i32 lookup(u64 low, u64 high, u32 code) {
    u64 half = code & 8 ? high : low;
    return signed_byte((u32)(half >> (8 * (code & 7))) & 0xff);
}
// E2M1 codes; the table has doubled values.
FN f32 e2m1_to_f32(u32 code) { return mul((f32)lookup(E2M1_LOW, E2M1_HIGH, code), 0.5f); }

struct F32 {
    static const u32 RUNS = 2;
    struct Raw { U4 q[8]; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + unit * 128;
        Raw r;
        UNROLL
        for (u32 i = 0; i < 8; ++i) r.q[i] = load16(at + 16 * i);
        return r;
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = from_bits(word(r.q[4 * run + i / 4], i % 4));
    }
};

template <bool BRAIN> struct Half {
    static const u32 RUNS = 2;
    struct Raw { U4 q[4]; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + unit * 64;
        Raw r;
        UNROLL
        for (u32 i = 0; i < 4; ++i) r.q[i] = load16(at + 16 * i);
        return r;
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 bits = (word(r.q[2 * run + i / 8], i / 2 % 4) >> (16 * (i % 2))) & 0xffff;
            w[i] = BRAIN ? bf16_to_f32(bits) : half_to_f32(bits);
        }
    }
};
typedef Half<false> F16;
typedef Half<true> BF16;

// The scales of affine formats.
struct ScaleF32 { METHOD f32 at(const u8 *plane, u32 i) { return from_bits(load4(plane + 4 * i)); } };
struct ScaleF16 { METHOD f32 at(const u8 *plane, u32 i) { return half_to_f32(load2(plane + 2 * i)); } };
struct ScaleBF16 { METHOD f32 at(const u8 *plane, u32 i) { return bf16_to_f32(load2(plane + 2 * i)); } };

// MLX's int4 and int8: `scale * code + bias`. A unit of 32 values is within one group.
template <u32 BITS, class Scale> struct Affine {
    static const u32 RUNS = 2;
    struct Raw { U4 q[BITS / 4]; f32 scale, bias; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        Raw r;
        UNROLL
        for (u32 i = 0; i < BITS / 4; ++i) r.q[i] = load16(plane(m, 0, row) + unit * 4 * BITS + 16 * i);
        u32 group = 32 * unit / m.group;
        r.scale = Scale::at(plane(m, 1, row), group);
        r.bias = Scale::at(plane(m, 2, row), group);
        return r;
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = BITS == 4 ? nibble(r.q[0], 8 * run + i / 2, i % 2) : byte(r.q[run % (BITS / 4)], i);
            w[i] = add(mul(r.scale, (f32)code), r.bias);
        }
    }
};

// The small floats of tensor blobs.
struct Nvfp4 {
    static const u32 RUNS = 2;
    struct Raw { U4 q; u32 scales; f32 factor; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + 16 * unit), load2(plane(m, 1, row) + 2 * unit), m.factor};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(e4m3_to_f32(byte(r.scales, run)), r.factor);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(scale, e2m1_to_f32(nibble(r.q, 8 * run + i / 2, i % 2)));
    }
};

struct Mxfp4 {
    static const u32 RUNS = 2;
    struct Raw { U4 q; u32 scale; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + 16 * unit), load1(plane(m, 1, row) + unit)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = e8m0_to_f32(r.scale);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(scale, e2m1_to_f32(nibble(r.q, 8 * run + i / 2, i % 2)));
    }
};

struct Mxfp8 {
    static const u32 RUNS = 2;
    struct Raw { U4 q[2]; u32 scale; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + 32 * unit;
        return {{load16(at), load16(at + 16)}, load1(plane(m, 1, row) + unit)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = e8m0_to_f32(r.scale);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(scale, e4m3_to_f32(byte(r.q[run], i)));
    }
};

// Codes of one byte, E4M3 or signed integers, with an f32 scale per group. A unit is within one group.
template <bool INTEGERS> struct ByteCodes {
    static const u32 RUNS = 2;
    struct Raw { U4 q[2]; f32 scale; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + 32 * unit;
        return {{load16(at), load16(at + 16)}, ScaleF32::at(plane(m, 1, row), 32 * unit / m.group)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = byte(r.q[run], i);
            w[i] = mul(r.scale, INTEGERS ? (f32)signed_byte(code) : e4m3_to_f32(code));
        }
    }
};
