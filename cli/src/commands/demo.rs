//! `serve --demo`: imports the small built-in model through the public API, like any other model.

use std::{future::Future, io, sync::Arc};

use lode_client::{Client, ClientOptions, CredentialKey, Credentials, Login, PlainHttp, Secret, base_url};
use lode_model::{
    import::{ReadAt, Source, SourceFile},
    modelfile::Edits,
    reference::{Reference, Repository, Tag},
};

use reqwest::Method;
use serde_json::json;

use crate::{
    connect::Target,
    error::{Failure, Outcome},
    import, ui,
};

/// The repository of the demo model.
pub(crate) const NAME: &str = "lode-demo";

macro_rules! carried {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../tests/models/lode-demo/", $name)))),+]
    };
}

/// The checkpoint. Its training and test data is only in the source repository.
const FILES: &[(&str, &[u8])] = carried![
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Imports the demo model and prints commands to try. Errors are reported and do not stop the server. `base`
/// is the address at which this process reaches itself, with `token`; `shown` is the address for users.
pub(crate) async fn install(
    base: String,
    token: Secret,
    shown: String,
    can_run: bool,
    stopped: impl Future<Output = ()>,
) {
    tokio::select! {
        outcome = import_if_absent(&base, &token) => match outcome {
            Ok(found) => {
                let how = if found { "found" } else { "imported" };
                if let Err(failure) = print_examples(&shown, how, can_run) {
                    tracing::debug!(%failure, "failed to print the commands to try");
                }
            }
            Err(failure) => ui::print_message(failure.with_context("failed to import the demo model").to_string()),
        },
        () = stopped => {}
    }
}

/// Returns whether the model existed already.
async fn import_if_absent(base: &str, token: &Secret) -> Outcome<bool> {
    let invalid = |error: lode_model::reference::ReferenceError| Failure::with_source(NAME, &error);
    let repository: Repository = NAME.parse().map_err(invalid)?;
    let tag: Tag = "latest".parse().map_err(invalid)?;
    let reference = Reference::Tag(tag.clone());
    let server = CredentialKey::of(&base_url(base, PlainHttp::default())?);
    let login = Login { username: "token".to_owned(), password: token.expose().to_owned() };
    let credentials = Credentials::fixed(server, login);
    let registry = Client::new(ClientOptions { credentials, ..ClientOptions::default() })?.registry(base)?;
    if registry.manifest_head(&repository, &reference).await?.is_some() {
        return Ok(true);
    }
    // On a server with accounts, everyone who signs in sees it. Set before the import, which a crash may repeat.
    let internal = json!({ "target": NAME, "visibility": "internal" });
    registry.json_stream(Method::PUT, "lode/v1/visibility", &internal).await?;
    let target = Target { host: None, registry, repository, reference };
    import::model(&target, Arc::new(EmbeddedCheckpoint), None, &Edits::default()).await?;
    Ok(false)
}

fn print_examples(base: &str, how: &str, can_run: bool) -> Outcome {
    ui::print_line(format!("demo model {NAME}: {how}"))?;
    let host = base.split_once("://").map_or(base, |(_, host)| host);
    let variable = if base == "http://127.0.0.1:5000" { String::new() } else { format!("LODE_HOST={base} ") };
    ui::print_line("\nTry in another terminal:\n")?;
    if can_run {
        ui::print_line(format!("  {variable}lode run {NAME} \"What is 40 plus 41?\""))?;
        ui::print_line(format!(
            "  curl {base}/api/generate -d '{{\"model\":\"{NAME}\",\"prompt\":\"Define water.\"}}'"
        ))?;
    }
    ui::print_line(format!("  {variable}lode list"))?;
    ui::print_line(format!(
        "  {variable}lode push ./README.md team/notes      (or: skopeo copy, oras push, docker push {host}/...)"
    ))
}

struct EmbeddedCheckpoint;

impl Source for EmbeddedCheckpoint {
    fn files(&self) -> Vec<SourceFile> {
        FILES
            .iter()
            .map(|(path, bytes)| SourceFile { path: (*path).to_owned(), size: bytes.len() as u64 })
            .collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let (_, bytes) = FILES.iter().find(|(name, _)| *name == path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(StaticBytes(bytes)))
    }
}

struct StaticBytes(&'static [u8]);

impl ReadAt for StaticBytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
}
