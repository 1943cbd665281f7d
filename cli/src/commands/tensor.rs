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
                super::list::short_digest(&tensor.digest.to_string()),
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
    let total: u64 = header.len() as u64 + out.entries.iter().map(|entry| entry.size_bytes).sum::<u64>();
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

/// The source of the next bytes of the file.
#[derive(Clone)]
enum Piece {
    Stored { digest: Digest, range: Range<u64> },
    Decoded(Box<TensorInfo>),
}

#[derive(Default)]
struct Export {
    entries: Vec<Entry>,
    metadata: BTreeMap<String, String>,
    pieces: Vec<Piece>,
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
        let mut at = part.offset;
        while at < end {
            let next = end.min(at + PIECE_BYTES);
            self.pieces.push(Piece::Stored { digest: digest.clone(), range: at..next });
            at = next;
        }
        Ok(())
    }

    /// Adds the values as F32, row-major, in pieces of whole rows.
    fn add_decoded(&mut self, tensor: &TensorInfo) -> Outcome {
        let size_bytes = self.add(tensor.name.clone(), Dtype::F32, tensor.shape.clone())?;
        let Some((columns, leading)) = tensor.shape.split_last().filter(|_| size_bytes > 0) else {
            if size_bytes > 0 {
                self.pieces.push(Piece::Decoded(Box::new(tensor.clone())));
            }
            return Ok(());
        };
        let rows: u64 = leading.iter().product();
        let step = (PIECE_BYTES / columns.saturating_mul(4).max(1)).max(1);
        let mut first = 0;
        while first < rows {
            let count = step.min(rows - first);
            match tensor.rows(first, count) {
                Some(piece) => self.pieces.push(Piece::Decoded(Box::new(piece))),
                // Rows that do not start at a byte boundary are decoded in one piece.
                None if first == 0 => {
                    self.pieces.push(Piece::Decoded(Box::new(tensor.clone())));
                    return Ok(());
                }
                None => {
                    return Err(Failure::new(format!("tensor `{}` cannot be split into rows", tensor.name)));
                }
            }
            first += count;
        }
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
        let mut arriving = futures::stream::iter(self.pieces.iter().cloned())
            .map(|piece| fetch(target, piece))
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
            for run in tensor.runs().ok_or_else(wrong)? {
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
