// ggml's blocks of 256 values with scales for groups of 16 or 32: see decode.cuh for the members. A unit is
// the 64 values of 32 bytes of codes, or those that share sixteen bytes of two-bit codes.

// A block of 256 in four units. In unit (n, start), run `quarter` is the values from `128 n + 32 quarter + 16
// start`, whose two-bit codes are in the same sixteen bytes.
struct Quarters {
    static const u32 RUNS = 4;
    METHOD u32 offset(u32 unit, u32 run) {
        return 256 * (unit / 4) + 128 * (unit / 2 % 2) + 32 * run + 16 * (unit % 2);
    }
};

struct Q2K : Quarters {
    struct Raw { U4 q; u32 scales[4]; u32 dm; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 4, n = unit / 2 % 2, start = unit % 2;
        Raw r;
        r.q = load16(plane(m, 0, row) + block * BYTES_0 + 32 * n + 16 * start);
        UNROLL
        for (u32 k = 0; k < 4; ++k) {
            r.scales[k] = load1(plane(m, 1, row) + block * BYTES_1 + 8 * n + 2 * k + start);
        }
        r.dm = load4(plane(m, 2, row) + block * BYTES_2);
        return r;
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(half_to_f32(r.dm & 0xffff), (f32)(r.scales[run] & 15));
        f32 low = mul(half_to_f32(r.dm >> 16), (f32)(r.scales[run] >> 4));
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = add(mul(scale, (f32)((byte(r.q, i) >> (2 * run)) & 3)), -low);
    }
};

struct Q3K : Quarters {
    struct Raw { U4 q, high; u32 scales[4]; u32 d, n; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 4, n = unit / 2 % 2, start = unit % 2;
        Raw r;
        r.q = load16(plane(m, 0, row) + block * BYTES_0 + 32 * n + 16 * start);
        r.high = load16(plane(m, 1, row) + block * BYTES_1 + 16 * start);
        const u8 *scales = plane(m, 2, row) + block * BYTES_2;
        UNROLL
        for (u32 quarter = 0; quarter < 4; ++quarter) {
            // Scale 8 n + 2 quarter + start: four low bits in a nibble, two high bits in the last four bytes.
            u32 k = 2 * quarter + start;
            u32 low = (load1(scales + k) >> (4 * n)) & 15;
            u32 high = (load1(scales + 8 + k % 4) >> (4 * n + 2 * (k / 4))) & 3;
            r.scales[quarter] = low | high << 4;
        }
        r.d = load2(plane(m, 3, row) + block * BYTES_3);
        r.n = n;
        return r;
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(half_to_f32(r.d), (f32)((i32)r.scales[run] - 32));
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = ((byte(r.q, i) >> (2 * run)) & 3) | ((byte(r.high, i) >> (4 * r.n + run)) & 1) << 2;
            w[i] = mul(scale, (f32)((i32)code - 4));
        }
    }
};

// Two groups of 32 codes in the low and high nibbles of 32 bytes; runs are the halves of the groups.
struct Pairs {
    static const u32 RUNS = 4;
    METHOD u32 offset(u32 unit, u32 run) { return 64 * unit + 16 * run; }

    // `d`, `dmin` and the scales of the pair `p` from a header of sixteen bytes.
    struct Scales { f32 scale[2], low[2]; };
    METHOD Scales scales(const U4 &header, u32 p) {
        f32 d = half_to_f32(header.x & 0xffff), dmin = half_to_f32(header.x >> 16);
        Scales s;
        UNROLL
        for (u32 g = 0; g < 2; ++g) {
            u32 at = 8 * ((2 * p + g) % 4);
            u32 a = header.y >> at, b = header.z >> at, c = header.w >> at;
            // The last four groups have four low bits in `c`, and two high bits above those of the first.
            u32 scale = p < 2 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4;
            u32 low = p < 2 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;
            s.scale[g] = mul(d, (f32)scale);
            s.low[g] = mul(dmin, (f32)low);
        }
        return s;
    }
};

struct Q4K : Pairs {
    struct Raw { U4 q[2]; Scales s; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 4, p = unit % 4;
        const u8 *at = plane(m, 0, row) + block * BYTES_0 + 32 * p;
        return {{load16(at), load16(at + 16)}, scales(load16(plane(m, 1, row) + block * BYTES_1), p)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            w[i] = add(mul(r.s.scale[run / 2], (f32)nibble(r.q[run % 2], i, run / 2)), -r.s.low[run / 2]);
        }
    }
};

