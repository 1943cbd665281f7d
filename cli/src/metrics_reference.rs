//! Generates docs/reference/metrics.md from the tables of the server and the worker. A test compares the page with the
//! program; `UPDATE_DOCS=1 cargo test -p lode reference` updates it.

use std::fmt::Write;

use crate::reference;

fn page() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
        `GET /metrics`, in Prometheus' text format. Generated from the program's own tables by a test in\n\
        `cli/src/metrics_reference.rs`; do not edit. [Operate a server](../guide/operating.md) describes the dashboard\n\
        and the alerts.\n\n\
        ## Server\n\n\
        Each process counts its own work since it started. Rows that say \"of all replicas together\" come from the\n\
        database, and every replica reports the same value. They are `NaN`, or keep their last value if they are\n\
        measured in the background, while the database is unavailable. No label contains a repository's name, a tag or\n\
        a digest.\n\n",
    );
    table(&mut text, &lode_registry::metrics_reference());
    text.push_str(
        "\n## Inference\n\n\
        A server reports these for its own worker. `lode worker` reports them on its own port, with `lode_info`.\n\
        The label `model` exists only if LODE_METRICS_MODELS is set: it is the repository of the model for that many\n\
        models, and `other` for the rest.\n\n",
    );
    table(&mut text, lode_worker::metrics::reference());
    text
}

fn table(text: &mut String, rows: &[[&str; 4]]) {
    text.push_str("| name | type | labels | |\n| --- | --- | --- | --- |\n");
    for [name, kind, labels, help] in rows {
        let _always_fits = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
    }
}

#[test]
fn the_reference_of_metrics_is_up_to_date() {
    reference::check("metrics.md", &page());
}
