//! The values of `general.file_type`, llama.cpp's `llama_ftype`: the quantisation of most tensors of a file.
//! Listings read every value; [`crate::convert`] writes those that it has a recipe for.

/// The flag that marks a file type as guessed.
const GUESSED: u64 = 1024;

const FILE_TYPES: [(u32, &str); 35] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
];

/// Returns the name of a `general.file_type`.
pub fn file_type_name(file_type: u64) -> Option<&'static str> {
    let found = FILE_TYPES.iter().find(|(id, _)| u64::from(*id) == file_type & !GUESSED);
    found.map(|(_, name)| *name)
}

/// Returns the `general.file_type` of this name.
pub(crate) fn file_type_id(name: &str) -> Option<u32> {
    FILE_TYPES.iter().find(|(_, found)| *found == name).map(|(id, _)| *id)
}
