//! The file view: a JSON layer that describes how to assemble each file that a model was imported from. It is
//! written at import and read by everything that restores files; every number in it is checked before use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;
use crate::manifest::{Descriptor, Manifest};
use crate::media_type;

/// The `name` of the layer that holds the view; its media type is [`media_type::OLLAMA_JSON`].
pub const LAYER_NAME: &str = "lode.files.json";
/// The version that is written. No other version can be read.
pub const VERSION: u32 = 1;
/// A longer view is not read: it is parsed in memory. It has the headers of the files.
pub const MAX_VIEW_BYTES: u64 = 64 << 20;
/// The longest path of a file, in bytes.
pub const MAX_PATH_LEN: usize = 1024;
/// The most folders that a file is in. Listings of a model have an entry for each folder.
pub const MAX_FOLDERS: usize = 64;
/// The most files of a view.
pub const MAX_FILES: usize = 20_000;

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileView {
    pub version: u32,
    #[serde(deserialize_with = "read_files")]
    pub files: Vec<FileEntry>,
}

/// One file as a sequence of segments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative, with parts separated by `/`.
    pub path: String,
    pub size: u64,
    /// The digest of the whole file. Absent from an assembled file, whose blobs are still verified one by
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Whether this file was generated at import, because the original's tensors were quantised.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assembled: bool,
    pub segments: Vec<Segment>,
}

/// A run of bytes of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Segment {
    /// Literal bytes, in base64; mostly headers.
    Inline {
        #[serde(serialize_with = "write_base64", deserialize_with = "read_base64")]
        inline: Vec<u8>,
    },
    /// Bytes of a layer of the same manifest.
    Blob { digest: Digest, offset: u64, length: u64 },
}

impl FileEntry {
    /// A file that is a part of one blob; `digest` is that of the file, where it is known.
    pub fn in_blob(path: String, digest: Option<Digest>, segment: Segment) -> FileEntry {
        FileEntry { path, size: segment.len(), digest, assembled: false, segments: vec![segment] }
    }

    /// A file that is a whole blob.
    pub fn whole(path: String, digest: Digest, size: u64) -> FileEntry {
        let segment = Segment::Blob { digest: digest.clone(), offset: 0, length: size };
        FileEntry::in_blob(path, Some(digest), segment)
    }
}

