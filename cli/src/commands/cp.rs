//! `lode cp SRC DST`: copies manifests byte for byte and mounts their blobs. Blob data is transferred only
//! between registries.

use lode_model::reference::Reference;

use crate::{
    args::Cp,
    connect::Connection,
    copy::Copy,
    error::{Failure, Outcome},
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Cp) -> Outcome {
    let source = connection.target(&args.source)?;
    let destination = connection.target(&args.destination)?;
    let raw = source
        .registry
        .manifest_get(&source.repository, &source.reference)
        .await
        .map_err(|error| source.not_found(error))?;
    if let Reference::Digest(expected) = &destination.reference
        && *expected != raw.digest
    {
        return Err(Failure::new(format!("{source} has the digest {}, not {expected}", raw.digest))
            .hint("use a tag as the destination"));
    }
    let copy = Copy::new(&source, &destination);
    let manifests = copy.gather(raw).await?;
    copy.blobs(&manifests).await?;
    // Push children before parents and the named manifest last, so that every visible manifest is complete.
    for (raw, reference) in manifests.iter().rev() {
        destination
            .registry
            .manifest_put(&destination.repository, reference, &raw.media_type, raw.bytes.clone())
            .await?;
    }
    copy.end();
    ui::print_message(format!("copied {source} to {} on {}", destination, destination.registry.host()));
    Ok(())
}
