//! Assembles files from blobs: fetches each blob once, verifies it, and writes its pieces into the files that
//! contain them. A file gets its final name only when it is complete and verified. A small journal lets an
//! interrupted run resume.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{File, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use lode_client::{BlobInfo, Destination, OpenFolder, Progress};
use lode_model::{
    digest::{Algorithm, Digest},
    files_view::{FileEntry, Segment},
};
use tokio::sync::Mutex;

use crate::{
    connect::Target,
    error::{Failure, Outcome},
    files::{self, Destinations},
    send::hash_reader,
    ui,
};

/// How many blobs are fetched at a time.
const MAX_CONCURRENT_BLOBS: usize = 6;
const WRITE_BYTES: usize = 1 << 20;
/// After this many bytes the files are synced and the journal is extended.
const JOURNAL_BYTES: u64 = 256 << 20;
const JOURNAL: &str = ".lode-pull";
/// Begins the lines of the journal that name the pull which holds it.
const PULL_LINE: &str = "pull of ";

/// Statistics of a run.
#[derive(Debug, Default)]
pub(crate) struct PullStats {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    /// Files that existed already with the right content.
    pub(crate) kept: usize,
}

/// Writes `entries` below `folder`, without following links there. `sizes` has the size of every blob that
/// the entries refer to.
pub(crate) async fn write(
    target: &Target,
    folder: &Path,
    entries: Vec<FileEntry>,
    sizes: &HashMap<Digest, u64>,
) -> Outcome<PullStats> {
    // Every name is checked before the first file is written.
    for entry in &entries {
        files::join_below(folder, &entry.path)?;
    }
    let mut destinations = Destinations::create(folder)?;
    let pending: Vec<PendingFile> = entries
        .into_iter()
        .map(|entry| Ok(PendingFile { file: destinations.file(&entry.path)?, entry }))
        .collect::<Outcome<_>>()?;
    let mut written = PullStats {
        files: pending.len(),
        bytes: pending.iter().map(|pending| pending.entry.size).sum(),
        kept: 0,
    };
    for round in group_by_round(pending) {
        let count = round.len();
        let missing = remove_complete_files(round).await?;
        written.kept += count - missing.len();
        download_round(target, destinations.root(), missing, sizes).await?;
    }
    Ok(written)
}

/// Suffixes of the temporary files that exist until a file is complete.
const UNFINISHED: [&str; 3] = [".part", ".part.state", ".part.state.tmp"];

/// Groups the files into rounds. A file whose name equals the temporary name of another is written in a later
/// round.
fn group_by_round(pending: Vec<PendingFile>) -> Vec<Vec<PendingFile>> {
    let names: BTreeSet<String> = pending.iter().map(|pending| pending.entry.path.clone()).collect();
    let round_of = |name: &str| {
        let (mut name, mut round) = (name, 0);
        while let Some(whole) =
            UNFINISHED.iter().filter_map(|end| name.strip_suffix(end)).find(|whole| names.contains(*whole))
        {
            (name, round) = (whole, round + 1);
        }
        if name == JOURNAL { usize::MAX } else { round }
    };
    let mut rounds: BTreeMap<usize, Vec<PendingFile>> = BTreeMap::new();
    for pending in pending {
        rounds.entry(round_of(&pending.entry.path)).or_default().push(pending);
    }
    rounds.into_values().collect()
}

async fn download_round(
    target: &Target,
    folder: &OpenFolder,
    missing: Vec<PendingFile>,
    sizes: &HashMap<Digest, u64>,
) -> Outcome {
    let (whole, scattered): (Vec<PendingFile>, Vec<PendingFile>) =
        missing.into_iter().partition(|pending| pending.whole_blob(sizes).is_some());
    let total = whole.iter().map(|pending| pending.entry.size).sum::<u64>() + blob_bytes(&scattered, sizes);
    let meter = ui::Meter::bytes("pulling", total);
    futures::stream::iter(&whole)
        .map(|pending| async {
            let Some(digest) = pending.whole_blob(sizes) else { return Ok(()) };
            let blob = BlobInfo { digest: digest.clone(), size_bytes: pending.entry.size };
            let progress: Arc<dyn Progress> = meter.clone();
            target.registry.blob_pull_into(&target.repository, &blob, pending.file.clone(), progress).await
        })
        .buffer_unordered(MAX_CONCURRENT_BLOBS)
        .try_collect::<Vec<()>>()
        .await?;
    if !scattered.is_empty() {
        BlobSource { target, sizes, meter: &meter }.assemble(folder, scattered).await?;
    }
    meter.end();
    Ok(())
}

