//! The claims of a CI job's token, by its service: whether a publisher matches them, and those that are recorded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;
use utoipa::ToSchema;

use super::sign_in_errors::{MAX_VALUE_LEN, Mismatch};
use crate::Error;
use crate::auth::jwt::Claims;
use crate::store::PublisherRow;

/// Where GitHub's workflows are.
pub(super) const WORKFLOW_FOLDER: &str = ".github/workflows/";
/// The path of the issuer of GitHub Enterprise Server.
const ENTERPRISE_SERVER_PATH: &str = "/_services/token";
/// The claims that are recorded.
const RECORDED: [&str; 14] = [
    "iss",
    "sub",
    "repository",
    "project_path",
    "ref",
    "sha",
    "workflow_ref",
    "job_workflow_ref",
    "ci_config_ref_uri",
    "environment",
    "event_name",
    "run_id",
    "job_id",
    "actor",
];

/// Claims with the values of the first use, which have to stay the same.
pub(super) type Pins = BTreeMap<String, String>;

/// The services whose tokens have a meaning that this server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PublisherKind {
    /// GitHub Actions.
    Github,
    /// GitLab CI.
    Gitlab,
    /// Any issuer: every condition is a claim and its exact value.
    Oidc,
}

impl PublisherKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            PublisherKind::Github => "github",
            PublisherKind::Gitlab => "gitlab",
            PublisherKind::Oidc => "oidc",
        }
    }

    pub(super) fn parse(text: &str) -> Result<PublisherKind, Error> {
        match text {
            "github" => Ok(PublisherKind::Github),
            "gitlab" => Ok(PublisherKind::Gitlab),
            "oidc" => Ok(PublisherKind::Oidc),
            _ => Err(Error::Corrupt { what: "kind of publisher", value: text.to_owned() }),
        }
    }

    /// The service's name in texts.
    pub(super) fn service(self) -> &'static str {
        match self {
            PublisherKind::Github => "GitHub Actions",
            PublisherKind::Gitlab => "GitLab CI",
            PublisherKind::Oidc => "another service",
        }
    }

    /// The service of an issuer whose address is known. A self-managed GitLab can have any address.
    pub(super) fn of_issuer(issuer: &Url) -> Option<PublisherKind> {
        let host = issuer.host_str()?;
        let is_enterprise =
            host.strip_prefix("token.actions.").is_some_and(|rest| rest.ends_with(".ghe.com"));
        match host {
            // Organisations can have an issuer below this host.
            "token.actions.githubusercontent.com" => Some(PublisherKind::Github),
            "gitlab.com" => Some(PublisherKind::Gitlab),
            _ if is_enterprise || issuer.path().trim_end_matches('/') == ENTERPRISE_SERVER_PATH => {
                Some(PublisherKind::Github)
            }
            _ => None,
        }
    }

    pub(super) fn default_issuer(self) -> Option<&'static str> {
        match self {
            PublisherKind::Github => Some("https://token.actions.githubusercontent.com"),
            PublisherKind::Gitlab => Some("https://gitlab.com"),
            PublisherKind::Oidc => None,
        }
    }

    /// Conditions that a publisher of this kind has to have.
    pub(super) fn required(self) -> &'static [&'static str] {
        match self {
            PublisherKind::Github => &["repository", "workflow"],
            PublisherKind::Gitlab => &["project_path", "config_file"],
            PublisherKind::Oidc => &[],
        }
    }

    /// What a condition of this kind has to be, unless tokens can have this value.
    pub(super) fn check_condition(self, name: &str, value: &str) -> Result<(), &'static str> {
        let is_path = |text: &str| text.split('/').all(is_name);
        let has_form = match (self, name) {
            (PublisherKind::Github, "repository") => is_path(value) && value.matches('/').count() == 1,
            (PublisherKind::Github, "workflow") => {
                !value.contains('/') && (value.ends_with(".yml") || value.ends_with(".yaml"))
            }
            (PublisherKind::Gitlab, "project_path") => is_path(value) && value.contains('/'),
            (PublisherKind::Gitlab, "config_file") => !value.starts_with('/') && !value.contains("://"),
            _ => !self.pinned().contains(&name) || value.bytes().all(|byte| byte.is_ascii_digit()),
        };
        match (self, name) {
            _ if has_form => Ok(()),
            (PublisherKind::Github, "repository") => Err("OWNER/NAME, such as octo-org/octo-repo"),
            (PublisherKind::Github, "workflow") => {
                Err("the name of a file in .github/workflows, such as publish.yml")
            }
            (PublisherKind::Gitlab, "project_path") => Err("GROUP/NAME, such as my-group/my-project"),
            (PublisherKind::Gitlab, "config_file") => {
                Err("the path of a file in the project, such as .gitlab-ci.yml")
            }
            _ => Err("a number"),
        }
    }

    /// Claims that never change for one project. The names of a deleted project can be used by another one.
    pub(super) fn pinned(self) -> &'static [&'static str] {
        match self {
            PublisherKind::Github => &["repository_id", "repository_owner_id"],
            PublisherKind::Gitlab => &["project_id", "namespace_id"],
            PublisherKind::Oidc => &[],
        }
    }
}

