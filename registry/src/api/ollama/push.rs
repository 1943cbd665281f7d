//! `POST /api/push`: a model of ours to the registry that the host in its name says.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::pull::Transfer;
use super::records;
use crate::Registry;
use crate::app::{Moved, Tell};
use crate::auth::Caller;
use crate::http::{Failure, Json};

/// How much of a digest a record shows.
const SHOWN_DIGITS: usize = 12;

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(transfer): Json<Transfer>,
) -> Result<Response, Failure> {
    let (remote, (repository, reference), host_given) = transfer.read(&registry)?;
    if !host_given {
        return Err(Failure::Unsupported(
            "say where to push it: HOST/NAMESPACE/MODEL; under its own name the model is here already",
        ));
    }
    let known = registry.model_show(&caller, &repository, &reference).await?;
    known.ok_or_else(|| Failure::ModelUnknown { name: format!("{repository}:{reference}") })?;
    records::answer(transfer.is_stream(), move |records| async move {
        records.status("retrieving manifest");
        let telling = records.clone();
        let tell: Tell = Arc::new(move |moved: Moved| match moved {
            Moved::Manifest => {}
            Moved::Blob { digest, total, completed } => {
                let status = format!("pushing {}", &digest.hex()[..SHOWN_DIGITS]);
                telling.progress(&status, digest.as_str(), total, completed);
            }
            Moved::AllBlobs => telling.status("pushing manifest"),
        });
        registry.model_push(&caller, (&repository, &reference), &remote, &tell).await?;
        Ok(())
    })
    .await
}
