//! `lode tensor ls` and `lode tensor export`: list a model's tensors and write them to a safetensors file.
//! Only the necessary bytes are fetched.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lode_model::{
    digest::Digest,
    safetensors::{self, Dtype},
    tensor::{Part, Scaling, TensorInfo},
};
use serde::{Deserialize, Serialize};

use crate::{
    args::{ExportDtype, TensorExport, TensorLs},
    connect::{Connection, Target},
    error::{Failure, Outcome},
    files,
    table::Table,
    ui,
};

/// Size of one range request, and of one piece to decode. A handful of pieces are in memory at the same time.
const PIECE_BYTES: u64 = 8 << 20;
const PIECES_AHEAD: usize = 6;
/// The largest piece, stored or decoded: a row that is longer than PIECE_BYTES, or a tensor whose rows do not start at
/// whole bytes.
const MAX_PIECE_BYTES: u64 = 1 << 30;

#[derive(Deserialize, Serialize)]
struct Tensors {
    tensors: Vec<TensorInfo>,
}

async fn fetch_list(target: &Target) -> Outcome<Tensors> {
    let mut all = Tensors { tensors: Vec::new() };
    let mut pages = target.registry.json_pages(target.api_path("tensors"));
    while let Some(page) = pages.next::<Tensors>().await.map_err(|error| target.not_found(error))? {
        all.tensors.extend(page.tensors);
    }
    Ok(all)
}

pub(crate) async fn list(connection: &Connection, args: TensorLs) -> Outcome {
    let all = fetch_list(&connection.target(&args.name)?).await?;
    if args.json {
        return ui::json(&all);
    }
    let rows: Vec<Vec<String>> = all
        .tensors
        .iter()
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let dtype = match (&tensor.quantisation, &tensor.scaling) {
                (Some(quantisation), _) => format!("{} g{}", tensor.dtype, quantisation.group_size),
                (None, Some(Scaling { block: [rows, columns], .. })) => {
                    format!("{} g{rows}x{columns}", tensor.dtype)
                }
                (None, None) => tensor.dtype.clone(),
            };
            vec![
                tensor.name.clone(),
                dtype,
                format!("[{}]", shape.join(", ")),
                ui::format_size(tensor.size_bytes),
                ui::short_digest(&tensor.digest.to_string()),
            ]
        })
        .collect();
    Table::new(&["NAME", "DTYPE", "SHAPE", "SIZE", "BLOB"], &rows)
        .optional(&["BLOB", "SIZE"])
        .wide(args.wide)
        .print()
}

pub(crate) async fn export(connection: &Connection, args: TensorExport) -> Outcome {
    let target = connection.target(&args.name)?;
    let chosen = choose(fetch_list(&target).await?.tensors, &args, &target)?;
    let mut out = Export::default();
    for tensor in &chosen {
        match args.dtype {
            Some(ExportDtype::F32) => out.add_decoded(tensor)?,
            None => out.add_stored(tensor)?,
        }
    }
    let entries: Vec<(&str, Dtype, &[u64])> =
        out.entries.iter().map(|entry| (entry.name.as_str(), entry.dtype, entry.shape.as_slice())).collect();
    let header = safetensors::write_header(&entries, &out.metadata);
    if header.len() as u64 > safetensors::MAX_HEADER_BYTES {
        return Err(Failure::new("too many tensors for one safetensors file")
            .hint("name only the tensors that you need"));
    }
    let total =
        out.entries.iter().try_fold(header.len() as u64, |sum, entry| sum.checked_add(entry.size_bytes));
    let total = total.ok_or_else(|| {
        Failure::new("the tensors are too large for one file").hint("name only the tensors that you need")
    })?;
    let meter = ui::Meter::bytes("exporting", total);
    out.write(&target, &args.to, &header, &meter).await?;
    meter.end();
    let what = ui::counted(chosen.len() as u64, "tensor");
    ui::print_message(format!("wrote {what}, {} to {}", ui::format_size(total), args.to.display()));
    Ok(())
}