struct PendingFile {
    file: Destination,
    entry: FileEntry,
}

impl PendingFile {
    /// The blob with exactly this file's content; `None` for a file of several segments.
    fn whole_blob(&self, sizes: &HashMap<Digest, u64>) -> Option<&Digest> {
        match self.entry.segments.as_slice() {
            [Segment::Blob { digest, offset: 0, length }]
                if sizes.get(digest) == Some(length)
                    && self.entry.digest.as_ref().is_none_or(|whole| whole == digest) =>
            {
                Some(digest)
            }
            _ => None,
        }
    }
}

fn blob_bytes(pending: &[PendingFile], sizes: &HashMap<Digest, u64>) -> u64 {
    let digests: BTreeSet<&Digest> = pending.iter().flat_map(|pending| blobs_of(&pending.entry)).collect();
    digests.into_iter().filter_map(|digest| sizes.get(digest)).sum()
}

fn blobs_of(entry: &FileEntry) -> impl Iterator<Item = &Digest> {
    entry.segments.iter().filter_map(|segment| match segment {
        Segment::Blob { digest, .. } => Some(digest),
        Segment::Inline { .. } => None,
    })
}

/// Filters out the files that exist already with the right content.
async fn remove_complete_files(pending: Vec<PendingFile>) -> Outcome<Vec<PendingFile>> {
    let bytes =
        pending.iter().filter(|pending| is_candidate(pending)).map(|pending| pending.entry.size).sum();
    let meter = ui::Meter::bytes("checking", bytes);
    let progress = meter.clone();
    let checked = files::run_on_all_cores(pending, move |pending| {
        let is_complete = is_candidate(&pending)
            && pending.entry.digest.as_ref().is_some_and(|digest| {
                let read = pending
                    .file
                    .open_to_read()
                    .and_then(|mut file| hash_reader(&mut file, digest.algorithm(), &*progress));
                read.is_ok_and(|(got, size)| got == *digest && size == pending.entry.size)
            });
        Ok((!is_complete).then_some(pending))
    })
    .await?;
    meter.end();
    Ok(checked.into_iter().flatten().collect())
}

fn is_candidate(pending: &PendingFile) -> bool {
    pending.entry.digest.is_some() && pending.file.file_size() == Some(pending.entry.size)
}

/// A file that is being assembled.
struct PartFile {
    file: File,
    part: Destination,
    pending: PendingFile,
}

impl PartFile {
    fn failed(&self, error: &io::Error) -> Failure {
        Failure::with_source(format!("cannot write {}", self.part.path().display()), error)
    }
}

/// A byte range of a blob and its position in a file.
#[derive(Clone, Copy)]
struct Piece {
    in_blob: u64,
    length: u64,
    file: usize,
    in_file: u64,
}

/// Where blobs are fetched from, and their sizes.
struct BlobSource<'a> {
    target: &'a Target,
    sizes: &'a HashMap<Digest, u64>,
    meter: &'a ui::Meter,
}

