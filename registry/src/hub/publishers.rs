//! The trusted publishers of a robot on its page: their list, and a form for each kind.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::confirm::{Confirmation, is_confirmed};
use super::format::minute;
use super::tokens::form_id;
use crate::Registry;
use crate::app::{NewPublisher, Publisher, PublisherKind};
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::pages::Form;

/// More publishers than a robot may have.
const MAX_LINES: u32 = 100;

/// A kind of publisher: its value in the form, its title, who may use it, and its fields.
type Kind = (PublisherKind, &'static str, &'static str, &'static str, &'static [Field]);

/// The forms of the page, in their order.
const KINDS: [Kind; 3] = [
    (
        PublisherKind::Github,
        "github",
        "GitHub Actions",
        "Jobs of one workflow of one repository.",
        &[
            Field::required("repository", "Repository", "octo-org/octo-repo"),
            Field::required("workflow", "File of the workflow", "publish.yml"),
            Field::optional("environment", "Environment, if the job has one", "release"),
            CLAIMS,
            Field::optional("issuer", "Issuer, for GitHub Enterprise Server", "https://HOST/_services/token"),
        ],
    ),
    (
        PublisherKind::Gitlab,
        "gitlab",
        "GitLab CI",
        "Jobs of one project whose pipeline is in one file.",
        &[
            Field::required("project_path", "Project", "my-group/my-project"),
            Field::optional("config_file", "File of the pipeline", ".gitlab-ci.yml"),
            Field::optional("environment", "Environment, if the job has one", "release"),
            CLAIMS,
            Field::optional("issuer", "Issuer, for a GitLab of your own", "https://gitlab.example"),
        ],
    ),
    (
        PublisherKind::Oidc,
        "oidc",
        "Another issuer",
        "Jobs of any service that signs OpenID Connect tokens, such as CircleCI, Buildkite or Kubernetes.",
        &[
            Field::required("issuer", "Issuer", "https://oidc.example/cluster"),
            Field { is_required: true, placeholder: "sub=system:serviceaccount:ml:trainer", ..CLAIMS },
        ],
    ),
];

const CLAIMS: Field = Field {
    name: "claims",
    label: "Claims of the token, NAME=VALUE on each line",
    placeholder: "ref=refs/heads/main",
    is_required: false,
};

/// A field of a form.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) placeholder: &'static str,
    pub(super) is_required: bool,
}

impl Field {
    const fn required(name: &'static str, label: &'static str, placeholder: &'static str) -> Field {
        Field { name, label, placeholder, is_required: true }
    }

    const fn optional(name: &'static str, label: &'static str, placeholder: &'static str) -> Field {
        Field { name, label, placeholder, is_required: false }
    }
}

/// The values of a page's section about publishers.
pub(super) struct PublisherSection {
    pub(super) lines: Vec<PublisherLine>,
    pub(super) forms: Vec<PublisherForm>,
    /// Whether the server has the address that tokens of jobs name.
    pub(super) has_public_url: bool,
    pub(super) problem: Option<String>,
}

pub(super) struct PublisherLine {
    pub(super) id: Uuid,
    pub(super) service: &'static str,
    pub(super) issuer: String,
    pub(super) conditions: BTreeMap<String, String>,
    /// Ids of the first use, which have to stay the same.
    pub(super) pins: BTreeMap<String, String>,
    pub(super) used: String,
}

pub(super) struct PublisherForm {
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    /// Each with what was entered.
    pub(super) fields: Vec<(Field, String)>,
    /// Whether it was just refused.
    pub(super) is_open: bool,
}

impl PublisherSection {
    pub(super) async fn new(
        registry: &Registry,
        caller: &Caller,
        robot: &str,
    ) -> Result<PublisherSection, Failure> {
        let publishers = registry.publisher_page(caller, Some(robot), None, MAX_LINES).await?;
        let forms = KINDS.iter().map(|(_, kind, title, about, fields)| PublisherForm {
            kind,
            title,
            about,
            fields: fields.iter().map(|field| (*field, String::new())).collect(),
            is_open: false,
        });
        Ok(PublisherSection {
            lines: publishers.items.into_iter().map(PublisherLine::from).collect(),
            forms: forms.collect(),
            has_public_url: registry.config().public_url.is_some(),
            problem: None,
        })
    }

    /// What to ask before a publisher is removed, unless the form confirms it. `url`: of the page.
    pub(super) fn question(&self, form: &Form, url: &str) -> Option<Confirmation> {
        let is_asked = form.get("change") == "remove-publisher" && !is_confirmed(form);
        let id = form_id(form).ok().filter(|_| is_asked)?;
        let service = self.lines.iter().find(|line| line.id == id)?.service;
        let section = format!("{url}#publishers");
        let title = format!("Remove the publisher {service}?");
        let text = "Its jobs cannot sign in any more, and the tokens that they have got end at once.";
        Some(Confirmation::new(form, (&section, &section), title, text, "Remove the publisher"))
    }

    /// Shows why the form was refused, with what was entered.
    pub(super) fn refuse(&mut self, form: &Form, failure: &Failure) {
        let refused = self.forms.iter_mut().find(|other| other.kind == form.get("kind"));
        if let Some(refused) = refused.filter(|_| form.get("change") == "add-publisher") {
            refused.is_open = true;
            for (field, entered) in &mut refused.fields {
                *entered = form.get(field.name).replace("\r\n", "\n");
            }
        }
        self.problem = Some(failure.message());
    }
}

impl From<Publisher> for PublisherLine {
    fn from(publisher: Publisher) -> PublisherLine {
        let kind = KINDS.iter().find(|(kind, ..)| *kind == publisher.kind);
        let mut pins = publisher.pins;
        pins.retain(|name, _| !publisher.conditions.contains_key(name));
        PublisherLine {
            id: publisher.id,
            service: kind.map(|(_, _, title, ..)| *title).unwrap_or_default(),
            issuer: publisher.issuer,
            conditions: publisher.conditions,
            pins,
            used: publisher.used_at.map_or_else(|| "never".to_owned(), minute),
        }
    }
}

/// The publisher that a form describes.
pub(super) fn new_publisher(robot: &str, form: &Form) -> Result<NewPublisher, Failure> {
    let kind = KINDS.iter().find(|(_, kind, ..)| *kind == form.get("kind"));
    let Some((kind, _, _, _, fields)) = kind else {
        return Err(Failure::Unsupported("kind must be `github`, `gitlab` or `oidc`"));
    };
    let entered = |name: &str| Some(form.get(name).trim()).filter(|text| !text.is_empty());
    let named = fields.iter().map(|field| field.name).filter(|name| !["claims", "issuer"].contains(name));
    let mut conditions: BTreeMap<String, String> =
        named.filter_map(|name| Some((name.to_owned(), entered(name)?.to_owned()))).collect();
    let lines = form.get("claims").lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines {
        let Some((name, value)) = line.split_once('=') else {
            return Err(Failure::field(line, "is not a claim, such as ref=refs/heads/main"));
        };
        if conditions.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
            return Err(Failure::field(name, "has two values"));
        }
    }
    let issuer = entered("issuer").map(str::to_owned);
    Ok(NewPublisher { robot: robot.to_owned(), kind: *kind, issuer, conditions })
}