/// Selects the named tensors, or all of them.
fn choose(all: Vec<TensorInfo>, args: &TensorExport, target: &Target) -> Outcome<Vec<TensorInfo>> {
    if args.tensors.is_empty() {
        if all.is_empty() {
            return Err(Failure::new(format!("{target} has no tensors")));
        }
        return Ok(all);
    }
    let mut by_name: HashMap<String, TensorInfo> =
        all.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut chosen = Vec::new();
    let mut seen = HashSet::new();
    for name in args.tensors.iter().filter(|name| seen.insert(name.as_str())) {
        let tensor = by_name.remove(name).ok_or_else(|| {
            Failure::new(format!("{target} has no tensor `{name}`"))
                .hint(format!("`lode tensor ls {target}` lists them"))
        })?;
        chosen.push(tensor);
    }
    Ok(chosen)
}

/// An array in the file.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    size_bytes: u64,
}

/// The source of an array's bytes.
enum Content {
    Stored {
        digest: Digest,
        range: Range<u64>,
    },
    Decoded(Box<TensorInfo>),
    /// Decoded in pieces of `step` rows.
    DecodedRows {
        tensor: Box<TensorInfo>,
        rows: u64,
        step: u64,
    },
}

impl Content {
    /// The pieces in order. They are not collected: the server chooses the size.
    fn pieces(&self) -> Box<dyn Iterator<Item = Outcome<Piece>> + '_> {
        match self {
            Content::Stored { digest, range } => Box::new(
                split(range.clone(), PIECE_BYTES)
                    .map(move |range| Ok(Piece::Stored { digest: digest.clone(), range })),
            ),
            Content::Decoded(tensor) => Box::new(std::iter::once(Ok(Piece::Decoded(tensor.clone())))),
            Content::DecodedRows { tensor, rows, step } => {
                Box::new(split(0..*rows, *step).map(move |rows| {
                    let piece = tensor.rows(rows.start, rows.end - rows.start).ok_or_else(|| {
                        Failure::new(format!("tensor `{}` cannot be split into rows", tensor.name))
                    })?;
                    Ok(Piece::Decoded(Box::new(piece)))
                }))
            }
        }
    }
}

/// Splits a range into ranges of at most `most`.
fn split(mut range: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        let next = range.end.min(range.start.saturating_add(most.max(1)));
        (!range.is_empty()).then(|| std::mem::replace(&mut range.start, next)..next)
    })
}

/// The source of the next bytes of the file.
enum Piece {
    Stored { digest: Digest, range: Range<u64> },
    Decoded(Box<TensorInfo>),
}

#[derive(Default)]
struct Export {
    entries: Vec<Entry>,
    metadata: BTreeMap<String, String>,
    contents: Vec<Content>,
    names: HashSet<String>,
}

impl Export {
    fn add(&mut self, name: String, dtype: Dtype, shape: Vec<u64>) -> Outcome<u64> {
        let size_bytes = safetensors::byte_size(dtype, &shape)
            .ok_or_else(|| Failure::new(format!("tensor `{name}` has an invalid shape: {shape:?}")))?;
        if !self.names.insert(name.clone()) {
            return Err(Failure::new(format!("two tensors have the name `{name}` in the file")));
        }
        self.entries.push(Entry { name, dtype, shape, size_bytes });
        Ok(size_bytes)
    }