impl BlobSource<'_> {
    /// Assembles files that consist of several blobs or pieces of them.
    async fn assemble(&self, folder: &OpenFolder, pending: Vec<PendingFile>) -> Outcome {
        let journal_file = folder.file(JOURNAL);
        let target = self.target.to_string();
        let (parts, mut journal) = files::blocking(move || {
            let locked = Journal::lock(journal_file)?;
            let (parts, parts_exist) = open_parts(pending)?;
            let key = journal_key(&parts);
            Ok::<_, Failure>((parts, locked.open(&key, parts_exist, &target)?))
        })
        .await?;
        let parts = Arc::new(parts);

        let mut pieces: BTreeMap<Digest, Vec<Piece>> = BTreeMap::new();
        for (file, part) in parts.iter().enumerate() {
            let mut in_file = 0;
            for segment in &part.pending.entry.segments {
                match segment {
                    Segment::Inline { inline } => {
                        part.file.write_all_at(inline, in_file).map_err(|error| part.failed(&error))?;
                    }
                    Segment::Blob { digest, offset, length } => {
                        let piece = Piece { in_blob: *offset, length: *length, file, in_file };
                        pieces.entry(digest.clone()).or_default().push(piece);
                    }
                }
                in_file += segment.len();
            }
        }
        for digest in &journal.durable_blobs {
            if pieces.remove(digest).is_some() {
                self.meter.transferred(self.size(digest));
            }
        }
        journal.parts = parts.clone();
        let journal = Mutex::new(journal);
        futures::stream::iter(pieces)
            .map(|(digest, pieces)| {
                let (parts, journal) = (parts.clone(), &journal);
                async move {
                    self.fetch(&digest, &pieces, &parts).await?;
                    let size = self.size(&digest);
                    journal.lock().await.add(digest, size).await
                }
            })
            .buffer_unordered(MAX_CONCURRENT_BLOBS)
            .try_collect::<Vec<()>>()
            .await?;

        let count = parts.len();
        let verifying = ui::Meter::bytes("verifying", parts.iter().map(|part| part.pending.entry.size).sum());
        let (progress, finishing) = (verifying.clone(), parts.clone());
        let finished =
            files::run_on_all_cores((0..count).collect(), move |at| finish(&finishing[at], &*progress)).await;
        verifying.end();
        // The journal is obsolete, whether the files are complete or invalid.
        journal.into_inner().remove();
        finished.map(drop)
    }

    fn size(&self, digest: &Digest) -> u64 {
        self.sizes.get(digest).copied().unwrap_or(0)
    }

    /// Fetches and verifies one blob and writes its pieces as they arrive.
    async fn fetch(&self, digest: &Digest, pieces: &[Piece], parts: &Arc<Vec<PartFile>>) -> Outcome {
        let size = self.size(digest);
        let mut stream = self.target.registry.blob_read(&self.target.repository, digest, size);
        let pieces: Arc<[Piece]> = pieces.into();
        let mut at = 0;
        let mut buffer: Vec<u8> = Vec::with_capacity(WRITE_BYTES.min(size as usize));
        let mut counted = 0;
        loop {
            let next = stream.next().await;
            if buffer.len() >= WRITE_BYTES || next.is_none() {
                let (writing, start) = (std::mem::take(&mut buffer), at);
                at += writing.len() as u64;
                let (pieces, parts) = (pieces.clone(), parts.clone());
                buffer = files::blocking(move || write_pieces(writing, start, &pieces, &parts)).await?;
            }
            match next {
                None => return Ok(()),
                Some(Ok(chunk)) => {
                    self.meter.transferred(chunk.len() as u64);
                    counted += chunk.len() as u64;
                    buffer.extend_from_slice(&chunk);
                }
                Some(Err(error)) => {
                    self.meter.retracted(counted);
                    return Err(error.into());
                }
            }
        }
    }
}

/// Opens a `.part` file for each file and returns whether all of them existed with the right length.
fn open_parts(pending: Vec<PendingFile>) -> Outcome<(Vec<PartFile>, bool)> {
    let mut parts_exist = true;
    let parts = pending
        .into_iter()
        .map(|pending| {
            let part = pending.file.with_suffix(".part");
            let failed = |error: io::Error| {
                Failure::with_source(format!("cannot write {}", part.path().display()), &error)
            };
            let existed = part.file_size().is_some();
            let file = part.open_locked().map_err(|error| match error {
                TryLockError::WouldBlock => {
                    Failure::new(format!("{} is being written by another process", part.path().display()))
                        .hint("wait for it to end, or write to another folder")
                }
                TryLockError::Error(error) => failed(error),
            })?;
            // The locked file may be newer than the one that existed.
            parts_exist &= existed && file.metadata().map_err(failed)?.len() == pending.entry.size;
            file.set_len(pending.entry.size).map_err(failed)?;
            Ok(PartFile { file, part, pending })
        })
        .collect::<Outcome<Vec<PartFile>>>()?;
    Ok((parts, parts_exist))
}

/// A key that identifies this set of files and their contents.
fn journal_key(parts: &[PartFile]) -> String {
    let entries: Vec<&FileEntry> = parts.iter().map(|part| &part.pending.entry).collect();
    let text = serde_json::to_vec(&entries).unwrap_or_default();
    Digest::of(Algorithm::Sha256, &text).to_string()
}

