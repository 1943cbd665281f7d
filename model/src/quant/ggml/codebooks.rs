//! The code tables of the IQ types: lattice points with one signed byte per element, eight elements each (IQ1 and
//! IQ2) or four (IQ3). They are data of the formats, taken from ggml; see codebooks/LICENSE for its notice.

/// The value of each code of IQ4_NL and IQ4_XS.
pub use super::iq4_nl::VALUES as IQ4_NL;

pub static IQ1_S: &[u8; 2048 * 8] = include_bytes!("codebooks/iq1_s.bin");
pub static IQ2_XXS: &[u8; 256 * 8] = include_bytes!("codebooks/iq2_xxs.bin");
pub static IQ2_XS: &[u8; 512 * 8] = include_bytes!("codebooks/iq2_xs.bin");
pub static IQ2_S: &[u8; 1024 * 8] = include_bytes!("codebooks/iq2_s.bin");
pub static IQ3_XXS: &[u8; 256 * 4] = include_bytes!("codebooks/iq3_xxs.bin");
pub static IQ3_S: &[u8; 512 * 4] = include_bytes!("codebooks/iq3_s.bin");

/// Returns a row of a table. The bits that a block has for it never exceed the table.
#[inline(always)]
pub(super) fn row<const W: usize>(table: &'static [u8], row: usize) -> [f32; W] {
    table.as_chunks::<W>().0[row].map(|value| f32::from(value as i8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    #[test]
    fn tables_are_what_they_were() {
        for (table, expect) in [
            (IQ1_S as &[u8], "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"),
            (IQ2_XXS, "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"),
            (IQ2_XS, "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"),
            (IQ2_S, "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"),
            (IQ3_XXS, "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"),
            (IQ3_S, "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"),
        ] {
            assert_eq!(Digest::sha256(table).to_string(), format!("sha256:{expect}"));
        }
    }
}
