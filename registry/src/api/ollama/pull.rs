//! `POST /api/pull`: a model of another registry becomes one of ours, under the part of its name behind the host.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use lode_client::Login;
use lode_model::reference::{Name, Reference, Repository};
use serde::Deserialize;

use super::{Named, records};
use crate::Registry;
use crate::api::model_name;
use crate::app::{Moved, Remote, Tell, TransferError};
use crate::auth::Caller;
use crate::http::{Failure, Json};

/// Where a name without a host is looked for, as ollama's clients do.
const DEFAULT_HOST: &str = "registry.ollama.ai";
/// How much of a digest a record shows.
const SHOWN_DIGITS: usize = 12;

/// What `/api/pull` and `/api/push` take.
#[derive(Deserialize)]
pub(crate) struct Transfer {
    #[serde(flatten)]
    pub(super) named: Named,
    stream: Option<bool>,
    /// Plain http.
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(transfer): Json<Transfer>,
) -> Result<Response, Failure> {
    let (remote, (repository, reference), host_given) = transfer.read(&registry)?;
    // A name without a host that is known here is here: this server is where it lives.
    let is_here = !host_given && registry.model_show(&caller, &repository, &reference).await?.is_some();
    records::answer(transfer.is_stream(), move |records| async move {
        if is_here {
            records.status("pulling manifest");
            return Ok(());
        }
        let telling = records.clone();
        let tell: Tell = Arc::new(move |moved: Moved| match moved {
            Moved::Manifest => telling.status("pulling manifest"),
            Moved::Blob { digest, total, completed } => {
                let status = format!("pulling {}", &digest.hex()[..SHOWN_DIGITS]);
                telling.progress(&status, digest.as_str(), total, completed);
            }
            Moved::AllBlobs => {
                telling.status("verifying sha256 digest");
                telling.status("writing manifest");
            }
        });
        registry.model_pull(&caller, &remote, (&repository, &reference), &tell).await?;
        Ok(())
    })
    .await
}

impl Transfer {
    pub(super) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    /// The model there, its name here, and whether the request named a host.
    pub(super) fn read(
        &self,
        registry: &Registry,
    ) -> Result<(Remote, (Repository, Reference), bool), Failure> {
        let text = self.named.name();
        if text.is_empty() {
            return Err(Failure::ModelMissing);
        }
        let (scheme, bare) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), bare)) => (Some(scheme), bare),
            _ => (None, text),
        };
        let name: Name = bare.parse()?;
        let host = name.host.clone().filter(|host| host != DEFAULT_HOST);
        let Some(host) = host else {
            let (repository, reference) = model_name::parse(bare)?;
            let theirs = match repository.as_str().contains('/') {
                true => repository.clone(),
                false => format!("library/{repository}").parse()?,
            };
            let registry = registry.remote_registry(&format!("https://{DEFAULT_HOST}"), self.login())?;
            let remote = Remote { registry, repository: theirs, reference: reference.clone() };
            return Ok((remote, (repository, reference), name.host.is_some()));
        };
        let address = match (self.insecure, scheme) {
            (true, _) => format!("http://{host}"),
            (false, Some(scheme)) => format!("{scheme}://{host}"),
            (false, None) => host,
        };
        let registry = registry.remote_registry(&address, self.login())?;
        let remote =
            Remote { registry, repository: name.repository.clone(), reference: name.reference.clone() };
        // `library` is implied here as it is there.
        let ours = name.repository.as_str().strip_prefix("library/").unwrap_or(name.repository.as_str());
        Ok((remote, (ours.parse()?, name.reference), true))
    }

    /// The login that the request brought for the other registry.
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
