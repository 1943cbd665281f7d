//! The file formats of weights that are read, by the extensions of files and by the names in configs.

/// A file format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightFormat {
    Safetensors,
    Gguf,
    Onnx,
}

impl WeightFormat {
    const ALL: [WeightFormat; 3] = [WeightFormat::Safetensors, WeightFormat::Gguf, WeightFormat::Onnx];

    /// The name in configs and listings, and the extension of files.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            WeightFormat::Safetensors => "safetensors",
            WeightFormat::Gguf => "gguf",
            WeightFormat::Onnx => "onnx",
        }
    }

    /// Returns the format of this name, in any case.
    pub(crate) fn of_name(name: &str) -> Option<WeightFormat> {
        WeightFormat::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(name))
    }

    /// Returns the format of a file by the extension of its name, in any case.
    pub(crate) fn of_path(path: &str) -> Option<WeightFormat> {
        let (_, extension) = path.rsplit_once('.')?;
        WeightFormat::of_name(extension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions() {
        for (path, expect) in [
            ("model.safetensors", Some(WeightFormat::Safetensors)),
            ("a/M-00001-of-00002.GGUF", Some(WeightFormat::Gguf)),
            ("onnx/model.onnx", Some(WeightFormat::Onnx)),
            ("model.onnx_data", None),
            ("model.safetensors.index.json", None),
            ("gguf", None),
            ("a.gguf/b", None),
        ] {
            assert_eq!(WeightFormat::of_path(path), expect, "{path}");
        }
    }
}
