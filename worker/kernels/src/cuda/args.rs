//! The argument structs of the kernels. Each is defined once, here; the C++ definition that is put in front
//! of the sources is generated from it, with an assertion of its size.
#![allow(unsafe_code)] // Declares that the structs are plain bytes.

use bytemuck::{Pod, Zeroable};

macro_rules! field {
    ($ty:ident) => {
        $ty
    };
    ($ty:ident $n:literal) => {
        [$ty; $n]
    };
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ident $([$n:literal])?,)+ })+) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: field!($ty $($n)?),)+
            }

            const _: () = assert!(
                size_of::<$name>() == 0 $(+ size_of::<field!($ty $($n)?)>())+,
                "the struct has no padding"
            );
            // SAFETY: all fields are integers or floats, for which zero is a value.
            unsafe impl Zeroable for $name {}
            // SAFETY: repr(C), all fields are plain bytes, and there is no padding.
            unsafe impl Pod for $name {}
        )+

        /// The definitions in C++.
        pub(super) fn definitions() -> String {
            let mut text = String::new();
            $(
                text += concat!(
                    "struct ", stringify!($name), " { ",
                    $(stringify!($ty), " ", stringify!($field), $("[", stringify!($n), "]",)? "; ",)+
                    "};\n"
                );
                text += &format!(
                    "static_assert(sizeof({0}) == {1}, \"{0} has the size of its Rust definition\");\n",
                    stringify!($name), size_of::<$name>()
                );
            )+
            text
        }
    };
}

structs! {
    /// A packed matrix in planes; see [`Layout`](super::Layout).
    Matrix {
        /// The address of each plane.
        planes: u64[5],
        /// Bytes per row in each plane.
        strides: u64[5],
        rows: u32,
        cols: u32,
        /// Values per scale of the affine formats.
        group: u32,
        /// The factor of all values: 1 except for NVFP4.
        factor: f32,
    }
    /// The arguments of `decode_rows`: one block per row of `out`.
    DecodeRows {
        table: Matrix,
        /// The row of the table for each row of `out`, as u32.
        ids: u64,
        out: u64,
        /// A row that is added to each, or zero.
        plus: u64,
        /// Values between rows of `out`.
        out_stride: u32,
        /// Whether the rows are added to `out`.
        accumulate: u32,
        scale: f32,
        reserved: u32,
    }
    /// The arguments of `dot_rows_*`: four warps per block, each with one or two rows of the matrix; the
    /// second dimension of the grid counts groups of columns.
    DotRows {
        matrix: Matrix,
        x: u64,
        out: u64,
        /// A value per row of the matrix, or zero.
        bias: u64,
        /// Values between columns of `x`, a multiple of four.
        x_stride: u32,
        out_stride: u32,
        columns: u32,
        /// Whether the product is added to `out`.
        accumulate: u32,
    }
    /// The arguments of the kernels that process rows of floats. What `other` and `weight` are is a matter of
    /// the kernel; unused addresses are zero.
    RowOp {
        x: u64,
        other: u64,
        weight: u64,
        bias: u64,
        out: u64,
        /// Values per row.
        cols: u32,
        /// Values between rows of `x` and of `other`.
        x_stride: u32,
        other_stride: u32,
        out_stride: u32,
        /// The epsilon of norms, the factor of scores.
        scale: f32,
        /// The soft cap.
        cap: f32,
        /// Norms: whether the result is added to `out`.
        accumulate: u32,
        reserved: u32,
    }
    /// The arguments of `attention_*`, a block per query head and row, and of `merge_sections`.
    Attend {
        q: u64,
        out: u64,
        /// Keys and values of the layer, in pages.
        cache: u64,
        /// Page ids of all sequences, as u32.
        pages: u64,
        /// For each row: the index of its sequence's first page, the first visible token and the number of
        /// tokens, as three u32.
        rows: u64,
        /// Space for the results of sections, `heads * sections * (head_dim + 2)` floats per row. Then each section
        /// has a block, in the third dimension of the grid. Or zero.
        partials: u64,
        /// The most sections of a row.
        sections: u32,
        /// Bytes per row of the cache.
        row_bytes: u32,
        q_stride: u32,
        out_stride: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        scale: f32,
        /// The soft cap of the scores, or zero.
        cap: f32,
        reserved: u32,
    }
    /// The arguments of `store_heads`: a block per head and row.
    StoreHeads {
        /// In each row the query heads, then those of keys and of values.
        x: u64,
        /// Where the query heads go.
        q: u64,
        /// Keys and values of the layer, in pages.
        cache: u64,
        /// For each row: its page and the slot in it, as two u32.
        slots: u64,
        /// `pairs` for each row.
        cosines: u64,
        sines: u64,
        /// The weights of the norms of heads, or zero.
        q_norm: u64,
        k_norm: u64,
        /// A value per row of the projection, or zero.
        q_bias: u64,
        k_bias: u64,
        v_bias: u64,
        row_bytes: u32,
        x_stride: u32,
        q_stride: u32,
        heads: u32,
        kv_heads: u32,
        /// At most 512.
        head_dim: u32,
        /// Pairs that are rotated, and whether they are neighbours.
        pairs: u32,
        adjacent: u32,
        q_eps: f32,
        k_eps: f32,
    }
    /// The arguments of `argmax`, `top_k` and `log_sum_exp`: a block per row of logits.
    Sample {
        logits: u64,
        /// The ids of each row, as u32: one for `argmax`, `k` for `top_k`.
        ids: u64,
        /// As many values.
        values: u64,
        cols: u32,
        stride: u32,
        /// At most 1,024 and at most `cols`.
        k: u32,
        reserved: u32,
    }
    /// What distinguishes the matrices of experts, which have one format and one shape.
    ExpertPlanes {
        /// The address of each plane.
        planes: u64[5],
        factor: f32,
        reserved: u32,
    }
    /// The arguments of `dot_experts`: as `dot_rows`, but the second dimension of the grid counts slots. A slot is a row
    /// at one of its experts.
    DotExperts {
        /// The first expert's.
        matrix: Matrix,
        /// The planes of each expert, as [`ExpertPlanes`].
        experts: u64,
        /// The expert of each slot, as u32.
        choices: u64,
        x: u64,
        out: u64,
        /// Values between rows of `x`.
        x_stride: u32,
        /// Values between slots.
        out_stride: u32,
        slots: u32,
        /// The number of slots that have a row of `x` in common.
        shared: u32,
    }
    /// The arguments of `route`: a block per row.
    Route {
        /// The router's scores, which become probabilities.
        scores: u64,
        /// For each row, its experts as `used` u32, the one with the highest weight first.
        choices: u64,
        /// The slot of each choice, which is its index, as u32.
        slots: u64,
        /// The weight of each choice.
        weights: u64,
        /// The number of experts, and the values between rows of scores.
        count: u32,
        stride: u32,
        used: u32,
        /// Whether the weights of a row are scaled to a sum of 1.
        renormalise: u32,
    }
    /// The arguments of `mix_experts`.
    MixExperts {
        /// A row per slot.
        outputs: u64,
        /// For each row, the slots of its choices, as `used` u32.
        slots: u64,
        /// As many weights.
        weights: u64,
        out: u64,
        cols: u32,
        /// Values between slots.
        stride: u32,
        out_stride: u32,
        /// Choices per row.
        used: u32,
    }
}