    /// Adds the arrays as they are stored, including the scales and biases of quantised weights and the
    /// metadata that readers need.
    fn add_stored(&mut self, tensor: &TensorInfo) -> Outcome {
        let parts = &tensor.parts;
        self.add_part(tensor, tensor.name.clone(), &parts.weight, &tensor.digest)?;
        for (suffix, part) in
            [("scale", &parts.scale), ("bias", &parts.bias), ("global_scale", &parts.global_scale)]
        {
            if let Some(part) = part {
                self.add_part(tensor, format!("{}.{suffix}", tensor.name), part, &tensor.digest)?;
            }
        }
        if let Some(scaling) = &tensor.scaling {
            self.add_part(tensor, scaling.name.clone(), &scaling.part, &scaling.digest)?;
        }
        if let Some(quantisation) = &tensor.quantisation {
            self.metadata.insert(format!("{}.quant_type", tensor.name), quantisation.kind.to_string());
            self.metadata.insert(format!("{}.group_size", tensor.name), quantisation.group_size.to_string());
        }
        Ok(())
    }

    fn add_part(&mut self, tensor: &TensorInfo, name: String, part: &Part, digest: &Digest) -> Outcome {
        let size_bytes = self.add(name, part.dtype, part.shape.clone())?;
        let end = part.offset.checked_add(size_bytes).filter(|_| size_bytes == part.size_bytes);
        let end = end.ok_or_else(|| {
            Failure::new(format!("the server's description of tensor `{}` is invalid", tensor.name))
        })?;
        self.contents.push(Content::Stored { digest: digest.clone(), range: part.offset..end });
        Ok(())
    }

    /// Adds the values as F32, row-major, in pieces of whole rows.
    fn add_decoded(&mut self, tensor: &TensorInfo) -> Outcome {
        let size_bytes = self.add(tensor.name.clone(), Dtype::F32, tensor.shape.clone())?;
        if size_bytes == 0 {
            return Ok(());
        }
        let rows = tensor.shape.split_last().map_or(1, |(_, leading)| leading.iter().product::<u64>());
        let row_bytes = size_bytes / rows;
        let step = (PIECE_BYTES / row_bytes).max(1);
        // Rows that do not start at whole bytes are decoded in one piece.
        let is_whole = tensor.rows(0, step.min(rows)).is_none();
        let piece_bytes = if is_whole { size_bytes } else { row_bytes.saturating_mul(step.min(rows)) };
        if piece_bytes > MAX_PIECE_BYTES {
            let (found, most) = (ui::format_size(piece_bytes), ui::format_size(MAX_PIECE_BYTES));
            return Err(Failure::new(format!(
                "tensor `{}` would be decoded in one piece of {found}, expected at most {most}",
                tensor.name
            ))
            .hint("omit --dtype to export it as it is stored, or name the other tensors"));
        }
        let tensor = Box::new(tensor.clone());
        self.contents.push(match is_whole {
            true => Content::Decoded(tensor),
            false => Content::DecodedRows { tensor, rows, step },
        });
        Ok(())
    }

    /// Writes a temporary file, syncs and renames it, so that the file is complete or absent.
    async fn write(&self, target: &Target, path: &Path, header: &[u8], meter: &ui::Meter) -> Outcome {
        let part: PathBuf = files::part_path(path);
        let failed =
            |error: std::io::Error| Failure::with_source(format!("cannot write {}", part.display()), &error);
        files::create_folder_of(path)?;
        let mut file = File::create(&part).map_err(failed)?;
        file.write_all(header).map_err(failed)?;
        lode_client::Progress::transferred(meter, header.len() as u64);
        let mut arriving = futures::stream::iter(self.contents.iter().flat_map(Content::pieces))
            .map(|piece| async move { fetch(target, piece?).await })
            .buffered(PIECES_AHEAD);
        let written = async {
            while let Some(bytes) = arriving.try_next().await? {
                let length = bytes.len() as u64;
                file =
                    files::blocking(move || file.write_all(&bytes).map(|()| file)).await.map_err(failed)?;
                lode_client::Progress::transferred(meter, length);
            }
            files::blocking(move || file.sync_all()).await.map_err(failed)?;
            files::rename(&part, path)
        }
        .await;
        if written.is_err() {
            let _gone = std::fs::remove_file(&part);
        }
        written
    }
}

