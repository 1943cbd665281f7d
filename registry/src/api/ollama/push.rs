//! `POST /api/push`: sends a model to the registry whose host is in its name.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::pull::{Transfer, TransferPeer};
use super::records;
use crate::Registry;
use crate::app::{TransferEvent, TransferSink};
use crate::auth::Caller;
use crate::http::model_name::ModelName;
use crate::http::{Failure, JsonBody, OwnHosts};

/// How many digits of a digest a record shows.
const SHOWN_DIGITS: usize = 12;

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    transfer: JsonBody<Transfer>,
) -> Result<Response, Failure> {
    let TransferPeer { remote, name: ModelName { repositories, reference }, host_given } =
        transfer.read(&registry, &own)?;
    let repository = registry.spelling_of_manifest(&caller, &repositories, &reference).await?;
    let known = registry.model_show(&caller, &repository, &reference).await?;
    known.ok_or_else(|| Failure::ModelUnknown { name: format!("{repository}:{reference}") })?;
    if !host_given {
        return Err(Failure::PushNeedsHost { name: transfer.named.name().to_owned() });
    }
    records::respond(transfer.is_stream(), move |records| async move {
        records.status("retrieving manifest");
        // This server already has it.
        let Some(remote) = remote else { return Ok(()) };
        let telling = records.clone();
        let report_event: TransferSink = Arc::new(move |moved: TransferEvent| match moved {
            TransferEvent::Manifest => {}
            TransferEvent::Blob { digest, total, completed } => {
                let status = format!("pushing {}", &digest.hex()[..SHOWN_DIGITS]);
                telling.progress(&status, digest.as_str(), total, completed);
            }
            TransferEvent::AllBlobs => telling.status("pushing manifest"),
        });
        registry.model_push(&caller, (&repository, &reference), &remote, &report_event).await?;
        Ok(())
    })
    .await
}
