// ggml's types with a table of lattice points: see decode.cuh for the members. A unit is a group of 32
// values. `CODEBOOK` is the table of the type, with one row of eight or four signed bytes per number.

struct Groups {
    static const u32 RUNS = 2;
    METHOD u32 offset(u32 unit, u32 run) { return 32 * unit + 16 * run; }
};

// Eight values of a row with their signs.
FN void signed_values(u64 values, u32 signs, f32 scale, f32 *w) {
    UNROLL
    for (u32 j = 0; j < 8; ++j) {
        f32 value = (f32)signed_byte((u32)(values >> (8 * j)) & 0xff);
        w[j] = mul(mul(scale, value), (signs >> j) & 1 ? -1.0f : 1.0f);
    }
}

// Seven stored signs and the eighth, which makes the number of minus signs even.
FN u32 even_signs(u32 pattern) { return pattern | (count_ones(pattern) & 1) << 7; }

#ifdef CODEBOOK

struct Iq2Xxs : Groups {
    struct Raw { u64 codes; u32 d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        return {load8(plane(m, 0, row) + unit / 8 * BYTES_0 + 8 * (unit % 8)),
                load2(plane(m, 1, row) + unit / 8 * BYTES_1)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        u32 numbers = (u32)r.codes, signs = (u32)(r.codes >> 32);
        f32 scale = mul(mul(half_to_f32(r.d), add(0.5f, (f32)(signs >> 28))), 0.25f);
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 pattern = even_signs((signs >> (7 * l)) & 127);
            signed_values(CODEBOOK[byte(numbers, l)], pattern, scale, w + 8 * (l % 2));
        }
    }
};

struct Iq2Xs : Groups {
    struct Raw { u64 codes; u32 scales, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        return {load8(plane(m, 0, row) + block * BYTES_0 + 8 * g), load1(plane(m, 1, row) + block * BYTES_1 + g),
                load2(plane(m, 2, row) + block * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(mul(half_to_f32(r.d), add(0.5f, (f32)((r.scales >> (4 * run)) & 15))), 0.25f);
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 code = (u32)(r.codes >> (16 * l)) & 0xffff;
            signed_values(CODEBOOK[code & 511], even_signs(code >> 9), scale, w + 8 * (l % 2));
        }
    }
};

struct Iq2S : Groups {
    struct Raw { u32 codes, signs, high, scales, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        return {load4(plane(m, 0, row) + block * BYTES_0 + 4 * g), load4(plane(m, 1, row) + block * BYTES_1 + 4 * g),
                load1(plane(m, 2, row) + block * BYTES_2 + g), load1(plane(m, 3, row) + block * BYTES_3 + g),
                load2(plane(m, 4, row) + block * BYTES_4)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(mul(half_to_f32(r.d), add(0.5f, (f32)((r.scales >> (4 * run)) & 15))), 0.25f);
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 number = byte(r.codes, l) | ((r.high >> (2 * l)) & 3) << 8;
            signed_values(CODEBOOK[number], byte(r.signs, l), scale, w + 8 * (l % 2));
        }
    }
};

// Rows of four values: two of them are eight values with one byte of signs.
FN u64 two_rows(u32 first, u32 second) { return (u64)CODEBOOK[first] | (u64)CODEBOOK[second] << 32; }

struct Iq3Xxs : Groups {
    struct Raw { u64 codes; u32 signs, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        return {load8(plane(m, 0, row) + block * BYTES_0 + 8 * g), load4(plane(m, 1, row) + block * BYTES_1 + 4 * g),
                load2(plane(m, 2, row) + block * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(mul(half_to_f32(r.d), add(0.5f, (f32)(r.signs >> 28))), 0.5f);
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 numbers = (u32)(r.codes >> (16 * l));
            u32 pattern = even_signs((r.signs >> (7 * l)) & 127);
            signed_values(two_rows(byte(numbers, 0), byte(numbers, 1)), pattern, scale, w + 8 * (l % 2));
        }
    }
};

struct Iq3S : Groups {
    struct Raw { u64 codes; u32 signs, high, scales, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        u32 scales = load1(plane(m, 3, row) + block * BYTES_3 + g / 2);
        return {load8(plane(m, 0, row) + block * BYTES_0 + 8 * g), load4(plane(m, 1, row) + block * BYTES_1 + 4 * g),
                load1(plane(m, 2, row) + block * BYTES_2 + g), (scales >> (4 * (g % 2))) & 15,
                load2(plane(m, 4, row) + block * BYTES_4)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(half_to_f32(r.d), add(1.0f, mul(2.0f, (f32)r.scales)));
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 numbers = (u32)(r.codes >> (16 * l)), high = r.high >> (2 * l);
            u32 first = byte(numbers, 0) | (high & 1) << 8, second = byte(numbers, 1) | (high >> 1 & 1) << 8;
            signed_values(two_rows(first, second), byte(r.signs, l), scale, w + 8 * (l % 2));
        }
    }
};

// Eight values of a row, moved by an eighth.
FN void moved_values(u64 values, f32 delta, f32 scale, f32 *w) {
    UNROLL
    for (u32 j = 0; j < 8; ++j) {
        w[j] = mul(scale, add((f32)signed_byte((u32)(values >> (8 * j)) & 0xff), delta));
    }
}

struct Iq1S : Groups {
    struct Raw { u32 codes, high, d; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        return {load4(plane(m, 0, row) + block * BYTES_0 + 4 * g), load2(plane(m, 1, row) + block * BYTES_1 + 2 * g),
                load2(plane(m, 2, row) + block * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        f32 scale = mul(half_to_f32(r.d), (f32)(2 * ((r.high >> 12) & 7) + 1));
        f32 delta = r.high & 0x8000 ? -0.125f : 0.125f;
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 number = byte(r.codes, l) | ((r.high >> (3 * l)) & 7) << 8;
            moved_values(CODEBOOK[number], delta, scale, w + 8 * (l % 2));
        }
    }
};

struct Iq1M : Groups {
    struct Raw { u32 codes, high, g; u64 scales; };
    METHOD Raw load(const Matrix &m, u64 row, u32 unit) {
        u32 block = unit / 8, g = unit % 8;
        return {load4(plane(m, 0, row) + block * BYTES_0 + 4 * g), load2(plane(m, 1, row) + block * BYTES_1 + 2 * g),
                g, load8(plane(m, 2, row) + block * BYTES_2)};
    }
    METHOD void decode(const Raw &r, u32 run, f32 *w) {
        // The scale of the block is in the top nibbles of four words; below are those of the groups.
        u32 bits = 0;
        UNROLL
        for (u32 t = 0; t < 4; ++t) bits |= (u32)(r.scales >> (16 * t + 12) & 15) << (4 * t);
        u32 sub = (u32)(r.scales >> (16 * (r.g / 2) + 6 * (r.g % 2) + 3 * run)) & 7;
        f32 scale = mul(half_to_f32(bits), (f32)(2 * sub + 1));
        UNROLL
        for (u32 l = 2 * run; l < 2 * run + 2; ++l) {
            u32 nibble = (r.high >> (4 * l)) & 15;
            f32 delta = nibble & 8 ? -0.125f : 0.125f;
            moved_values(CODEBOOK[byte(r.codes, l) | (nibble & 7) << 8], delta, scale, w + 8 * (l % 2));
        }
    }
};

#endif
