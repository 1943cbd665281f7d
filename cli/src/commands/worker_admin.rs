//! `lode worker list`, `drain`, `resume` and `remove`: the workers of a server.

use std::time::{SystemTime, UNIX_EPOCH};

use http::Method;
use lode_client::Registry;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    args::{WorkerCommand, WorkerDrain, WorkerId},
    connect::Connection,
    error::{Failure, Outcome},
    table::Table,
    ui,
};

#[derive(Deserialize, Serialize)]
struct WorkersPage {
    workers: Vec<Value>,
}

/// The fields of a worker that are shown.
#[derive(Deserialize)]
struct Worker {
    id: String,
    advertise: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    loaded: Vec<Value>,
    #[serde(default)]
    reserved_for: Vec<String>,
    #[serde(default)]
    seen_at: i64,
    #[serde(default)]
    draining: bool,
}

#[derive(Deserialize)]
struct Device {
    #[serde(default)]
    name: String,
    #[serde(default)]
    memory_bytes: u64,
    #[serde(default)]
    free_bytes: u64,
}

pub(crate) async fn run(connection: &Connection, command: WorkerCommand) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        WorkerCommand::List(args) => {
            let workers = list(&registry).await?;
            if args.json {
                return ui::json(&WorkersPage { workers });
            }
            print(&parse(workers)?)
        }
        WorkerCommand::Drain(WorkerDrain { id, undo: false }) => {
            let worker = find(&registry, &id).await?;
            set_draining(&registry, &worker, Method::PUT).await?;
            ui::print_message(format!(
                "worker {} at {} gets no new requests; its models are unloaded when they are idle",
                worker.id, worker.advertise
            ));
            Ok(())
        }
        WorkerCommand::Drain(WorkerDrain { id, undo: true }) | WorkerCommand::Resume(WorkerId { id }) => {
            let worker = find(&registry, &id).await?;
            set_draining(&registry, &worker, Method::DELETE).await?;
            ui::print_message(format!("worker {} at {} gets requests again", worker.id, worker.advertise));
            Ok(())
        }
        WorkerCommand::Remove(WorkerId { id }) => {
            let worker = find(&registry, &id).await?;
            let path = format!("lode/v1/workers/{}", worker.id);
            match registry.json_stream(Method::DELETE, &path, &json!({})).await {
                Err(error) if error.is_not_found() => Err(Failure::new(format!(
                    "worker {} at {} was not removed: it has left, or {} has no accounts, which lets no client remove a worker",
                    worker.id,
                    worker.advertise,
                    registry.host()
                ))
                .hint(format!(
                    "stop the worker itself, or `lode worker drain {}` stops sending requests to it",
                    worker.id
                ))),
                removed => {
                    removed?;
                    ui::print_message(format!("removed worker {} at {}", worker.id, worker.advertise));
                    Ok(())
                }
            }
        }
    }
}

/// All workers of the server.
async fn list(registry: &Registry) -> Outcome<Vec<Value>> {
    let (mut workers, mut pages) = (Vec::new(), registry.json_pages("lode/v1/workers"));
    while let Some(page) = pages.next::<WorkersPage>().await? {
        workers.extend(page.workers);
    }
    Ok(workers)
}

fn parse(workers: Vec<Value>) -> Outcome<Vec<Worker>> {
    let parsed: Result<_, _> = workers.into_iter().map(serde_json::from_value).collect();
    parsed.map_err(|error| Failure::with_source("the server's list of workers cannot be read", &error))
}

/// The worker with this id, address, or beginning of an id.
async fn find(registry: &Registry, id: &str) -> Outcome<Worker> {
    select(parse(list(registry).await?)?, id)
        .map_err(|message| Failure::new(message).hint("`lode worker list` shows the workers"))
}

fn select(workers: Vec<Worker>, id: &str) -> Result<Worker, String> {
    let is_it = |worker: &Worker| {
        worker.id == id || worker.advertise.trim_end_matches('/') == id.trim_end_matches('/')
    };
    let (exact, others): (Vec<Worker>, Vec<Worker>) = workers.into_iter().partition(is_it);
    let mut found = match exact.is_empty() {
        true => others.into_iter().filter(|worker| !id.is_empty() && worker.id.starts_with(id)).collect(),
        false => exact,
    };
    match (found.pop(), found.len()) {
        (Some(worker), 0) => Ok(worker),
        (Some(_), more) => Err(format!("`{id}` is the beginning of {} ids of workers", more + 1)),
        (None, _) => Err(format!("no worker `{id}`")),
    }
}

