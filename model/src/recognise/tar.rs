//! Lists the members of an uncompressed tar by reading its headers and skipping the data, so that a layer of
//! many GB needs only a few small reads. Old tar, ustar, GNU's long names and pax records are supported;
//! sizes are checked against the file.

use std::io;

use crate::read_at::ReadAt;

/// The block size of tar.
const BLOCK: u64 = 512;
/// The longest name or record that is read, in bytes.
const MAX_RECORD_BYTES: u64 = 64 * 1024;
/// The longest path of a member, in bytes, as on Linux.
const MAX_PATH_BYTES: usize = 4096;
/// The most members that are listed of all tars of a manifest.
pub const MAX_MEMBERS: usize = 10_000;
/// The most headers that are read of a tar, including those of folders, links and records.
const MAX_HEADERS: usize = 4 * MAX_MEMBERS;

/// A regular file in a tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As written, without a leading `./`. The text is untrusted: check it before use.
    pub path: String,
    /// The offset of its bytes in the tar.
    pub offset: u64,
    pub size: u64,
}

/// Why a tar cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("the tar is compressed ({0}); push it uncompressed so that its members can be listed and mapped")]
    Compressed(&'static str),
    #[error("the header at byte {at} is not a tar header")]
    Header { at: u64 },
    #[error("the member `{path}` at byte {at} has {size} bytes, but the file ends at {end}")]
    Cut { path: String, at: u64, size: u64, end: u64 },
    #[error("the record at byte {at} has {size} bytes, expected at most {MAX_RECORD_BYTES}")]
    Record { at: u64, size: u64 },
    #[error("reading failed")]
    Read(#[source] io::Error),
}

/// Lists the regular files of a tar in order, at most `most`; see [`MAX_MEMBERS`].
pub fn list_members(file: &dyn ReadAt, most: usize) -> Result<Vec<Member>, TarError> {
    let end = file.len();
    let (mut members, mut at, mut headers) = (Vec::new(), 0u64, 0);
    // The path and size that records give for the next member.
    let (mut path, mut size) = (None::<String>, None::<u64>);
    while at.checked_add(BLOCK).is_some_and(|next| next <= end)
        && members.len() < most
        && headers < MAX_HEADERS
    {
        headers += 1;
        let mut block = [0; BLOCK as usize];
        file.read_at(at, &mut block).map_err(TarError::Read)?;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        if at == 0
            && let Some(kind) = compression(&block)
        {
            return Err(TarError::Compressed(kind));
        }
        let header = Header::parse(&block).ok_or(TarError::Header { at })?;
        let kind = header.kind;
        let is_record = matches!(kind, b'L' | b'K' | b'x' | b'g');
        let len = if is_record { header.size } else { size.take().unwrap_or(header.size) };
        let start = at + BLOCK;
        let name = || path.clone().unwrap_or_else(|| header.path.clone());
        let stop = start.checked_add(len).filter(|stop| *stop <= end);
        let stop = stop.ok_or_else(|| TarError::Cut { path: name(), at, size: len, end })?;
        if is_record {
            if len > MAX_RECORD_BYTES {
                return Err(TarError::Record { at, size: len });
            }
            let mut record = vec![0; len as usize];
            file.read_at(start, &mut record).map_err(TarError::Read)?;
            match kind {
                b'L' => path = Some(text(&record)),
                b'x' => {
                    let (record_path, record_size) = pax(&record);
                    path = record_path.or(path);
                    size = record_size.or(size);
                }
                // Names of links, and records for all members, which no writer uses for paths.
                _ => {}
            }
        } else {
            let path = path.take().unwrap_or(header.path);
            // Regular files only; links are not followed.
            if matches!(kind, b'0' | 0 | b'7') && !path.ends_with('/') && path.len() <= MAX_PATH_BYTES {
                let path = path.strip_prefix("./").map_or(path.clone(), str::to_owned);
                members.push(Member { path, offset: start, size: len });
            }
        }
        at = match stop.checked_next_multiple_of(BLOCK) {
            Some(next) => next,
            None => break,
        };
    }
    Ok(members)
}

/// Returns the compression of a file that is not a plain tar.
fn compression(first: &[u8]) -> Option<&'static str> {
    match first {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xz"),
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        _ => None,
    }
}

