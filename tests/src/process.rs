//! Processes of the program under test: the descendants of a server or worker, and their memory.

use std::fs;

/// The role of a process of the program, by its arguments: `lode runner` runs a model, `lode runner --text`
/// evaluates templates and grammars.
#[must_use]
pub fn role_of(pid: u32) -> &'static str {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |word: &str| command.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes());
    match (has("runner"), has("--text")) {
        (true, true) => "helpers",
        (true, false) => "runners",
        (false, _) => "others",
    }
}

/// The descendants of a process.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut waiting = vec![pid];
    while let Some(pid) = waiting.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|child| child.parse::<u32>().ok());
            for child in children {
                found.push(child);
                waiting.push(child);
            }
        }
    }
    found
}

/// The processes that run models for a server or worker.
#[must_use]
pub fn runners(pid: u32) -> Vec<u32> {
    descendants(pid).into_iter().filter(|pid| role_of(*pid) == "runners").collect()
}

/// The proportional set size of a process in bytes, 0 if it has ended. A page that several processes share
/// counts once in their sum.
#[must_use]
pub fn proportional_bytes(pid: u32) -> u64 {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = sums.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 =
        line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default();
    kib * 1024
}