async fn set_draining(registry: &Registry, worker: &Worker, method: Method) -> Outcome {
    let path = format!("lode/v1/workers/{}/drain", worker.id);
    registry.json_stream(method, &path, &json!({})).await?;
    Ok(())
}

fn print(workers: &[Worker]) -> Outcome {
    if workers.is_empty() {
        ui::print_message("no worker is attached");
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let rows: Vec<Vec<String>> = workers.iter().map(|worker| row(worker, now)).collect();
    Table::new(
        &["ID", "STATE", "ADDRESS", "LOADED", "MODELS", "FREE", "MEMORY", "DEVICE", "VERSION", "SEEN"],
        &rows,
    )
    .optional(&["DEVICE", "VERSION", "FREE", "LOADED", "MEMORY", "MODELS"])
    .print()
}

fn row(worker: &Worker, now_ms: u128) -> Vec<String> {
    let state = match (worker.draining, worker.loaded.is_empty()) {
        (false, _) => "ready",
        (true, false) => "draining",
        (true, true) => "drained",
    };
    let sum = |bytes: &dyn Fn(&Device) -> u64| {
        ui::format_size(worker.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(bytes(device))))
    };
    let devices: Vec<&str> = worker.devices.iter().map(|device| device.name.as_str()).collect();
    let seconds = now_ms.saturating_sub(u128::try_from(worker.seen_at).unwrap_or(0)) / 1000;
    vec![
        worker.id.chars().take(8).collect(),
        state.to_owned(),
        worker.advertise.trim_end_matches('/').to_owned(),
        worker.loaded.len().to_string(),
        match worker.reserved_for.is_empty() {
            true => "all".to_owned(),
            false => worker.reserved_for.join(", "),
        },
        sum(&|device| device.free_bytes),
        sum(&|device| device.memory_bytes),
        devices.join(", "),
        worker.version.clone(),
        format!("{seconds} s ago"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: &str, address: &str, draining: bool, loaded: usize) -> Worker {
        serde_json::from_value(json!({
            "id": id, "advertise": address, "version": "0.1.0", "draining": draining, "seen_at": 1000,
            "devices": [{"name": "cuda:0 X", "memory_bytes": 2_000_000, "free_bytes": 1_000_000}], "loaded": vec![json!({}); loaded],
        }))
        .unwrap()
    }

    #[test]
    fn workers_are_selected_by_id_beginning_or_address() {
        let all = || vec![worker("ab1", "http://a:1/", false, 0), worker("ab2", "http://b:1/", false, 0)];
        let select = |id: &str| select(all(), id).map(|worker| worker.id);
        assert_eq!(select("ab1").unwrap(), "ab1");
        assert_eq!(select("http://b:1").unwrap(), "ab2");
        assert_eq!(select("ab").unwrap_err(), "`ab` is the beginning of 2 ids of workers");
        assert_eq!(select("c").unwrap_err(), "no worker `c`");
        assert_eq!(select("").unwrap_err(), "no worker ``");
    }

    #[test]
    fn the_state_is_shown() {
        let id = "0190a4c4-2f3e-7abc-8def-0123456789ab";
        let shown =
            |draining: bool, loaded: usize| row(&worker(id, "http://a:1/", draining, loaded), 4500).join(" ");
        assert_eq!(shown(false, 1), "0190a4c4 ready http://a:1 1 all 1.0 MB 2.0 MB cuda:0 X 0.1.0 3 s ago");
        assert_eq!(shown(true, 1), "0190a4c4 draining http://a:1 1 all 1.0 MB 2.0 MB cuda:0 X 0.1.0 3 s ago");
        assert_eq!(shown(true, 0), "0190a4c4 drained http://a:1 0 all 1.0 MB 2.0 MB cuda:0 X 0.1.0 3 s ago");
    }
}
