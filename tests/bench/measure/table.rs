//! Samples, their medians, and the printed table.

use std::fmt::Write;

use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) place: String,
    pub(crate) row: String,
    pub(crate) target: String,
    /// MiB or requests per second.
    pub(crate) rate: f64,
    pub(crate) unit: &'static str,
    /// CPU time of the server: seconds per GiB, or microseconds per request.
    pub(crate) cpu: f64,
    pub(crate) peak_bytes: u64,
}

impl Sample {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "place": self.place, "row": self.row, "target": self.target, "rate": self.rate, "unit": self.unit,
            "cpu": self.cpu, "peak_bytes": self.peak_bytes,
        })
    }
}

/// The middle value, or the mean of the two middle values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The table: one line per row and target, in order of measurement, with Lode's rate relative to the best
/// peer.
pub(crate) fn table(samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for sample in samples {
        let key = (sample.place.as_str(), sample.row.as_str());
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    let mut place_before = "";
    for (place, row) in seen {
        if place != place_before {
            let _ = writeln!(
                text,
                "\n### {place}\n\n| row | server | rate | relative to the best peer | CPU | peak memory (MiB) |\n| --- | --- | ---: | ---: | ---: | ---: |"
            );
            place_before = place;
        }
        let of_row: Vec<&Sample> = samples.iter().filter(|s| s.place == place && s.row == row).collect();
        let mut targets: Vec<&str> = Vec::new();
        for sample in &of_row {
            if !targets.contains(&sample.target.as_str()) {
                targets.push(&sample.target);
            }
        }
        targets.sort_by_key(|name| !name.starts_with("lode"));
        let rate =
            |target: &str| median(of_row.iter().filter(|s| s.target == target).map(|s| s.rate).collect());
        let best_peer = targets
            .iter()
            .filter(|name| !name.starts_with("lode"))
            .map(|name| rate(name))
            .fold(f64::NAN, f64::max);
        for target in targets {
            let mine: Vec<&&Sample> = of_row.iter().filter(|s| s.target == target).collect();
            let cpu = median(mine.iter().map(|s| s.cpu).collect());
            let peak = mine.iter().map(|s| s.peak_bytes).max().unwrap_or_default() >> 20;
            let unit = mine[0].unit;
            let cpu_unit = if unit == "MiB/s" { "s/GiB" } else { "us each" };
            let against = match target.starts_with("lode") && best_peer.is_finite() {
                true => format!("{:.2}", rate(target) / best_peer),
                false => String::new(),
            };
            let _ = writeln!(
                text,
                "| {row} | {target} | {:.0} {unit} | {against} | {cpu:.2} {cpu_unit} | {peak} |",
                rate(target)
            );
        }
    }
    text
}
