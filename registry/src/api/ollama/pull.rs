//! `POST /api/pull`: copies a model from another registry, under its name without the host.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use lode_client::Login;
use lode_model::reference::Name;
use serde::Deserialize;

use super::{ModelRequest, records};
use crate::Registry;
use crate::app::{INTERACTIVE_RETRY, RemoteModel, TransferError, TransferEvent, TransferSink};
use crate::auth::{Action, Caller};
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, JsonBody, OwnHosts, RequestBody};

/// The registry for a name without a host, as in ollama's clients.
const DEFAULT_HOST: &str = "registry.ollama.ai";
/// How many digits of a digest a record shows.
const SHOWN_DIGITS: usize = 12;

/// The body of `/api/pull` and `/api/push`.
#[derive(Deserialize)]
pub(crate) struct Transfer {
    #[serde(flatten)]
    pub(super) named: ModelRequest,
    stream: Option<bool>,
    /// Use plain http.
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl RequestBody for Transfer {
    const ACTION: Action = Action::Pull;
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Pull(Transfer);

impl RequestBody for Pull {
    const ACTION: Action = Action::Push;
}

/// The other registry of a transfer, and the model's name here.
pub(super) struct TransferPeer {
    /// None if the name has this server's own host.
    pub(super) remote: Option<RemoteModel>,
    /// The model's name on this server.
    pub(super) name: ModelName,
    pub(super) host_given: bool,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    body: JsonBody<Pull>,
) -> Result<Response, Failure> {
    let (Pull(transfer), charge) = body.into_parts();
    let TransferPeer { remote, name: ModelName { repositories, reference }, host_given } =
        transfer.read(&registry, &own)?;
    // A name without a host that exists here needs no pull.
    let here = registry.spelling_of_manifest(&caller, &repositories, &reference).await?;
    let is_local_model =
        (!host_given || remote.is_none()) && registry.model_show(&caller, &here, &reference).await?.is_some();
    let repository = registry.spelling_to_write(&caller, &repositories).await?;
    let unknown = Failure::ModelUnknown { name: transfer.named.name().to_owned() };
    records::respond(transfer.is_stream(), move |records| async move {
        drop(charge);
        if is_local_model {
            records.status("pulling manifest");
            return Ok(());
        }
        let remote = remote.ok_or(unknown)?;
        let progress_records = records.clone();
        let report_event: TransferSink = Arc::new(move |moved: TransferEvent| match moved {
            TransferEvent::Manifest => progress_records.status("pulling manifest"),
            TransferEvent::Blob { digest, total, completed } => {
                let status = format!("pulling {}", &digest.hex()[..SHOWN_DIGITS]);
                progress_records.progress(&status, digest.as_str(), total, completed);
            }
            TransferEvent::AllBlobs => {
                progress_records.status("verifying sha256 digest");
                progress_records.status("writing manifest");
            }
        });
        registry.model_pull(&caller, &remote, (&repository, &reference), &report_event).await?;
        Ok(())
    })
    .await
}

impl Transfer {
    pub(super) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    /// The model in another registry and its name here.
    pub(super) fn read(&self, registry: &Registry, own: &OwnHosts) -> Result<TransferPeer, Failure> {
        let text = self.named.name();
        if text.is_empty() {
            return Err(Failure::ModelMissing);
        }
        let (scheme, bare) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), bare)) => (Some(scheme), bare),
            _ => (None, text),
        };
        if bare.split_once('/').is_some_and(|(host, _)| own.contains(host)) {
            return Ok(TransferPeer { remote: None, name: model_name::parse(bare, own)?, host_given: true });
        }
        let name: Name = bare.parse()?;
        let host = name.host.clone().filter(|host| host != DEFAULT_HOST);
        let Some(host) = host else {
            let ours = model_name::parse(bare, own)?;
            // Of two spellings, that registry has the one with the namespace.
            let theirs = ours.repositories.iter().find(|repository| repository.as_str().contains('/'));
            let theirs = theirs.unwrap_or(ours.repositories.first()).clone();
            let registry = registry.remote_registry(
                &format!("https://{DEFAULT_HOST}"),
                self.login(),
                INTERACTIVE_RETRY,
            )?;
            let remote = RemoteModel { registry, repository: theirs, reference: ours.reference.clone() };
            return Ok(TransferPeer { remote: Some(remote), name: ours, host_given: name.host.is_some() });
        };
        let address = match (self.insecure, scheme) {
            (true, _) => format!("http://{host}"),
            (false, Some(scheme)) => format!("{scheme}://{host}"),
            (false, None) => host,
        };
        let registry = registry.remote_registry(&address, self.login(), INTERACTIVE_RETRY)?;
        let remote =
            RemoteModel { registry, repository: name.repository.clone(), reference: name.reference.clone() };
        // `library` is implied here too. A name with more parts has one spelling.
        let repositories = model_name::client_spellings(name.repository.as_str());
        let repositories = repositories.unwrap_or_else(|_| name.repository.clone().into());
        let name = ModelName { repositories, reference: name.reference };
        Ok(TransferPeer { remote: Some(remote), name, host_given: true })
    }

    /// The credentials of the request for the other registry.
    fn login(&self) -> Option<Login> {
        let is_given = !self.username.is_empty() && !self.password.is_empty();
        is_given.then(|| Login { username: self.username.clone(), password: self.password.clone() })
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Failure {
        match error {
            TransferError::Registry(error) => Failure::Registry(error),
            TransferError::Unknown { name } => Failure::ModelUnknown { name },
            other => Failure::Transfer(other),
        }
    }
}
