//! The scales and codes that are checked while a layer is read for import, and their checks. A scale that is
//! infinite or NaN spoils every value that it applies to, and users of the model would not see the cause. The
//! blocks of a GGUF contain their scales; a quantised tensor of a checkpoint has them in separate arrays.

use std::io;
use std::sync::Arc;

use half::{bf16, f16};

use crate::gguf::Header;
use crate::quant::Kind;
use crate::quant::ggml::{InvalidBlocks, Type, validate};
use crate::safetensors::Dtype;

/// A run of a layer's bytes that is checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedRun {
    /// The tensor that it belongs to.
    name: String,
    what: CheckedValues,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl CheckedRun {
    /// The size of a block or number, in bytes.
    pub(super) fn unit_bytes(&self) -> usize {
        self.what.size()
    }

    /// Checks whole blocks or numbers. `first` is the position of the first of them in its run.
    pub(super) fn check_values(&self, first: usize, bytes: &[u8]) -> io::Result<()> {
        let name = &self.name;
        let problem = match self.what {
            CheckedValues::Blocks(ty) => match validate(ty, bytes) {
                Err(InvalidBlocks::Scale { block, value }) => {
                    format!("block {} of {ty} has a scale of {value}", first + block)
                }
                Ok(()) | Err(InvalidBlocks::Length { .. }) => return Ok(()),
            },
            CheckedValues::Numbers { part, stored } => match stored.first_non_finite(bytes) {
                Some((at, value)) => format!("{part} {} is {value}", first + at),
                None => return Ok(()),
            },
        };
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("tensor `{name}`: {problem}, expected a finite number"),
        ))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CheckedValues {
    Blocks(Type),
    Numbers { part: &'static str, stored: NumberFormat },
}

/// The storage format of one number of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NumberFormat {
    F32,
    F16,
    Bf16,
    E8m0,
    E4m3,
}

impl CheckedValues {
    /// The size of a block or number, in bytes.
    fn size(self) -> usize {
        match self {
            CheckedValues::Blocks(ty) => ty.block_bytes() as usize,
            CheckedValues::Numbers { stored: NumberFormat::F32, .. } => 4,
            CheckedValues::Numbers { stored: NumberFormat::F16 | NumberFormat::Bf16, .. } => 2,
            CheckedValues::Numbers { stored: NumberFormat::E8m0 | NumberFormat::E4m3, .. } => 1,
        }
    }
}

impl NumberFormat {
    /// Returns the format of a scale of a quantised tensor; `None` if this type is not used for scales.
    fn of(kind: Kind, dtype: Dtype) -> Option<NumberFormat> {
        match (dtype, kind) {
            (Dtype::F32, _) => Some(NumberFormat::F32),
            (Dtype::F16, _) => Some(NumberFormat::F16),
            (Dtype::BF16, _) => Some(NumberFormat::Bf16),
            (Dtype::F8_E4M3, _) | (Dtype::U8, Kind::Nvfp4) => Some(NumberFormat::E4m3),
            (Dtype::F8_E8M0, _) | (Dtype::U8, Kind::Mxfp4 | Kind::Mxfp8) => Some(NumberFormat::E8m0),
            _ => None,
        }
    }

