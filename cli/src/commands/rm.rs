//! `lode rm NAME`: removes a tag, or a manifest by digest with all its tags.
//! A manifest that lost its last tag goes with a later collection, and the bytes that nothing else refers to with it.

use crate::{
    args::Rm,
    connect::{Connection, Target},
    error::Outcome,
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Rm) -> Outcome {
    // Every name is read before the first one goes.
    let targets = args.names.iter().map(|name| connection.target(name)).collect::<Outcome<Vec<Target>>>()?;
    for target in &targets {
        target
            .registry
            .manifest_delete(&target.repository, &target.reference)
            .await
            .map_err(|error| target.not_found(error))?;
        ui::say(format!("removed {target}"));
    }
    Ok(())
}
