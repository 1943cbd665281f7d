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
    let width = if args.wide { None } else { ui::terminal_width() };
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
            ui::print_line(fitting(forms(&tensor), width))?;
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

/// The forms of the line of a tensor, from the longest one to the shortest one.
fn forms(tensor: &TensorDiff) -> [String; 4] {
    let error = match (tensor.relative_error, tensor.status.as_str()) {
        (Some(0.0), _) => "0".to_owned(),
        (Some(error), _) if error >= 0.001 => format!("{error:.4}"),
        (Some(error), _) => format!("{error:.1e}"),
        (None, "changed") => "?".to_owned(),
        (None, _) => String::new(),
    };
    let line =
        format!("{:<11} {error:>10}  {}", tensor.status.replace('_', " "), ui::escape_control(&tensor.name));
    let dtype = |side: &Side| side.dtype.clone();
    let stored = |side: &Side| format!("{} {:?}", side.dtype, side.shape);
    let (mut other_name, mut types, mut all) = (String::new(), String::new(), String::new());
    match (&tensor.here, &tensor.there) {
        (Some(here), Some(there)) => {
            if here.name != there.name {
                other_name = format!(" = {}", ui::escape_control(&there.name));
            }
            if dtype(here) != dtype(there) {
                types = format!("  ({}, {})", dtype(here), dtype(there));
            }
            if stored(here) != stored(there) {
                all = format!("  ({}, {})", stored(here), stored(there));
            }
        }
        (Some(side), None) | (None, Some(side)) => {
            types = format!("  ({})", dtype(side));
            all = format!("  ({})", stored(side));
        }
        (None, None) => {}
    }
    let note = tensor.note.as_deref().map(|note| format!("  {note}")).unwrap_or_default();
    [
        format!("{line}{other_name}{all}{note}"),
        format!("{line}{other_name}{types}{note}"),
        format!("{line}{types}{note}"),
        format!("{line}{note}"),
    ]
}

/// The longest form that fits into `width` characters, or the shortest one.
fn fitting(forms: [String; 4], width: Option<usize>) -> String {
    let [.., shortest] = &forms;
    let fits = |form: &&String| width.is_none_or(|width| form.chars().count() <= width);
    forms.iter().find(fits).unwrap_or(shortest).clone()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_leaves_out_details_until_it_fits() {
        let tensor: TensorDiff = serde_json::from_value(serde_json::json!({
            "name": "model.norm.weight", "status": "changed", "relative_error": 0.0072,
            "here": {"name": "model.norm.weight", "dtype": "BF16", "shape": [256, 768]},
            "there": {"name": "output_norm.weight", "dtype": "int8", "shape": [256, 768]},
        }))
        .unwrap();
        let check = |width: Option<usize>, expect: &str| {
            let line = fitting(forms(&tensor), width);
            assert_eq!(line, format!("changed         0.0072  model.norm.weight{expect}"), "{width:?}");
        };
        let all = " = output_norm.weight  (BF16 [256, 768], int8 [256, 768])";
        check(None, all);
        check(Some(98), all);
        check(Some(97), " = output_norm.weight  (BF16, int8)");
        check(Some(75), "  (BF16, int8)");
        check(Some(54), "");
        check(Some(10), "");
    }
}