impl Segment {
    pub fn len(&self) -> u64 {
        match self {
            Segment::Inline { inline } => inline.len() as u64,
            Segment::Blob { length, .. } => *length,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a file view is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FileViewError {
    #[error("file view is malformed")]
    Json(#[source] serde_json::Error),
    #[error("file view has version {found}, expected {VERSION}")]
    Version { found: u32 },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("two files are named `{path}`")]
    Duplicate { path: String },
    #[error("file view has `{path}` as a file and as a folder")]
    FileAndFolder { path: String },
    #[error("file `{path}` has segments of {found} bytes, expected {expected}")]
    Size { path: String, found: u64, expected: u64 },
    #[error("file `{path}` uses {digest}, which is not a layer of its manifest")]
    NotALayer { path: String, digest: Digest },
    #[error("file `{path}` uses bytes up to {end} of {digest}, which has {size} bytes")]
    OutOfBounds { path: String, digest: Digest, end: u64, size: u64 },
}

/// A path that must not be written. Its text is escaped, and cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("`{path}` is not a relative path of plain names")]
    NotPlain { path: String },
    #[error("`{path}` has more than {MAX_PATH_LEN} bytes")]
    TooLong { path: String },
    #[error("`{path}` has more than {MAX_FOLDERS} folders")]
    TooDeep { path: String },
}

/// Checks that an untrusted path is relative and has no empty, `.` or `..` part, no backslash and no control
/// character, and that it is neither too long nor too deep.
pub fn check_path(path: &str) -> Result<(), PathError> {
    let shown = || path.escape_debug().take(MAX_PATH_LEN).collect();
    if path.len() > MAX_PATH_LEN {
        return Err(PathError::TooLong { path: shown() });
    }
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if !path.split('/').all(is_plain) || path.chars().any(|c| c == '\\' || c.is_control()) {
        return Err(PathError::NotPlain { path: shown() });
    }
    if path.matches('/').count() > MAX_FOLDERS {
        return Err(PathError::TooDeep { path: shown() });
    }
    Ok(())
}

impl FileView {
    /// The layer of a manifest that holds its file view.
    pub fn find(manifest: &Manifest) -> Option<&Descriptor> {
        let is_view = |layer: &&Descriptor| {
            media_type::is_ollama_json(&layer.media_type) && layer.name.as_deref() == Some(LAYER_NAME)
        };
        manifest.layers.iter().find(is_view)
    }

    /// Reads a view and checks that its paths are safe and distinct, and that its sizes add up.
    pub fn parse(bytes: &[u8]) -> Result<FileView, FileViewError> {
        let view: FileView = serde_json::from_slice(bytes).map_err(FileViewError::Json)?;
        if view.version != VERSION {
            return Err(FileViewError::Version { found: view.version });
        }
        let mut paths = BTreeSet::new();
        for file in &view.files {
            check_path(&file.path)?;
            if !paths.insert(file.path.as_str()) {
                return Err(FileViewError::Duplicate { path: file.path.clone() });
            }
            let found = file.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len()));
            let found = found.unwrap_or(u64::MAX);
            if found != file.size {
                return Err(FileViewError::Size { path: file.path.clone(), found, expected: file.size });
            }
        }
        let folders =
            view.files.iter().flat_map(|file| file.path.match_indices('/').map(|(at, _)| &file.path[..at]));
        if let Some(path) = folders.into_iter().find(|folder| paths.contains(folder)) {
            return Err(FileViewError::FileAndFolder { path: path.to_owned() });
        }
        Ok(view)
    }

