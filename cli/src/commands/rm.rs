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
        match target.registry.manifest_delete(&target.repository, &target.reference).await {
            Ok(()) => ui::print_message(format!("removed {target}")),
            Err(error) if error.is_not_found() && args.if_exists => {
                ui::print_message(format!("{target} does not exist"));
            }
            Err(error) => return Err(target.not_found(error)),
        }
    }
    Ok(())
}