async fn fetch(target: &Target, piece: Piece) -> Outcome<Bytes> {
    let get = async |digest: &Digest, range: Range<u64>| {
        target.registry.blob_range(&target.repository, digest, range).await
    };
    match piece {
        Piece::Stored { digest, range } => Ok(get(&digest, range).await?),
        Piece::Decoded(tensor) => {
            let wrong =
                || Failure::new(format!("the server's description of tensor `{}` is invalid", tensor.name));
            let mut read = Vec::new();
            let runs = tensor.runs().ok_or_else(wrong)?;
            if runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.size_bytes)) > MAX_PIECE_BYTES {
                return Err(wrong());
            }
            for run in runs {
                let end = run.offset.checked_add(run.size_bytes).ok_or_else(wrong)?;
                read.push(get(run.digest, run.offset..end).await?);
            }
            let decode = move || {
                let slices: Vec<&[u8]> = read.iter().map(|bytes| &bytes[..]).collect();
                let values = tensor
                    .decode_f32(&slices)
                    .map_err(|error| Failure::with_source(format!("tensor `{}`", tensor.name), &error))?;
                Ok(Bytes::from_iter(values.into_iter().flat_map(f32::to_le_bytes)))
            };
            files::blocking(decode).await
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tensor(dtype: &str, shape: Value, size_bytes: u64) -> TensorInfo {
        let digest = format!("sha256:{}", "0".repeat(64));
        let weight = json!({"dtype": dtype, "shape": shape, "offset": 0, "size_bytes": size_bytes});
        let described = json!({"name": "w", "dtype": dtype, "shape": shape, "size_bytes": size_bytes,
            "digest": digest, "offset": 0, "parts": {"weight": weight}});
        serde_json::from_value(described).unwrap()
    }

    #[test]
    fn the_pieces_of_huge_tensors_take_no_memory() {
        let mut out = Export::default();
        let columns = 1_u64 << 20;
        let rows = 1_u64 << 38;
        out.add_stored(&tensor("F32", json!([rows, columns]), 1 << 60)).unwrap();
        let range_of = |piece| match piece {
            Piece::Stored { range, .. } => range,
            Piece::Decoded(_) => panic!("not decoded"),
        };
        let first: Vec<_> = out.contents[0].pieces().take(2).map(|piece| range_of(piece.unwrap())).collect();
        assert_eq!(first, [0..PIECE_BYTES, PIECE_BYTES..2 * PIECE_BYTES]);

        let mut out = Export::default();
        out.add_decoded(&tensor("F32", json!([rows, columns]), 1 << 60)).unwrap();
        let shape_of = |piece| match piece {
            Piece::Decoded(tensor) => tensor.shape,
            Piece::Stored { .. } => panic!("not stored"),
        };
        let first: Vec<_> = out.contents[0].pieces().take(2).map(|piece| shape_of(piece.unwrap())).collect();
        assert_eq!(first, [[2, columns], [2, columns]]);
    }

    #[test]
    fn the_last_piece_is_shorter() {
        let ranges: Vec<_> = split(1..10, 4).collect();
        assert_eq!(ranges, [1..5, 5..9, 9..10]);
        assert_eq!(split(3..3, 4).count(), 0);
        assert_eq!(split(u64::MAX - 1..u64::MAX, 4).last(), Some(u64::MAX - 1..u64::MAX));
    }

    #[test]
    fn a_piece_that_fits_in_no_memory_is_refused() {
        let elements = MAX_PIECE_BYTES / 4;
        let mut out = Export::default();
        out.add_decoded(&tensor("BF16", json!([elements]), 2 * elements)).unwrap();
        let mut out = Export::default();
        let refused = out.add_decoded(&tensor("BF16", json!([2, elements + 1]), 4 * (elements + 1)));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("tensor `w` would be decoded in one piece of"), "{refused}");
        assert!(refused.contains("omit --dtype"), "{refused}");
    }
}
