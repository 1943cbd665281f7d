// ggml's blocks of 32 to 128 values with one level of scales: see decode.cuh for the members.

// 32 values whose codes are the low nibbles, then the high nibbles of sixteen bytes.
struct Nibbles {
    static const u32 RUNS = 2;
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
};

struct Q4_0 : Nibbles {
    struct Raw { U4 q; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load2(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(d, (f32)((i32)nibble(r.q, i, run) - 8));
    }
};

struct Q4_1 : Nibbles {
    struct Raw { U4 q; u32 dm; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load4(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.dm & 0xffff), low = half_to_f32(r.dm >> 16);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = add(mul(d, (f32)nibble(r.q, i, run)), low);
    }
};

struct Q5_0 : Nibbles {
    struct Raw { U4 q; u32 high, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load4(plane(m, 1, row) + unit * BYTES_1),
                load2(plane(m, 2, row) + unit * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = nibble(r.q, i, run) | ((r.high >> (16 * run + i)) & 1) << 4;
            w[i] = mul(d, (f32)((i32)code - 16));
        }
    }
};

struct Q5_1 : Nibbles {
    struct Raw { U4 q; u32 high, dm; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load4(plane(m, 1, row) + unit * BYTES_1),
                load4(plane(m, 2, row) + unit * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.dm & 0xffff), low = half_to_f32(r.dm >> 16);
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = nibble(r.q, i, run) | ((r.high >> (16 * run + i)) & 1) << 4;
            w[i] = add(mul(d, (f32)code), low);
        }
    }
};

struct Q8_0 {
    static const u32 RUNS = 2;
    struct Raw { U4 q[2]; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + unit * BYTES_0;
        return {{load16(at), load16(at + 16)}, load2(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(d, (f32)signed_byte(byte(r.q[run], i)));
    }
};

struct Q1_0 {
    static const u32 RUNS = 8;
    struct Raw { U4 q; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load2(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 128 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        u32 bits = word(r.q, run / 2) >> (16 * (run % 2));
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = (bits >> i) & 1 ? d : -d;
    }
};

struct Q2_0 {
    static const u32 RUNS = 4;
    struct Raw { U4 q; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load2(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 64 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        u32 codes = word(r.q, run);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(d, (f32)((i32)((codes >> (2 * i)) & 3) - 1));
    }
};

struct Iq4Nl : Nibbles {
    struct Raw { U4 q; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load2(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(d, (f32)lookup(IQ4_LOW, IQ4_HIGH, nibble(r.q, i, run)));
    }
};

struct Mxfp4Block : Nibbles {
    struct Raw { U4 q; u32 scale; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit * BYTES_0), load1(plane(m, 1, row) + unit * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = e8m0_to_f32(r.scale);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(scale, e2m1_to_f32(nibble(r.q, i, run)));
    }
};

// Four groups of 16, the halves of each in the low and high nibbles of eight bytes.
struct Nvfp4Block {
    static const u32 RUNS = 4;
    struct Raw { U4 q[2]; u32 scales; f32 factor; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        const u8 *at = plane(m, 0, row) + unit * BYTES_0;
        return {{load16(at), load16(at + 16)}, load4(plane(m, 1, row) + unit * BYTES_1), m.factor};
    }
    METHOD u32 offset(u32 unit, u32 run) { return 64 * unit + 16 * run; }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        u32 code = byte(r.scales, run);
        // E4M3 without its sign; 0x7f is zero, and 0xff is an ordinary number.
        f32 scale = code == 0x7f ? 0.0f : code == 0xff ? 480.0f : e4m3_to_f32(code & 0x7f);
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 q = nibble(r.q[run / 2], 8 * (run % 2) + i % 8, i / 8);
            w[i] = mul(mul(scale, e2m1_to_f32(q)), r.factor);
        }
    }
};