struct Header {
    path: String,
    size: u64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8; BLOCK as usize]) -> Option<Header> {
        // The checksum counts its own field as spaces.
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        if number(&block[148..156])? != u64::from(sum) {
            return None;
        }
        let name = text(&block[..100]);
        let is_posix = &block[257..263] == b"ustar\0";
        let prefix = if is_posix { text(&block[345..500]) } else { String::new() };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        Some(Header { path, size: number(&block[124..136])?, kind: block[156] })
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Parses octal digits or, for large values, GNU's big-endian number behind a set first bit.
fn number(field: &[u8]) -> Option<u64> {
    if let [first, rest @ ..] = field
        && first & 0x80 != 0
    {
        let high = u64::from(first & 0x7f);
        return rest
            .iter()
            .try_fold(high, |all, byte| (all >> 56 == 0).then(|| (all << 8) | u64::from(*byte)));
    }
    let digits = field.iter().copied().skip_while(|byte| *byte == b' ');
    let digits = digits.take_while(|byte| !matches!(byte, b' ' | 0));
    digits
        .map(|byte| (b'0'..=b'7').contains(&byte).then(|| u64::from(byte - b'0')))
        .try_fold(0u64, |all, digit| all.checked_mul(8)?.checked_add(digit?))
}

/// `path` and `size` of pax records: `LENGTH KEY=VALUE\n`, one after the other.
fn pax(mut bytes: &[u8]) -> (Option<String>, Option<u64>) {
    let (mut path, mut size) = (None, None);
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let len = std::str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(record) = len.filter(|len| *len > space + 1).and_then(|len| bytes.get(space + 1..len))
        else {
            break;
        };
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        if let Some(value) = record.strip_prefix(b"path=") {
            path = Some(String::from_utf8_lossy(value).into_owned());
        } else if let Some(value) = record.strip_prefix(b"size=") {
            size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        }
        bytes = &bytes[len.unwrap_or(bytes.len())..];
    }
    (path, size)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn header(path: &str, size: u64, kind: u8) -> Vec<u8> {
        let mut block = vec![0u8; 512];
        block[..path.len().min(100)].copy_from_slice(&path.as_bytes()[..path.len().min(100)]);
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    fn member(path: &str, bytes: &[u8], kind: u8) -> Vec<u8> {
        let mut all = header(path, bytes.len() as u64, kind);
        all.extend_from_slice(bytes);
        all.resize(all.len().next_multiple_of(512), 0);
        all
    }

    fn listed(tar: &[u8]) -> Vec<(String, u64, u64)> {
        list_members(&tar.to_vec(), MAX_MEMBERS)
            .unwrap()
            .into_iter()
            .map(|m| (m.path, m.offset, m.size))
            .collect()
    }

    #[test]
    fn files_are_found_and_nothing_else() {
        let long = "d/".repeat(70) + "model.safetensors";
        let pax = format!("{} path=pax/model.gguf\n", "xx path=pax/model.gguf\n".len());
        let tar = [
            member("folder/", b"", b'5'),
            member("./config.json", b"{}", b'0'),
            member("link", b"", b'2'),
            member("././@LongLink", long.as_bytes(), b'L'),
            member("d", &[7; 600], b'0'),
            member("PaxHeaders/x", pax.as_bytes(), b'x'),
            member("short", &[8; 10], b'0'),
            vec![0; 1024],
            b"whatever follows the end".to_vec(),
        ]
        .concat();
        let at = |path: &str| tar.windows(path.len()).position(|w| w == path.as_bytes());
        assert!(at("folder/").is_some());
        assert_eq!(
            listed(&tar),
            [
                ("config.json".to_owned(), 1024, 2),
                (long, 512 * 7, 600),
                ("pax/model.gguf".to_owned(), 512 * 12, 10),
            ]
        );
    }

    #[test]
    fn long_paths_and_large_sizes() {
        let mut block = header("model.safetensors", 0, b'0');
        block[345..351].copy_from_slice(b"folder");
        block[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        seal(&mut block);
        block.resize(1024, 1);
        assert_eq!(listed(&block), [("folder/model.safetensors".to_owned(), 512, 512)]);
    }

    #[test]
    fn listings_are_bounded() {
        let file = |path: &str| member(path, b"", b'0');
        let long = member("././@LongLink", "x".repeat(MAX_PATH_BYTES + 1).as_bytes(), b'L');
        let tar = [long, file("short"), file("a"), file("b"), file("c")].concat();
        let paths: Vec<String> =
            list_members(&tar, 2).unwrap().into_iter().map(|member| member.path).collect();
        assert_eq!(paths, ["a", "b"]);

        /// A tar of nothing but folders, and a file at its end.
        struct Folders(AtomicUsize);
        impl ReadAt for Folders {
            fn len(&self) -> u64 {
                u64::MAX
            }
            fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
                self.0.fetch_add(1, Ordering::Relaxed);
                buf.copy_from_slice(&header("folder/", 0, b'5'));
                Ok(())
            }
        }
        let folders = Folders(AtomicUsize::new(0));
        assert_eq!((list_members(&folders, 1).unwrap(), folders.0.into_inner()), (vec![], MAX_HEADERS));
    }

    #[test]
    fn non_tars_are_refused() {
        let refused = |bytes: &[u8]| list_members(&bytes.to_vec(), 1).unwrap_err().to_string();
        let mut gzip = vec![0; 600];
        gzip[..2].copy_from_slice(&[0x1f, 0x8b]);
        assert!(refused(&gzip).contains("compressed (gzip)"));
        assert_eq!(refused(&[1; 600]), "the header at byte 0 is not a tar header");
        assert!(refused(&header("a", 100, b'0')).contains("`a` at byte 0 has 100 bytes"));
        let mut huge = header("a", 0, b'0');
        huge[124..136].fill(0xff);
        seal(&mut huge);
        assert!(list_members(&huge, 1).is_err());
        assert!(refused(&header("x", 1 << 20, b'x')).contains("`x`"));
        assert!(listed(b"").is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), path in "[a-z]{1,20}", size in 0u64..2000, kind in any::<u8>()) {
            let _ = list_members(&bytes, MAX_MEMBERS);
            let mut tar = header(&path, size, kind);
            tar.append(&mut bytes);
            let _ = list_members(&tar, MAX_MEMBERS);
            let _ = pax(&tar);
        }
    }
}
