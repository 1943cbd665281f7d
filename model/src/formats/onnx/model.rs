//! Finds the initializers of an ONNX file by walking its protobuf fields (`onnx.proto`): names, types, shapes
//! and byte ranges. Only tags, lengths and small fields are read; weights are skipped, wherever they are
//! stored between them.

use super::error::OnnxError;
use super::fields::{Field, FieldReader, Wire};
use super::tensor::{Data, Initializer};
use crate::read_at::ReadAt;

/// The most initializers of a file.
const MAX_TENSORS: usize = 250_000;

/// The parts of a file that Lode reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// The tool that wrote the file.
    pub producer: Option<String>,
    /// In the order of the file.
    pub tensors: Vec<Initializer>,
}

impl Model {
    /// Returns the files that hold some of the weights, each once, as the model names them.
    pub fn locations(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self
            .tensors
            .iter()
            .filter_map(|tensor| match &tensor.data {
                Data::External { location, .. } => Some(location.as_str()),
                _ => None,
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the path of a file that a model names, relative to the model's own path.
    pub fn resolve_location(path: &str, location: &str) -> String {
        let location = location.trim_start_matches("./");
        match path.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{location}"),
            None => location.to_owned(),
        }
    }

    /// Reads a file by walking its fields.
    pub fn read(file: &dyn ReadAt) -> Result<Model, OnnxError> {
        let mut walk = FieldReader::new(file);
        let mut model = Model::default();
        let mut has_graph = false;
        let mut at = 0;
        while at < file.len() {
            let field = walk.field(&mut at, file.len())?;
            match (field.number, field.value) {
                // ModelProto.producer_name
                (2, Wire::Bytes { start, end }) => model.producer = Some(walk.text(start, end)?),
                // ModelProto.graph
                (7, Wire::Bytes { start, end }) => {
                    has_graph = true;
                    walk.initializers(start, end, &mut model)?;
                }
                _ => {}
            }
        }
        if has_graph { Ok(model) } else { Err(OnnxError::NoGraph) }
    }
}

impl FieldReader<'_> {
    fn initializers(&mut self, start: u64, end: u64, model: &mut Model) -> Result<(), OnnxError> {
        let mut at = start;
        while at < end {
            // GraphProto.initializer
            if let Field { number: 5, value: Wire::Bytes { start, end } } = self.field(&mut at, end)? {
                if model.tensors.len() == MAX_TENSORS {
                    return Err(OnnxError::LimitExceeded { what: "initializers" });
                }
                let tensor = self.initializer(start, end)?;
                model.tensors.push(tensor);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::onnx_writer::{bytes, number, tensor, varint};
    use crate::safetensors::Dtype;

    fn model(initializers: &[Vec<u8>]) -> Vec<u8> {
        let tensors: Vec<u8> = initializers.iter().flat_map(|tensor| bytes(5, tensor)).collect();
        [number(1, 8), bytes(2, "maker"), bytes(7, [bytes(2, "g"), tensors].concat())].concat()
    }

    #[test]
    fn initializers_are_located() {
        let entry = |key: &str, value: &str| bytes(13, [bytes(1, key), bytes(2, value)].concat());
        let file = model(&[
            tensor("raw", 1, &[2, 3], &[bytes(9, [7; 24])]),
            // The data comes first, the dims are packed, and the data is much longer than one read.
            [bytes(9, [9; 200_000]), bytes(1, varint(100_000)), number(2, 10), bytes(8, "half")].concat(),
            tensor("shape", 7, &[2], &[bytes(7, [1, 2])]),
            tensor(
                "outside",
                1,
                &[4],
                &[entry("location", "m.data"), entry("offset", "64"), entry("length", "16"), number(14, 1)],
            ),
            tensor("scalar", 1, &[], &[bytes(4, [0; 4])]),
        ]);
        let read = Model::read(&file).unwrap();
        assert_eq!(read.producer.as_deref(), Some("maker"));
        let names: Vec<&str> = read.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["raw", "half", "shape", "outside", "scalar"]);
        let Data::Inline { offset, length: 24 } = read.tensors[0].data else {
            panic!("{:?}", read.tensors[0])
        };
        assert_eq!(file[offset as usize..][..24], [7; 24]);
        let Data::Inline { offset, length: 200_000 } = read.tensors[1].data else { panic!("in the file") };
        assert!(file[offset as usize..][..200_000].iter().all(|byte| *byte == 9));
        assert_eq!((read.tensors[1].dtype(), &read.tensors[1].shape[..]), (Some(Dtype::F16), &[100_000][..]));
        assert_eq!(read.tensors[2].data, Data::Encoded);
        let outside = Data::External { location: "m.data".to_owned(), offset: 64, length: Some(16) };
        assert_eq!(read.tensors[3].data, outside);
        assert_eq!(read.locations(), ["m.data"]);
    }

    #[test]
    fn invalid_files_are_refused() {
        let refused = |file: &[u8]| Model::read(&file.to_vec()).unwrap_err().to_string();
        assert_eq!(refused(b""), "the file has no graph");
        assert!(refused(b"this is text").contains("damaged"));
        let wrong = model(&[tensor("w", 1, &[2, 3], &[bytes(9, [0; 20])])]);
        assert_eq!(refused(&wrong), "initializer `w` of shape [2, 3] has 20 bytes, expected 24");
        let huge = model(&[tensor("w", 1, &[u64::MAX, 3], &[])]);
        assert!(refused(&huge).contains("initializer `w` has shape"));
        assert!(refused(&model(&[tensor("", 1, &[], &[])])).contains("has no name"));
        assert!(
            refused(&model(&[tensor("w", 1, &[], &[number(14, 1)])])).contains("does not give its location")
        );
        let whole = model(&[tensor("raw", 1, &[6], &[bytes(9, [7; 24])])]);
        for cut in 1..whole.len() {
            assert!(Model::read(&whole[..cut].to_vec()).is_err(), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _anything = Model::read(&bytes);
            let _anything = Model::read(&model(&[bytes]));
        }
    }
}