    /// Checks that every blob that the view uses is a layer of the manifest and is long enough.
    pub fn check_layers(&self, manifest: &Manifest) -> Result<(), FileViewError> {
        let sizes: BTreeMap<&Digest, u64> =
            manifest.layers.iter().map(|layer| (&layer.digest, layer.size)).collect();
        for file in &self.files {
            for segment in &file.segments {
                let Segment::Blob { digest, offset, length } = segment else { continue };
                let path = || file.path.clone();
                let Some(size) = sizes.get(digest).copied() else {
                    return Err(FileViewError::NotALayer { path: path(), digest: digest.clone() });
                };
                let end = offset.saturating_add(*length);
                if end > size {
                    return Err(FileViewError::OutOfBounds {
                        path: path(),
                        digest: digest.clone(),
                        end,
                        size,
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes the layer. The same view always gives the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings and numbers is always JSON")
    }
}

/// Reads the files of a view. It stops at the limit, before it has read a longer list.
fn read_files<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<FileEntry>, D::Error> {
    struct Files;

    impl<'de> Visitor<'de> for Files {
        type Value = Vec<FileEntry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of files")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<FileEntry>, A::Error> {
            let mut files = Vec::new();
            while let Some(file) = entries.next_element()? {
                if files.len() == MAX_FILES {
                    return Err(A::Error::custom(format_args!("there are more than {MAX_FILES} files")));
                }
                files.push(file);
            }
            Ok(files)
        }
    }
    d.deserialize_seq(Files)
}

fn write_base64<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&BASE64.encode(bytes))
}

fn read_base64<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
    BASE64.decode(String::deserialize(d)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(path: &str, segments: Vec<Segment>) -> FileEntry {
        let size = segments.iter().map(Segment::len).sum();
        FileEntry { path: path.to_owned(), size, digest: None, assembled: false, segments }
    }

    fn blob(offset: u64, length: u64) -> Segment {
        Segment::Blob { digest: Digest::sha256(b"layer"), offset, length }
    }

    fn view(files: Vec<FileEntry>) -> FileView {
        FileView { version: VERSION, files }
    }

    #[test]
    fn print_then_parse() {
        let view = view(vec![
            entry("a/b.safetensors", vec![Segment::Inline { inline: vec![0, 255, 7] }, blob(8, 100)]),
            entry("empty", vec![]),
        ]);
        assert_eq!(FileView::parse(&view.to_bytes()).unwrap(), view);
    }

    #[test]
    fn unsafe_paths() {
        let deep = |folders: usize| "d/".repeat(folders) + "a";
        for path in ["a", "a/b/c.d", ".gitattributes", "..a", "a b", "日本.json", &deep(64)] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in [
            "",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "a\\b",
            "a\0b",
            "a\nb",
            &"x".repeat(1025),
            &deep(65),
            &deep(511),
        ] {
            assert!(check_path(path).is_err(), "{path}");
        }
        let reason = |path: &str| check_path(path).unwrap_err().to_string();
        assert!(reason(&deep(65)).ends_with("/a` has more than 64 folders"));
        assert!(reason(&"x".repeat(1025)).ends_with("` has more than 1024 bytes"));
    }

    #[test]
    fn invalid_views_are_refused() {
        let refused = |view: &FileView| FileView::parse(&view.to_bytes()).unwrap_err().to_string();
        assert_eq!(
            refused(&view(vec![entry("../x", vec![])])),
            "`../x` is not a relative path of plain names"
        );
        assert_eq!(refused(&view(vec![entry("a", vec![]), entry("a", vec![])])), "two files are named `a`");
        assert_eq!(
            refused(&view(vec![entry("a/b", vec![]), entry("a", vec![])])),
            "file view has `a` as a file and as a folder"
        );
        assert_eq!(refused(&FileView { version: 2, files: vec![] }), "file view has version 2, expected 1");
        let mut wrong = entry("a", vec![blob(0, 4)]);
        wrong.size = 5;
        assert_eq!(refused(&view(vec![wrong])), "file `a` has segments of 4 bytes, expected 5");
        let mut overflow = entry("a", vec![blob(0, 4)]);
        overflow.segments.push(blob(0, u64::MAX));
        assert!(refused(&view(vec![overflow])).contains("expected 4"));
    }

    #[test]
    fn views_of_too_many_files_are_refused() {
        let of = |count: usize| view((0..count).map(|n| entry(&n.to_string(), vec![])).collect()).to_bytes();
        assert_eq!(FileView::parse(&of(MAX_FILES)).unwrap().files.len(), MAX_FILES);
        let mut many = of(MAX_FILES + 1);
        // What follows is not read.
        many.truncate(many.len() - 2);
        let Err(FileViewError::Json(error)) = FileView::parse(&many) else { panic!("it was read") };
        assert!(error.to_string().starts_with("there are more than 20000 files"), "{error}");
    }

    #[test]
    fn only_layers_of_the_manifest() {
        let mut manifest = Manifest {
            media_type: media_type::DOCKER_MANIFEST.into(),
            artifact_type: None,
            config: None,
            layers: vec![Descriptor::new("x/y", Digest::sha256(b"layer"), 10)],
            manifests: vec![],
            subject: None,
            annotations: BTreeMap::new(),
        };
        let check =
            |manifest: &Manifest, segment| view(vec![entry("a", vec![segment])]).check_layers(manifest);
        assert!(check(&manifest, blob(2, 8)).is_ok());
        assert!(matches!(
            check(&manifest, blob(2, 9)),
            Err(FileViewError::OutOfBounds { end: 11, size: 10, .. })
        ));
        assert!(matches!(check(&manifest, blob(u64::MAX, 9)), Err(FileViewError::OutOfBounds { .. })));
        manifest.layers.clear();
        assert!(matches!(check(&manifest, blob(0, 1)), Err(FileViewError::NotALayer { .. })));
    }

    proptest! {
        #[test]
        fn parse_never_panics(bytes: Vec<u8>) {
            let _ = FileView::parse(&bytes);
        }
    }
}