/// Writes the parts of `bytes` that belong to files; `start` is their offset in the blob. Returns the emptied
/// buffer.
fn write_pieces(mut bytes: Vec<u8>, start: u64, pieces: &[Piece], parts: &[PartFile]) -> Outcome<Vec<u8>> {
    let end = start + bytes.len() as u64;
    for piece in pieces {
        let from = piece.in_blob.max(start);
        let to = (piece.in_blob + piece.length).min(end);
        if from < to {
            let slice = &bytes[(from - start) as usize..(to - start) as usize];
            let part = &parts[piece.file];
            part.file
                .write_all_at(slice, piece.in_file + (from - piece.in_blob))
                .map_err(|error| part.failed(&error))?;
        }
    }
    bytes.clear();
    Ok(bytes)
}

/// Verifies a complete file, syncs it and gives it its final name.
fn finish(part: &PartFile, progress: &dyn Progress) -> Outcome {
    if let Some(expected) = &part.pending.entry.digest {
        let read = part
            .part
            .open_to_read()
            .and_then(|mut file| hash_reader(&mut file, expected.algorithm(), progress));
        let (got, _) = read.map_err(|error| part.failed(&error))?;
        if got != *expected {
            let _gone = part.part.remove();
            return Err(Failure::new(format!(
                "{} has the digest {got}, expected {expected}",
                part.pending.file.path().display()
            ))
            .hint("repeat the command: it restarts this file"));
        }
    }
    part.file.sync_all().map_err(|error| part.failed(&error))?;
    part.part.rename_to(&part.pending.file).map_err(|error| part.failed(&error))?;
    part.part.folder().sync().map_err(|error| part.failed(&error))
}

/// Records which blobs are durably in the part files: a key line that identifies the set of files, then one
/// digest per line.
struct Journal {
    file: File,
    destination: Destination,
    durable_blobs: BTreeSet<Digest>,
    pending: Vec<Digest>,
    pending_bytes: u64,
    parts: Arc<Vec<PartFile>>,
}

/// The journal before it is read. No other process writes it.
struct LockedJournal {
    file: File,
    destination: Destination,
}

impl LockedJournal {
    fn failed(&self, error: &io::Error) -> Failure {
        Failure::with_source(format!("cannot write {}", self.destination.path().display()), error)
    }

    /// Reads the journal, or begins a new one if it is not for this set of files. `target` is what is pulled.
    fn open(mut self, key: &str, parts_exist: bool, target: &str) -> Outcome<Journal> {
        let text = String::from_utf8(self.destination.read().unwrap_or_default()).unwrap_or_default();
        let mut lines = text.lines();
        let resumes = parts_exist && lines.next() == Some(key);
        // A line that a crash truncated does not parse as a digest, and neither does one that names a pull.
        let durable_blobs =
            if resumes { lines.filter_map(|line| line.parse().ok()).collect() } else { BTreeSet::new() };
        let mut begin = String::new();
        if !resumes {
            self.file.set_len(0).map_err(|error| self.failed(&error))?;
            begin = format!("{key}\n");
        } else if !text.ends_with('\n') {
            begin.push('\n');
        }
        begin += &format!("{PULL_LINE}{target} (process {})\n", std::process::id());
        let end = self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(begin.as_bytes()));
        end.map_err(|error| self.failed(&error))?;
        let LockedJournal { file, destination } = self;
        let parts = Arc::new(Vec::new());
        Ok(Journal { file, destination, durable_blobs, pending: Vec::new(), pending_bytes: 0, parts })
    }
}

impl Journal {
    /// Locks the journal of a folder. Two pulls that write it would take each other's blobs for their own.
    fn lock(destination: Destination) -> Outcome<LockedJournal> {
        match destination.open_locked() {
            Ok(file) => Ok(LockedJournal { file, destination }),
            Err(TryLockError::WouldBlock) => {
                let text = String::from_utf8(destination.read().unwrap_or_default()).unwrap_or_default();
                let other = text.lines().rev().find_map(|line| line.strip_prefix(PULL_LINE));
                let other: String =
                    other.unwrap_or("other files").chars().filter(|c| !c.is_control()).collect();
                let folder = destination.folder().path();
                Err(Failure::new(format!("the pull of {other} writes to {}", folder.display()))
                    .hint("wait for it to end, or write to another folder"))
            }
            Err(TryLockError::Error(error)) => {
                Err(Failure::with_source(format!("cannot write {}", destination.path().display()), &error))
            }
        }
    }

    /// Removes the file, unless a file of the model has replaced it.
    fn remove(self) {
        if self.destination.is_name_of(&self.file).unwrap_or(false) {
            let _gone = self.destination.remove();
        }
    }

