//! `lode diff A B`: compares two models tensor by tensor. The server compares; results are printed as they
//! arrive.

use futures::StreamExt;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    args::Diff,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// Maximum length of a line in the response.
const MAX_RECORD: usize = 16 << 20;

#[derive(Deserialize)]
struct Record {
    tensor: Option<TensorDiff>,
    total: Option<Total>,
}

#[derive(Deserialize)]
struct TensorDiff {
    name: String,
    status: String,
    relative_error: Option<f64>,
    note: Option<String>,
    here: Option<Side>,
    there: Option<Side>,
}

#[derive(Deserialize)]
struct Side {
    name: String,
    dtype: String,
    shape: Vec<u64>,
}

#[derive(Deserialize)]
struct Total {
    same: u64,
    /// Older servers count these as changed.
    #[serde(default)]
    same_values: u64,
    changed: u64,
    only_here: u64,
    only_there: u64,
    bytes_here: u64,
    bytes_there: u64,
    bytes_shared: u64,
}

pub(crate) async fn run(connection: &Connection, args: Diff) -> Outcome {
    let (here, there) = (connection.target(&args.here)?, connection.target(&args.there)?);
    if here.registry.url() != there.registry.url() {
        return Err(Failure::new(format!(
            "{} is on `{}` but {} is on `{}`; both must be on the same server",
            here,
            here.registry.host(),
            there,
            there.registry.host()
        ))
        .hint(format!(
            "`lode cp {} {}/{}` copies it there",
            args.there,
            here.registry.host(),
            there.model()
        )));
    }
    let path = format!("{}?with={}", here.api_path("diff"), there.model());
    let response = match here.registry.stream_get(&path).await {
        Ok(response) => response,
        Err(error) => return Err(find_missing_model(&here, &there).await.unwrap_or_else(|| error.into())),
    };
    let mut lines = Lines { bytes: response.bytes_stream().boxed(), buffer: Vec::new() };
    let mut heading = Some(());
    while let Some(line) = lines.next().await? {
        let record: Record = serde_json::from_slice(&line)
            .map_err(|error| Failure::with_source("cannot parse the server's response", &error))?;
        if args.json {
            ui::json_line(&String::from_utf8_lossy(&line))?;
        }
        if let Some(total) = record.total {
            return if args.json { Ok(()) } else { show_total(&args, &total) };
        }
        let Some(tensor) = record.tensor.filter(|tensor| args.all || tensor.status != "same") else {
            continue;
        };
        if !args.json {
            if heading.take().is_some() {
                ui::print_line(format!("{:<11} {:>10}  TENSOR", "", "ERROR"))?;
            }
            show(&tensor)?;
        }
    }
    Err(Failure::new("the server's response ended before its last record")
        .hint("the server's log has the reason; repeat the command"))
}

/// The "not found" error of the model that does not exist, if one of them does not.
async fn find_missing_model(here: &Target, there: &Target) -> Option<Failure> {
    for target in [here, there] {
        let result = target.registry.json_get::<IgnoredAny>(&target.api_path("models")).await;
        if let Err(error) = result
            && error.is_not_found()
        {
            return Some(target.not_found(error));
        }
    }
    None
}

fn show(tensor: &TensorDiff) -> Outcome {
    let error = match (tensor.relative_error, tensor.status.as_str()) {
        (Some(0.0), _) => "0".to_owned(),
        (Some(error), _) if error >= 0.001 => format!("{error:.4}"),
        (Some(error), _) => format!("{error:.1e}"),
        (None, "changed") => "?".to_owned(),
        (None, _) => String::new(),
    };
    let mut text =
        format!("{:<11} {error:>10}  {}", tensor.status.replace('_', " "), ui::escape_control(&tensor.name));
    let stored = |side: &Side| format!("{} {:?}", side.dtype, side.shape);
    match (&tensor.here, &tensor.there) {
        (Some(here), Some(there)) => {
            if here.name != there.name {
                text.push_str(&format!(" = {}", ui::escape_control(&there.name)));
            }
            if stored(here) != stored(there) {
                text.push_str(&format!("  ({}, {})", stored(here), stored(there)));
            }
        }
        (Some(side), None) | (None, Some(side)) => text.push_str(&format!("  ({})", stored(side))),
        (None, None) => {}
    }
    if let Some(note) = &tensor.note {
        text.push_str(&format!("  {note}"));
    }
    ui::print_line(text)
}

fn show_total(args: &Diff, total: &Total) -> Outcome {
    let Total { same, same_values, changed, only_here, only_there, bytes_here, bytes_there, bytes_shared } =
        total;
    let otherwise =
        if *same_values > 0 { format!(" {same_values} of the same values,") } else { String::new() };
    ui::print_line(format!(
        "{same} same,{otherwise} {changed} changed, {only_here} only in {}, {only_there} only in {}",
        args.here, args.there
    ))?;
    let share = (*bytes_shared as f64) / (*bytes_there).max(1) as f64 * 100.0;
    ui::print_line(format!(
        "{} and {}, of which they share {} ({share:.1} % of {})",
        ui::format_size(*bytes_here),
        ui::format_size(*bytes_there),
        ui::format_size(*bytes_shared),
        args.there
    ))
}

/// Splits the response into lines as it arrives.
pub(super) struct Lines<S> {
    pub(super) bytes: S,
    pub(super) buffer: Vec<u8>,
}

impl<S, B> Lines<S>
where
    S: futures::Stream<Item = Result<B, reqwest::Error>> + Unpin,
    B: AsRef<[u8]>,
{
    pub(super) async fn next(&mut self) -> Outcome<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=at).collect();
                line.pop();
                return Ok(Some(line));
            }
            match self.bytes.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(bytes.as_ref()),
                Some(Err(error)) => {
                    return Err(Failure::with_source(
                        "the server's response was interrupted",
                        &error.without_url(),
                    ));
                }
                None => return Ok(None),
            }
            if self.buffer.len() > MAX_RECORD {
                return Err(Failure::new("the server's response has an overlong line"));
            }
        }
    }
}
