//! `lode cp SRC DST`: copies manifests byte for byte and mounts their blobs. Between registries, the destination
//! fetches the blobs in a job. If it cannot, they pass through this machine.

use http::StatusCode;
use lode_client::RawManifest;
use lode_model::reference::Reference;
use serde::Deserialize;
use serde_json::json;

use crate::{
    args::Cp,
    connect::{self, Connection, Target},
    copy::Copy,
    error::{Failure, Outcome},
    job,
    replaced::{TagBefore, put_manifest},
    send::UploadStats,
    ui,
};

/// The result of the job.
#[derive(Deserialize)]
struct Imported {
    digest: String,
    blobs: u64,
    bytes: u64,
    fetched_blobs: u64,
    fetched_bytes: u64,
}

pub(crate) async fn run(connection: &Connection, args: Cp) -> Outcome {
    let source = connection.target(&args.source)?;
    let destination = connection.target(&args.destination)?;
    let is_within = source.registry.url() == destination.registry.url();
    let mut refusal = None;
    if !is_within && !args.through_client {
        let before = TagBefore::read(&destination).await;
        match start_job(&source, &destination).await? {
            Started::Job(started) => {
                return follow(&source, &destination, started, before, args.json).await;
            }
            Started::Refused(reason) => refusal = Some(reason),
        }
    }
    let raw = match (source.registry.manifest_get(&source.repository, &source.reference).await, &refusal) {
        (Ok(raw), Some(reason)) => {
            ui::print_message(format!("copying through this machine: {reason}"));
            raw
        }
        (Ok(raw), None) => raw,
        (Err(error), Some(reason)) if !error.is_not_found() => {
            let host = destination.registry.host();
            return Err(source.not_found(error).hint(format!("{host} cannot fetch it: {reason}")));
        }
        (Err(error), _) => return Err(source.not_found(error)),
    };
    copy(&source, &destination, raw, args.json).await
}

async fn copy(source: &Target, destination: &Target, raw: RawManifest, json: bool) -> Outcome {
    if let Reference::Digest(expected) = &destination.reference
        && *expected != raw.digest
    {
        return Err(Failure::new(format!("{source} has the digest {}, not {expected}", raw.digest))
            .hint("use a tag as the destination"));
    }
    let copy = Copy::new(source, destination);
    let manifests = copy.gather(raw).await?;
    let sent = copy.blobs(&manifests).await?;
    // Push children before parents and the named manifest last, so that every visible manifest is complete.
    let Some(((root, _), children)) = manifests.split_first() else { return Ok(()) };
    for (raw, reference) in children.iter().rev() {
        destination
            .registry
            .manifest_put(&destination.repository, reference, &raw.media_type, raw.bytes.clone())
            .await?;
    }
    copy.end();
    let digest = put_manifest(destination, &root.media_type, root.bytes.clone()).await?;
    if json {
        return print_json(source, destination, &digest.to_string(), sent);
    }
    let host = destination.registry.host();
    ui::print_message(format!("copied {source} to {destination} on {host}: {digest}"));
    Ok(())
}

/// `sent`: the blobs that the destination did not have, and those that it had.
fn print_json(source: &Target, destination: &Target, digest: &str, sent: UploadStats) -> Outcome {
    ui::json(&json!({
        "name": destination.model(), "digest": digest, "from": source.full_name(),
        "sent_blobs": sent.sent_blobs, "sent_bytes": sent.sent_bytes,
        "shared_blobs": sent.shared_blobs, "shared_bytes": sent.shared_bytes,
    }))
}

/// The response of the destination to the request to fetch the source.
enum Started {
    Job(job::Job),
    /// It is no Lode server, or may not connect to the source.
    Refused(String),
}

/// Requests a copy by the destination server. The login for the source is sent only if the source requires one.
async fn start_job(source: &Target, destination: &Target) -> Outcome<Started> {
    let (from, to) = (&source.registry, &destination.registry);
    if connect::is_local(from) && !connect::is_local(to) {
        return Ok(Started::Refused(format!("{} is known on this machine only", from.host())));
    }
    let mut request =
        json!({ "model": destination.model(), "from": format!("{}{}", from.url(), source.model()) });
    let mut refused = match job::start(to, job::IMPORT, &request).await {
        Ok(started) => return Ok(Started::Job(started)),
        Err(error) => error,
    };
    if refused.status() == Some(StatusCode::FAILED_DEPENDENCY)
        && let Some(login) = connect::saved_login(from)?
    {
        if !connect::is_confidential(to) {
            let reason = format!("the login for {} is not sent to {} without TLS", from.host(), to.host());
            return Ok(Started::Refused(reason));
        }
        ui::print_message(format!("sending the login for {} to {}, for this copy", from.host(), to.host()));
        request["username"] = login.username.into();
        request["password"] = login.password.into();
        refused = match job::start(to, job::IMPORT, &request).await {
            Ok(started) => return Ok(Started::Job(started)),
            Err(error) => error,
        };
    }
    let host = from.credential_key();
    match refused.status() {
        Some(StatusCode::FAILED_DEPENDENCY) => Err(job::not_started(refused, &format!("copying {source}"))
            .hint(format!("`lode login {host}` saves credentials of an account that may read {source}"))),
        Some(StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE) => Err(Failure::from(refused)),
        Some(status) if status.is_client_error() => Ok(Started::Refused(refused.to_string())),
        // The response is not one of Lode.
        None if matches!(refused, lode_client::Error::Protocol { .. }) => {
            Ok(Started::Refused(refused.to_string()))
        }
        Some(_) => Err(Failure::from(refused).hint("`--through-client` copies through this machine")),
        None => Err(Failure::from(refused)),
    }
}

async fn follow(
    source: &Target,
    destination: &Target,
    started: job::Job,
    before: TagBefore<'_>,
    json: bool,
) -> Outcome {
    let done = job::finish_import(&destination.registry, started, &format!("copying {source}")).await?;
    let Imported { digest, blobs, bytes, fetched_blobs, fetched_bytes } = done.read()?;
    before.report(&digest).await;
    let (stored, stored_bytes) = (blobs.saturating_sub(fetched_blobs), bytes.saturating_sub(fetched_bytes));
    if json {
        let sent = UploadStats {
            sent_blobs: fetched_blobs,
            sent_bytes: fetched_bytes,
            shared_blobs: stored,
            shared_bytes: stored_bytes,
            resumed_bytes: 0,
        };
        return print_json(source, destination, &digest, sent);
    }
    let host = destination.registry.host();
    ui::print_message(format!("copied {source} to {destination} on {host}: {digest}"));
    ui::print_message(format!(
        "{host} fetched {} ({}); {} ({}) were stored already",
        ui::counted(fetched_blobs, "blob"),
        ui::format_size(fetched_bytes),
        ui::counted(stored, "blob"),
        ui::format_size(stored_bytes),
    ));
    Ok(())
}