    async fn add(&mut self, digest: Digest, size: u64) -> Outcome {
        self.pending.push(digest);
        self.pending_bytes += size;
        if self.pending_bytes < JOURNAL_BYTES {
            return Ok(());
        }
        self.pending_bytes = 0;
        let parts = self.parts.clone();
        files::blocking(move || {
            parts.iter().try_for_each(|part| part.file.sync_data().map_err(|error| part.failed(&error)))
        })
        .await?;
        let text: String = self.pending.drain(..).map(|digest| format!("{digest}\n")).collect();
        self.file.write_all(text.as_bytes()).map_err(|error| {
            Failure::with_source(format!("cannot write {}", self.destination.path().display()), &error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_called_as_an_unfinished_one_comes_after_it() {
        let pending = |path: &str| {
            let entry =
                FileEntry { path: path.into(), size: 0, digest: None, assembled: false, segments: vec![] };
            PendingFile { file: Destination::at(Path::new(path)).unwrap(), entry }
        };
        let names = [".lode-pull", "a.part", "a.part.part", "a", "b.part", "d.a.part.state", "d.a"];
        let rounds = group_by_round(names.map(pending).into());
        let rounds: Vec<Vec<&str>> = rounds
            .iter()
            .map(|round| round.iter().map(|pending| pending.entry.path.as_str()).collect())
            .collect();
        assert_eq!(
            rounds,
            [
                vec!["a", "b.part", "d.a"],
                vec!["a.part", "d.a.part.state"],
                vec!["a.part.part"],
                vec![".lode-pull"]
            ]
        );
    }

    #[test]
    fn pieces_are_written_for_any_chunk_size() {
        let folder = tempfile::tempdir().unwrap();
        let entry =
            FileEntry { path: "f".into(), size: 10, digest: None, assembled: false, segments: vec![] };
        let pending = PendingFile { file: Destination::at(&folder.path().join("f")).unwrap(), entry };
        let (parts, parts_exist) = open_parts(vec![pending]).unwrap();
        assert!(!parts_exist);
        // Blob 0..10 is "abcdefghij"; the file wants ghij then abcdef.
        let pieces = [
            Piece { in_blob: 0, length: 6, file: 0, in_file: 4 },
            Piece { in_blob: 6, length: 4, file: 0, in_file: 0 },
        ];
        for (start, bytes) in [(0, "abcd"), (4, "efg"), (7, ""), (7, "hij")] {
            write_pieces(bytes.as_bytes().to_vec(), start, &pieces, &parts).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join("f.part")).unwrap(), "ghijabcdef");
    }

    #[test]
    fn a_journal_is_valid_only_for_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JOURNAL);
        let open = |key: &str, parts_exist: bool| {
            let locked = Journal::lock(Destination::at(&path).unwrap()).unwrap();
            locked.open(key, parts_exist, "team/x:v1").unwrap().durable_blobs.len()
        };
        let holder = format!("{PULL_LINE}team/x:v1 (process {})\n", std::process::id());
        let digest = Digest::of(Algorithm::Sha256, b"x");
        fs::write(&path, format!("key\n{digest}\nsha256:cut")).unwrap();
        assert_eq!(open("key", true), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("key\n{digest}\nsha256:cut\n{holder}"));
        assert_eq!(open("key", true), 1);
        assert_eq!(open("key", false), 0);
        fs::write(&path, format!("key\n{digest}\n")).unwrap();
        assert_eq!(open("other", true), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("other\n{holder}"));
    }

    #[test]
    fn a_second_pull_into_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JOURNAL);
        let lock = || Journal::lock(Destination::at(&path).unwrap());
        let mut journal = lock().unwrap().open("key", false, "team/x:v1").unwrap();
        let refused = lock().err().unwrap().to_string();
        let expect = format!(
            "the pull of team/x:v1 (process {}) writes to {}",
            std::process::id(),
            folder.path().display()
        );
        assert!(refused.contains(&expect), "{refused}");
        // The journal of the first pull is unchanged, and removed when it ends.
        journal.file.write_all(b"more\n").unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with(")\nmore\n"));
        journal.remove();
        assert!(!path.exists());

        // A file of the model that has replaced the journal is kept.
        let journal = lock().unwrap().open("key", false, "team/x:v1").unwrap();
        fs::write(folder.path().join("new"), "content").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        journal.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
    }
}