struct Q5K : Pairs {
    struct Raw { U4 q[2], high[2]; Scales s; u32 p; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 4, p = unit % 4;
        const u8 *at = plane(m, 0, row) + block * BYTES_0 + 32 * p;
        const u8 *high = plane(m, 1, row) + block * BYTES_1;
        return {{load16(at), load16(at + 16)},
                {load16(high), load16(high + 16)},
                scales(load16(plane(m, 2, row) + block * BYTES_2), p),
                p};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 bit = (byte(r.high[run % 2], i) >> (2 * r.p + run / 2)) & 1;
            u32 code = nibble(r.q[run % 2], i, run / 2) | bit << 4;
            w[i] = add(mul(r.s.scale[run / 2], (f32)code), -r.s.low[run / 2]);
        }
    }
};

struct Q6K : Quarters {
    struct Raw { U4 q[2], high; u32 scales[4]; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 4, n = unit / 2 % 2, start = unit % 2;
        const u8 *at = plane(m, 0, row) + block * BYTES_0 + 64 * n + 16 * start;
        Raw r;
        r.q[0] = load16(at);
        r.q[1] = load16(at + 32);
        r.high = load16(plane(m, 1, row) + block * BYTES_1 + 32 * n + 16 * start);
        UNROLL
        for (u32 k = 0; k < 4; ++k) {
            r.scales[k] = load1(plane(m, 2, row) + block * BYTES_2 + 8 * n + 2 * k + start);
        }
        r.d = load2(plane(m, 3, row) + block * BYTES_3);
        return r;
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(half_to_f32(r.d), (f32)signed_byte(r.scales[run]));
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 code = nibble(r.q[run % 2], i, run / 2) | ((byte(r.high, i) >> (2 * run)) & 3) << 4;
            w[i] = mul(scale, (f32)((i32)code - 32));
        }
    }
};

struct Iq4Xs {
    static const u32 RUNS = 2;
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
    struct Raw { U4 q; u64 header; u32 k; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, k = unit % 8;
        return {load16(plane(m, 0, row) + block * BYTES_0 + 16 * k), load8(plane(m, 1, row) + block * BYTES_1), k};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        u32 low = (u32)(r.header >> (32 + 4 * r.k)) & 15, high = (u32)(r.header >> (16 + 2 * r.k)) & 3;
        f32 scale = mul(half_to_f32((u32)r.header & 0xffff), (f32)((i32)(low | high << 4) - 32));
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(scale, (f32)lookup(IQ4_LOW, IQ4_HIGH, nibble(r.q, i, run)));
    }
};

// Ternary values, five to a byte. A unit is sixteen values: a digit of sixteen bytes or, at the end of a
// block, four digits of four bytes. Several lanes read the same bytes in one instruction.
struct Tq1 {
    static const u32 RUNS = 1;
    struct Raw { U4 q; u32 digit, last, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 16, part = unit % 16;
        Raw r;
        r.last = part == 15;
        r.digit = part < 10 ? part / 2 : part - 10;
        if (r.last) {
            u32 codes = load4(plane(m, 1, row) + block * BYTES_1);
            r.q = {codes, codes, codes, codes};
        } else {
            r.q = load16(plane(m, 0, row) + block * BYTES_0 + 16 * (part < 10 ? part % 2 : 2));
        }
        r.d = load2(plane(m, 2, row) + block * BYTES_2);
        return r;
    }
    METHOD u32 offset(u32 unit, u32) { return 16 * unit; }
    METHOD u32 power(u32 n) { return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81; }
    METHOD void decode(const Raw &r, u32, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) {
            u32 digit = (((byte(r.q, i) * power(r.last ? i / 4 : r.digit)) & 0xff) * 3) >> 8;
            w[i] = mul(d, (f32)((i32)digit - 1));
        }
    }
};

struct Tq2 : Quarters {
    struct Raw { U4 q; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load16(plane(m, 0, row) + unit / 4 * BYTES_0 + 16 * (unit % 4)),
                load2(plane(m, 1, row) + unit / 4 * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 d = half_to_f32(r.d);
        UNROLL
        for (u32 i = 0; i < 16; ++i) w[i] = mul(d, (f32)((i32)((byte(r.q, i) >> (2 * run)) & 3) - 1));
    }
};
