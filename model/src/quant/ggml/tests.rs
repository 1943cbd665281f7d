use proptest::prelude::*;

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::report;

fn any_type() -> impl Strategy<Value = Type> {
    proptest::sample::select(Type::ALL)
}

fn made_type() -> impl Strategy<Value = Type> {
    let types: Vec<Type> = Type::ALL.iter().copied().filter(|ty| ty.is_encodable()).collect();
    proptest::sample::select(types)
}

/// Typical values of weights, and some that weights should not have.
fn values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1.0f32..1.0,
        2 => Just(0.0),
        1 => -100.0f32..100.0,
        1 => -1e-7f32..1e-7,
        1 => (-1e-30f32..1e-30).prop_map(|x| x * 1e-12),
        1 => -60000.0f32..60000.0,
    ];
    prop_oneof![
        4 => proptest::collection::vec(value, 512),
        1 => (-2.0f32..2.0).prop_map(|x| vec![x; 512]),
        1 => proptest::collection::vec(-0.05f32..0.05, 512),
        1 => proptest::collection::vec(0.5f32..1.5, 512),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any bytes decode to as many values, or are refused for their length.
    #[test]
    fn any_bytes_decode(ty in any_type(), bytes in proptest::collection::vec(any::<u8>(), 0..900), odd in 0usize..3) {
        let blocks = bytes.len() / ty.block_bytes() as usize;
        let whole = &bytes[..blocks * ty.block_bytes() as usize];
        let mut out = vec![0.0; blocks * ty.block_elements() as usize];
        prop_assert_eq!(decode_f32_into(ty, whole, &mut out), Ok(()));
        let _ = validate(ty, whole);
        out.resize(out.len() + odd, 0.0);
        prop_assert_eq!(decode_f32_into(ty, whole, &mut out).is_ok(), odd == 0);
        prop_assert_eq!(validate(ty, &bytes).is_err_and(|e| matches!(e, InvalidBlocks::Length { .. })), whole.len() != bytes.len());
    }

    /// Both compilations encode to the same bytes.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instruction_sets_agree(ty in made_type(), values in values()) {
        if !dispatch::avx2::is_available() {
            report::skip_optional(&report::current_test(), "this processor lacks AVX2");
        } else if ty.is_quantised() {
            let bytes = ty.row_bytes(values.len() as u64).unwrap() as usize;
            let (mut scalar, mut vector) = (vec![0; bytes], vec![0; bytes]);
            dispatch::encode_blocks::<lanes::ScalarLanes>(ty, &values, &mut scalar);
            dispatch::encode(ty, &values, &mut vector);
            prop_assert_eq!(&scalar, &vector, "{}", ty);
        }
    }
}

/// The largest error after encoding and decoding, relative to the largest of 256 values: the root of the mean
/// square.
fn bound(ty: Type) -> f32 {
    use Type::*;
    match ty {
        F32 | F64 => 0.0,
        F16 => 0.0005,
        BF16 => 0.004,
        Q8_0 | Q8_1 | Q8_K => 0.004,
        Q6_K => 0.04,
        Q5_0 | Q5_1 | Q5_K => 0.07,
        Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => 0.15,
        Q3_K | MXFP4 | NVFP4 => 0.25,
        Q2_K | Q2_0 | TQ1_0 | TQ2_0 => 0.6,
        _ => 1.0,
    }
}

proptest! {
    /// Encoded values decode to nearly the same values, within the precision of the type.
    #[test]
    fn round_trip_errors_are_bounded(
        ty in made_type(),
        values in proptest::collection::vec(-1.0f32..1.0, 256),
        // The scales of NVFP4 cannot represent smaller magnitudes.
        magnitude in -3i32..8,
        offset in prop_oneof![Just(0.0f32), -1.0f32..1.0],
    ) {
        let values: Vec<f32> = values.into_iter().map(|x| (x + offset) * 2f32.powi(magnitude)).collect();
        let mut bytes = vec![0; ty.row_bytes(256).unwrap() as usize];
        encode(ty, &values, &mut bytes).unwrap();
        let mut back = vec![0.0; 256];
        decode_f32_into(ty, &bytes, &mut back).unwrap();
        let squares: f32 = values.iter().zip(&back).map(|(x, y)| (x - y).powi(2)).sum();
        let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let error = (squares / 256.0).sqrt();
        prop_assert!(error <= bound(ty) * largest, "{}: {} of {}", ty, error, largest);
    }
}

#[test]
fn lengths_are_checked() {
    for ty in Type::ALL {
        let (elements, bytes) = (ty.block_elements() as usize, ty.block_bytes() as usize);
        assert!(decode_f32_into(*ty, &vec![0; bytes + 1], &mut vec![0.0; elements]).is_err(), "{ty}");
        assert!(decode_f32_into(*ty, &vec![0; bytes], &mut vec![0.0; elements + 1]).is_err(), "{ty}");
        assert!(encode(*ty, &vec![0.0; elements], &mut vec![0; bytes - 1]).is_err(), "{ty}");
        assert_eq!(encode(*ty, &vec![0.0; elements], &mut vec![0; bytes]).is_ok(), ty.is_encodable(), "{ty}");
    }
}

#[test]
fn values_without_a_scale_are_refused() {
    let mut out = [0; 34 * 2];
    let mut values = [1.0f32; 64];
    values[40] = f32::NAN;
    assert!(
        matches!(encode(Type::Q8_0, &values, &mut out), Err(EncodeError::NotFinite(e)) if e.element == 40)
    );
    values[40] = 1e30;
    assert_eq!(
        encode(Type::Q8_0, &values, &mut out),
        Err(EncodeError::TooLarge { ty: Type::Q8_0, block: 1 })
    );
}

#[test]
fn scales_that_are_not_finite_are_found() {
    for ty in Type::ALL {
        let size = ty.block_bytes() as usize;
        let mut blocks = vec![0; 3 * size];
        assert_eq!(validate(*ty, &blocks), Ok(()));
        blocks[size..2 * size].fill(0xff);
        let found = validate(*ty, &blocks);
        let is_integer = matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
        assert_eq!(
            matches!(found, Err(InvalidBlocks::Scale { block: 1, .. })),
            !is_integer,
            "{ty} {found:?}"
        );
    }
}

/// The vectors do not have the newest type, so its formula is checked by hand.
#[test]
fn q2_0() {
    let mut values = [0.0f32; 64];
    values[..6].copy_from_slice(&[1.0, -1.0, 0.4, -0.6, 0.5, 0.0]);
    let mut block = [0; 18];
    encode(Type::Q2_0, &values, &mut block).unwrap();
    // Codes 2 0 1 0, then 2 1 and ones.
    assert_eq!(block[..5], [0x00, 0x3c, 0b0001_0010, 0b0101_0110, 0b0101_0101]);
    let mut out = [0.0; 64];
    decode_f32_into(Type::Q2_0, &block, &mut out).unwrap();
    assert_eq!(out[..6], [1.0, -1.0, 0.0, -1.0, 1.0, 0.0]);
}