    /// Returns the first number that is not finite, and its position.
    fn first_non_finite(self, bytes: &[u8]) -> Option<(usize, f32)> {
        let found = |size: usize, value: fn(&[u8]) -> f32| {
            let mut values = bytes.chunks_exact(size).map(value).enumerate();
            values.find(|(_, value)| !value.is_finite())
        };
        match self {
            NumberFormat::F32 => found(4, |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            NumberFormat::F16 => found(2, |b| f16::from_le_bytes([b[0], b[1]]).to_f32()),
            NumberFormat::Bf16 => found(2, |b| bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            NumberFormat::E8m0 => found(1, |b| if b[0] == 0xff { f32::NAN } else { 0.0 }),
            NumberFormat::E4m3 => first_nan_code(bytes).map(|at| (at, f32::NAN)),
        }
    }
}

/// Returns the position of the first E4M3 code that is NaN. Weights consist of such codes, so chunks are
/// checked in vector registers.
fn first_nan_code(bytes: &[u8]) -> Option<usize> {
    const CHUNK: usize = 256;
    let is_nan = |code: &u8| code & 0x7f == 0x7f;
    let chunk =
        bytes.chunks(CHUNK).position(|chunk| chunk.iter().fold(false, |any, code| any | is_nan(code)))?;
    let at = bytes.iter().skip(chunk * CHUNK).position(is_nan)?;
    Some(chunk * CHUNK + at)
}

/// Watches the codes of a quantised tensor, a run of `length` bytes from `offset` on. `None` if every code is
/// a number.
pub(super) fn watch_codes(name: &str, kind: Kind, (offset, length): (u64, u64)) -> Option<CheckedRun> {
    let what = CheckedValues::Numbers { part: "code", stored: NumberFormat::E4m3 };
    (kind == Kind::Mxfp8).then(|| CheckedRun { name: name.to_owned(), what, offset, length })
}

/// Watches an array of a quantised tensor, a run of `length` bytes from `offset` on. `None` if every possible
/// value is a number.
pub(super) fn watch_numbers(
    name: &str,
    part: &'static str,
    kind: Kind,
    dtype: Dtype,
    (offset, length): (u64, u64),
) -> Option<CheckedRun> {
    let stored = NumberFormat::of(kind, dtype)?;
    Some(CheckedRun { name: name.to_owned(), what: CheckedValues::Numbers { part, stored }, offset, length })
}

/// Watches the tensors of a file that consist of blocks, in the order of their bytes. Plain floats are not
/// checked: their values are the responsibility of the model's authors.
pub(super) fn watch_blocks(header: &Header) -> Arc<[CheckedRun]> {
    let of = |entry: &crate::gguf::TensorEntry| {
        let length = entry.size_bytes().filter(|_| entry.ty.block_elements() > 1)?;
        let offset = header.data_start.checked_add(entry.offset)?;
        Some(CheckedRun { name: entry.name.clone(), what: CheckedValues::Blocks(entry.ty), offset, length })
    };
    let mut all: Vec<CheckedRun> = header.tensors.iter().filter_map(of).collect();
    all.sort_by_key(|watched| watched.offset);
    all.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::sync::Arc;

    use super::*;
    use crate::gguf::{Header, Metadata, NewTensor};
    use crate::import::tests::Folder;
    use crate::import::{Options, Source, plan};
    use crate::quant::Quantisation;
    use crate::safetensors::write_header;

    /// A file with 3 tensors of 64 elements. The second has one bad byte in its blocks.
    fn file(ty: Type, bad: Option<usize>) -> Vec<u8> {
        let tensor = |name: &str, ty| NewTensor { name: name.to_owned(), dims: vec![64, 4], ty };
        let tensors = [tensor("a", Type::F32), tensor("b", ty), tensor("c", Type::Q4_0)];
        let header = Header::new(Metadata::new(), tensors).unwrap();
        let mut bytes = header.to_bytes();
        bytes.resize(header.file_len() as usize, 0);
        // Plain floats may have any value.
        let start = header.data_start as usize;
        bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        if let Some(at) = bad {
            let at = start + header.tensors[1].offset as usize + at;
            bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: Vec<u8>, step: usize) -> io::Result<Vec<u8>> {
        let source: Arc<dyn Source> = Arc::new(Folder(BTreeMap::from([("m.gguf".to_owned(), bytes)])));
        let plan = plan(&*source, &Options::default()).unwrap();
        let mut reader = plan.layers[0].checked_reader(&source);
        let (mut all, mut piece) = (Vec::new(), vec![0; step]);
        loop {
            match reader.read(&mut piece)? {
                0 => return Ok(all),
                read => all.extend_from_slice(&piece[..read]),
            }
        }
    }

    #[test]
    fn bad_scales_are_found_however_the_bytes_come() {
        for step in [1, 7, 34, 1000, 1 << 20] {
            let whole = file(Type::Q8_0, None);
            assert_eq!(read(whole.clone(), step).unwrap(), whole);
            for block in [0, 1, 7] {
                let error = read(file(Type::Q8_0, Some(34 * block)), step).unwrap_err().to_string();
                let expect = format!("tensor `b`: block {block} of Q8_0 has a scale of inf");
                assert!(error.contains(&expect), "{step}: {error}");
            }
            // This byte is not part of a scale.
            assert!(read(file(Type::Q8_0, Some(34 * 3 + 10)), step).is_ok());
        }
    }

    /// A checkpoint with one quantised tensor of 4 rows and 64 columns, and the given scales (or biases).
    fn checkpoint(kind: Kind, companions: &[(&str, Dtype, &[u64], &[u8])]) -> Arc<dyn Source> {
        checkpoint_of(0x38, kind, companions)
    }

    /// The same, with weights of one repeated byte.
    fn checkpoint_of(code: u8, kind: Kind, companions: &[(&str, Dtype, &[u64], &[u8])]) -> Arc<dyn Source> {
        let quantisation = Quantisation::of(kind);
        let words = 64 * u64::from(kind.bits()) / 32;
        let name = |suffix: &str| format!("model.up_proj.weight{suffix}");
        let names: Vec<String> = companions.iter().map(|(suffix, ..)| name(suffix)).collect();
        let weight = name("");
        let shape = [4, words];
        let mut keys: Vec<(&str, Dtype, &[u64])> = vec![(&weight, Dtype::U32, &shape)];
        keys.extend(
            names.iter().zip(companions).map(|(name, (_, dtype, shape, _))| (name.as_str(), *dtype, *shape)),
        );
        let metadata = BTreeMap::from([
            ("quant_type".to_owned(), kind.to_string()),
            ("group_size".to_owned(), quantisation.group_size.to_string()),
        ]);
        let mut bytes = write_header(&keys, &metadata);
        bytes.extend(vec![code; (4 * words * 4) as usize]);
        companions.iter().for_each(|(.., data)| bytes.extend_from_slice(data));
        Arc::new(Folder(BTreeMap::from([("model.safetensors".to_owned(), bytes)])))
    }

    #[test]
    fn bad_scales_of_checkpoints_are_named() {
        let halves = |values: [f32; 4]| values.map(|value| bf16::from_f32(value).to_le_bytes()).concat();
        let sound = halves([1.0, -2.0, 0.0, 1e30]);
        let (nan, infinite) = (halves([1.0, f32::NAN, 0.0, 0.0]), halves([1.0, 0.0, 0.0, f32::NEG_INFINITY]));
        let affine = |bias: &[u8], scale: &[u8]| {
            checkpoint(
                Kind::Int4,
                &[(".bias", Dtype::BF16, &[4, 1], bias), (".scale", Dtype::BF16, &[4, 1], scale)],
            )
        };
        let scaled = |kind: Kind, per_row: u64, scales: &[u8]| {
            checkpoint(kind, &[(".scale", Dtype::U8, &[4, per_row], scales)])
        };
        let global = |value: f32| {
            let companions: [(&str, Dtype, &[u64], &[u8]); 2] = [
                (".global_scale", Dtype::F32, &[], &value.to_le_bytes()),
                (".scale", Dtype::U8, &[4, 4], &[0x38; 16]),
            ];
            checkpoint(Kind::Nvfp4, &companions)
        };
        for (source, expect) in [
            (affine(&sound, &sound), None),
            (affine(&nan, &sound), Some("bias 1 is NaN")),
            (affine(&sound, &infinite), Some("scale 3 is -inf")),
            (scaled(Kind::Mxfp4, 2, &[0x7f; 8]), None),
            (scaled(Kind::Mxfp8, 2, &[0x7f, 0xfe, 0xff, 0, 0, 0, 0, 0]), Some("scale 2 is NaN")),
            (
                checkpoint_of(0xff, Kind::Mxfp8, &[(".scale", Dtype::U8, &[4, 2], &[0x7f; 8])]),
                Some("code 0 is NaN"),
            ),
            (checkpoint_of(0xff, Kind::Mxfp4, &[(".scale", Dtype::U8, &[4, 2], &[0x7f; 8])]), None),
            (global(0.5), None),
            (global(f32::INFINITY), Some("global scale 0 is inf")),
        ] {
            let plan = plan(&*source, &Options::default()).unwrap();
            let layer = &plan.layers[0];
            assert!(layer.has_checks());
            let outcome =
                layer.checked_reader(&source).read_to_end(&mut Vec::new()).map_err(|e| e.to_string());
            match expect {
                None => assert!(outcome.is_ok(), "{outcome:?}"),
                Some(text) => {
                    let error = outcome.unwrap_err();
                    assert!(
                        error.contains("tensor `model.up_proj.weight`: ") && error.contains(text),
                        "{error}"
                    );
                }
            }
        }
    }
}
