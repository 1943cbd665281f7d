//! `lode rm NAME`: removes a tag, or a manifest by digest with all its tags. A later collection deletes
//! manifests without a tag, and blobs without references.

use crate::{
    args::Rm,
    connect::{Connection, Target},
    error::Outcome,
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Rm) -> Outcome {
    // Parse all names before the first removal.
    let targets = args.names.iter().map(|name| connection.target(name)).collect::<Outcome<Vec<Target>>>()?;
    for target in &targets {
        target
            .registry
            .manifest_delete(&target.repository, &target.reference)
            .await
            .map_err(|error| target.not_found(error))?;
        ui::print_message(format!("removed {target}"));
    }
    Ok(())
}
