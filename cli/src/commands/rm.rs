//! `lode rm NAME`: removes a tag, or a manifest by digest with all its tags. A later collection deletes
//! manifests without a tag, and blobs without references.

use serde_json::json;

use crate::{
    args::Rm,
    connect::{Connection, Target},
    error::Outcome,
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Rm) -> Outcome {
    // Parse all names before the first removal.
    let targets = args.names.iter().map(|name| connection.target(name)).collect::<Outcome<Vec<Target>>>()?;
    let (mut removed, mut missing) = (Vec::new(), Vec::new());
    for target in &targets {
        // The messages also report what was removed before an error.
        match target.registry.manifest_delete(&target.repository, &target.reference).await {
            Ok(()) => {
                ui::print_message(format!("removed {target}"));
                removed.push(target.model());
            }
            Err(error) if error.is_not_found() && args.if_exists => {
                ui::print_message(format!("{target} does not exist"));
                missing.push(target.model());
            }
            Err(error) => return Err(target.not_found(error)),
        }
    }
    if args.json {
        ui::json(&json!({ "removed": removed, "missing": missing }))?;
    }
    Ok(())
}