impl PublisherRow {
    /// The pins after this use, if a token's claims are what the publisher expects. The error says which is
    /// not, unless the token is of another project: strangers learn nothing about publishers.
    pub(super) fn matches(&self, claims: &Claims) -> Result<Result<Pins, Option<Mismatch>>, Error> {
        let kind = PublisherKind::parse(&self.kind)?;
        let mismatch = |name: &str, expected: &str, got: Option<String>| {
            Some(Mismatch { name: name.to_owned(), expected: expected.to_owned(), got })
        };
        // 1. The project, and its ids.
        let project = kind.required().first().copied();
        if let Some(name) = project
            && !self.has(kind, name, claims)
        {
            return Ok(Err(None));
        }
        let pins = match self.pins_after(kind, claims) {
            Ok(pins) => pins,
            Err(mismatch) => return Ok(Err(Some(mismatch))),
        };
        // 2. Jobs that run the code of strangers.
        let event = claims.text("event_name").unwrap_or_default();
        if kind == PublisherKind::Github && ["pull_request_target", "workflow_run"].contains(&event) {
            let got = Some(event.to_owned());
            return Ok(Err(mismatch("event_name", "neither pull_request_target nor workflow_run", got)));
        }
        // In a merge request of a fork, these say where the job runs.
        for (name, own) in [("job_project_id", "project_id"), ("job_namespace_id", "namespace_id")] {
            if kind == PublisherKind::Gitlab
                && let Some(got) = claim_text(claims, name)
                && claim_text(claims, own) != Some(got.clone())
            {
                let expected = claim_text(claims, own).unwrap_or_default();
                return Ok(Err(mismatch(name, &expected, Some(got))));
            }
        }
        // 3. All other conditions.
        for (name, expected) in &self.conditions {
            if !self.has(kind, name, claims) {
                let got = claim_text(claims, claim_of(kind, name));
                // Of an issuer without projects, nothing says who is concerned.
                return Ok(Err(project.and_then(|_| mismatch(name, expected, got))));
            }
        }
        Ok(Ok(pins))
    }

    fn has(&self, kind: PublisherKind, name: &str, claims: &Claims) -> bool {
        let (Some(expected), Some(got)) =
            (self.conditions.get(name), claim_text(claims, claim_of(kind, name)))
        else {
            return false;
        };
        match (kind, name) {
            // Names of repositories and environments are the same in upper and lower case there.
            (PublisherKind::Github, "repository" | "environment")
            | (PublisherKind::Gitlab, "project_path") => got.eq_ignore_ascii_case(expected),
            (PublisherKind::Github, "workflow") => workflow_file(claims, &got).as_deref() == Some(expected),
            (PublisherKind::Gitlab, "config_file") => config_file(claims, &got).as_deref() == Some(expected),
            _ => got == *expected,
        }
    }

    /// The pins after this use: at the first one, those of the token.
    fn pins_after(&self, kind: PublisherKind, claims: &Claims) -> Result<Pins, Mismatch> {
        let mut pins = self.pins.clone();
        for name in kind.pinned() {
            let (name, got) = ((*name).to_owned(), claim_text(claims, name));
            match (got, pins.get(&name)) {
                (Some(got), Some(expected)) if got == *expected => {}
                (Some(got), None) => drop(pins.insert(name, got)),
                (got, expected) => {
                    let expected = expected.map_or("an id", String::as_str).to_owned();
                    return Err(Mismatch { name, expected, got });
                }
            }
        }
        Ok(pins)
    }
}

/// Whether this can be one part of the name of a project.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// The claim behind a condition.
fn claim_of(kind: PublisherKind, name: &str) -> &str {
    match (kind, name) {
        (PublisherKind::Github, "workflow") => "workflow_ref",
        (PublisherKind::Gitlab, "config_file") => "ci_config_ref_uri",
        _ => name,
    }
}

/// The file of `OWNER/REPOSITORY/.github/workflows/FILE@refs/REF`, if it is of the token's own repository.
fn workflow_file(claims: &Claims, workflow_ref: &str) -> Option<String> {
    let (path, _) = workflow_ref.split_once("@refs/")?;
    let repository = claims.text("repository")?;
    let (owner, rest) = path.split_at_checked(repository.len())?;
    let file = rest.strip_prefix('/')?.strip_prefix(WORKFLOW_FOLDER)?;
    owner.eq_ignore_ascii_case(repository).then(|| file.to_owned())
}

/// The file of `HOST/PROJECT//FILE@refs/REF`, if it is of the token's own project.
fn config_file(claims: &Claims, ci_config_ref_uri: &str) -> Option<String> {
    let (project, rest) = ci_config_ref_uri.split_once("//")?;
    // The last one: FILE may be in a folder whose name ends in `@refs`, and must not pass as a shorter name.
    let (file, _) = rest.rsplit_once("@refs/")?;
    let (_, project) = project.split_once('/')?;
    claims.text("project_path")?.eq_ignore_ascii_case(project).then(|| file.to_owned())
}

/// A claim as text.
fn claim_text(claims: &Claims, name: &str) -> Option<String> {
    match claims.0.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The claims that say which job it was.
pub(super) fn recorded(claims: &Claims) -> Value {
    let cut = |text: String| text.chars().take(MAX_VALUE_LEN).collect::<String>();
    let kept: Map<String, Value> = RECORDED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), cut(claim_text(claims, name)?).into())))
        .collect();
    Value::Object(kept)
}
