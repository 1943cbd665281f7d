//! `lode status`: the state of a server on one page.

use serde_json::Value;

use crate::{args::Status, connect::Connection, error::Outcome, table::Table, ui};

/// How many characters of an id are shown.
const ID_LEN: usize = 8;

pub(crate) async fn run(connection: &Connection, args: Status) -> Outcome {
    let registry = connection.default_registry()?;
    let status: Value = registry.json_get("lode/v1/status").await?;
    if args.json {
        return ui::json(&status);
    }
    for line in lines(registry.url().as_str(), &status) {
        ui::print_line(line)?;
    }
    for Section { title, head, optional, rows } in sections(&status) {
        ui::print_line(format!("\n{title}"))?;
        if !rows.is_empty() {
            Table::new(head, &rows).optional(optional).cut_last().wide(args.wide).print()?;
        }
    }
    Ok(())
}

fn text(value: &Value, path: &str) -> String {
    match value.pointer(path) {
        Some(Value::String(text)) => ui::escape_control(text).into_owned(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn number(value: &Value, path: &str) -> Option<u64> {
    value.pointer(path).and_then(Value::as_u64)
}

/// `1 blob`, `2 blobs`.
fn count(value: &Value, path: &str, noun: &str) -> String {
    match number(value, path).unwrap_or_default() {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

fn size(value: &Value, path: &str) -> String {
    number(value, path).map_or_else(|| "unknown".to_owned(), ui::format_size)
}

/// `2023-11-14 22:13 UTC`.
fn time(text: &str) -> String {
    let short: String = text.chars().take(16).collect();
    if short.is_empty() { short } else { format!("{} UTC", short.replace('T', " ")) }
}

/// The server, its database and its storage, one line each.
fn lines(url: &str, status: &Value) -> Vec<String> {
    let is_set = |path: &str| status.pointer(path) == Some(&Value::Bool(true));
    let ready = match (is_set("/server/ready"), is_set("/storage/full")) {
        (true, false) => "ready".to_owned(),
        (true, true) => "ready for reads only: a disk is full".to_owned(),
        (false, _) => format!("not ready: {}", list(status.pointer("/server/missing"))),
    };
    let read_only = if is_set("/server/read_only") { ", read-only" } else { "" };
    let mut lines = vec![
        format!(
            "server    {}: lode {}, {ready}{read_only}",
            url.trim_end_matches('/'),
            text(status, "/server/version")
        ),
        format!(
            "started   {}, up {}",
            time(&text(status, "/server/started_at")),
            duration(number(status, "/server/uptime_seconds").unwrap_or_default())
        ),
        format!(
            "database  {}, {} of {} connections in use",
            text(status, "/database/kind"),
            number(status, "/database/connections")
                .unwrap_or_default()
                .saturating_sub(number(status, "/database/idle").unwrap_or_default()),
            text(status, "/database/max")
        ),
        format!("storage   {} {}", text(status, "/storage/kind"), text(status, "/storage/location")),
    ];
    match status.pointer("/storage/content").filter(|content| !content.is_null()) {
        Some(content) => {
            lines.push(format!(
                "content   {} in {}; {} without sharing",
                size(content, "/stored_bytes"),
                count(content, "/blobs", "blob"),
                size(content, "/logical_bytes"),
            ));
            lines.push(format!("measured  {}", time(&text(content, "/measured_at"))));
        }
        None => lines.push("content   not measured yet".to_owned()),
    }
    for disk in status.pointer("/storage/disks").and_then(Value::as_array).into_iter().flatten() {
        let free = format!("{} free of {}", size(disk, "/free_bytes"), size(disk, "/size_bytes"));
        lines.push(format!("disk      {}: {free}", text(disk, "/folder")));
    }
    if let Some(waiting) = status.get("waiting").filter(|waiting| !waiting.is_null()) {
        lines.push(format!(
            "waiting   {}, {} and {} for a collection, {}",
            count(waiting, "/manifests", "manifest"),
            count(waiting, "/blobs", "blob"),
            count(waiting, "/deletions", "deletion"),
            size(waiting, "/size_bytes")
        ));
    }
    lines
}

fn list(values: Option<&Value>) -> String {
    let texts: Vec<&str> =
        values.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    ui::escape_control(&texts.join("; ")).into_owned()
}

/// `3d 4h`, `2h 5m`, `12s`.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A table with its title. The last column has texts that may be cut.
struct Section {
    title: String,
    head: &'static [&'static str],
    optional: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

/// The replicas, the workers and the jobs.
fn sections(status: &Value) -> Vec<Section> {
    let rows = |path: &str, row: &dyn Fn(&Value) -> Vec<String>| -> Vec<Vec<String>> {
        status.pointer(path).and_then(Value::as_array).into_iter().flatten().map(row).collect()
    };
    let short = |value: &Value| text(value, "/id").chars().take(ID_LEN).collect::<String>();
    let workers = rows("/workers", &|worker| {
        let models: Vec<String> = worker
            .get("models")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|model| text(model, "/name"))
            .map(|name| name.strip_suffix(":latest").map(str::to_owned).unwrap_or(name))
            .collect();
        vec![
            short(worker),
            text(worker, "/state"),
            text(worker, "/address").trim_end_matches('/').to_owned(),
            format!("{} of {}", size(worker, "/free_bytes"), size(worker, "/memory_bytes")),
            time(&text(worker, "/seen_at")),
            models.join(", "),
        ]
    });
    let replicas = rows("/replicas", &|replica| {
        vec![
            text(replica, "/address"),
            text(replica, "/state"),
            text(replica, "/version"),
            time(&text(replica, "/started_at")),
            time(&text(replica, "/seen_at")),
        ]
    });
    let unfinished = rows("/jobs/unfinished", &|job| {
        vec![text(job, "/id"), text(job, "/kind"), text(job, "/state"), time(&text(job, "/created_at"))]
    });
    let failed = rows("/jobs/failed", &|job| {
        vec![text(job, "/id"), text(job, "/kind"), time(&text(job, "/finished_at")), text(job, "/problem")]
    });
    let mut sections = vec![
        Section {
            title: format!("workers: {}", workers.len()),
            head: &["ID", "STATE", "ADDRESS", "FREE MEMORY", "LAST SEEN", "MODELS"],
            optional: &["LAST SEEN", "ADDRESS"],
            rows: workers,
        },
        Section {
            title: format!("jobs queued or running: {}", unfinished.len()),
            head: &["ID", "KIND", "STATE", "CREATED"],
            optional: &["CREATED"],
            rows: unfinished,
        },
    ];
    if !replicas.is_empty() {
        sections.insert(
            0,
            Section {
                title: format!("replicas: {}", replicas.len()),
                head: &["ADDRESS", "STATE", "VERSION", "STARTED", "LAST SEEN"],
                optional: &["STARTED", "VERSION"],
                rows: replicas,
            },
        );
    }
    if !failed.is_empty() {
        sections.push(Section {
            title: "last failed jobs".to_owned(),
            head: &["ID", "KIND", "FAILED", "PROBLEM"],
            optional: &["FAILED"],
            rows: failed,
        });
    }
    sections
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page() {
        let status = json!({
            "server": {"version": "0.1.0", "started_at": "2023-11-14T22:13:20Z", "uptime_seconds": 7500,
                "ready": false, "missing": ["no worker is attached yet"], "read_only": false},
            "database": {"kind": "sqlite", "connections": 3, "idle": 2, "max": 9},
            "storage": {"kind": "folder", "location": "/srv/lode", "disks":
                [{"folder": "data", "free_bytes": 5_000_000_000_u64, "size_bytes": 10_000_000_000_u64}],
                "content": {"blobs": 4, "stored_bytes": 1000, "logical_bytes": 3000,
                    "measured_at": "2023-11-14T22:13:20Z"}},
            "waiting": {"manifests": 1, "links": 0, "blobs": 2, "deletions": 0, "size_bytes": 700},
            "replicas": [{"address": "lode-0:5000", "state": "ready", "version": "0.1.0", "this_server": true,
                "started_at": "2023-11-14T20:13:20Z", "seen_at": "2023-11-14T22:13:20Z"}],
            "workers": [{"id": "0190a4c4-2f3e-7abc", "address": "http://10.0.0.7:5100/", "state": "draining",
                "version": "0.1.0", "memory_bytes": 2000, "free_bytes": 1000, "seen_at": "2023-11-14T22:13:20Z",
                "models": [{"name": "team/mini:latest"}, {"name": "team/mini:q4"}, {"name": "a\u{1b}b"}]}],
            "jobs": {"unfinished": [], "failed": [{"id": "019a", "kind": "gc", "state": "failed",
                "finished_at": "2023-11-14T22:13:20Z", "problem": "the storage is full"}]},
        });
        assert_eq!(
            lines("http://127.0.0.1:5000/", &status),
            [
                "server    http://127.0.0.1:5000: lode 0.1.0, not ready: no worker is attached yet",
                "started   2023-11-14 22:13 UTC, up 2h 5m",
                "database  sqlite, 1 of 9 connections in use",
                "storage   folder /srv/lode",
                "content   1.0 kB in 4 blobs; 3.0 kB without sharing",
                "measured  2023-11-14 22:13 UTC",
                "disk      data: 5.0 GB free of 10.0 GB",
                "waiting   1 manifest, 2 blobs and 0 deletions for a collection, 700 B",
            ]
        );
        let mut full = status.clone();
        full["server"]["ready"] = true.into();
        full["storage"]["full"] = true.into();
        assert_eq!(
            lines("http://127.0.0.1:5000/", &full)[0],
            "server    http://127.0.0.1:5000: lode 0.1.0, ready for reads only: a disk is full"
        );
        let sections = sections(&status);
        let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["replicas: 1", "workers: 1", "jobs queued or running: 0", "last failed jobs"]);
        assert_eq!(
            sections[0].rows[0].join("|"),
            "lode-0:5000|ready|0.1.0|2023-11-14 20:13 UTC|2023-11-14 22:13 UTC"
        );
        assert_eq!(
            sections[1].rows[0].join("|"),
            "0190a4c4|draining|http://10.0.0.7:5100|1.0 kB of 2.0 kB|2023-11-14 22:13 UTC|team/mini, team/mini:q4, a\\u{1b}b"
        );
        assert_eq!(sections[3].rows[0].join("|"), "019a|gc|2023-11-14 22:13 UTC|the storage is full");
    }

    #[test]
    fn durations() {
        let all = [0, 59, 61, 7500, 180_000].map(duration);
        assert_eq!(all, ["0s", "59s", "1m 1s", "2h 5m", "2d 2h"]);
    }
}
